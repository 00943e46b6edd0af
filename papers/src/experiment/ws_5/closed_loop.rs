//! Closed loops of writers before one disk.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use policy::gather::{Gather, Start};
use policy::unit::Instant;

use crate::model::wait::{Answer, Gate, Resource};
use crate::model::{Simulation, Virtual};

/// How a writer's think time varies.
#[derive(Clone, Copy)]
pub(super) enum Variation {
    /// Not at all.
    None,
    /// Between nothing and twice the mean, all as likely.
    Uniform,
    Exponential,
}

#[derive(Clone, Copy)]
pub(super) struct Load {
    pub writers: u32,
    /// Each sends the calls of its writers one after another.
    pub clients: u32,
    /// Mean time between durability and the next call.
    pub think: Duration,
    pub variation: Variation,
    pub send: Duration,
    pub write: Duration,
    pub flush: Duration,
}

/// When the next flush starts.
pub(super) enum Rule {
    Gather(Gather),
    Constant { wait: Duration, writers: u32, waiting: u32, idle: Instant },
}

impl Rule {
    /// Waits for all `writers`, at most this long from when one waits and the disk is idle.
    pub(super) fn constant(wait: Duration, writers: u32) -> Self {
        Rule::Constant { wait, writers, waiting: 0, idle: Instant::ZERO }
    }

    fn on_issue(&mut self, now: Instant) {
        if let Rule::Gather(policy) = self {
            policy.on_data_issued(now, 1);
        }
    }

    fn on_arrival(&mut self, now: Instant) {
        match self {
            Rule::Gather(policy) => {
                policy.on_data_done(now, 1);
                policy.on_arrival(now, 1);
            }
            Rule::Constant { waiting, idle, .. } => {
                if *waiting == 0 {
                    *idle = now.max(*idle);
                }
                *waiting += 1;
            }
        }
    }

    fn start(&self, now: Instant) -> Start {
        match self {
            Rule::Gather(policy) => policy.start(now),
            Rule::Constant { wait, writers, waiting, idle } => {
                let deadline = *idle + *wait;
                if waiting >= writers || now >= deadline { Start::Now } else { Start::At(deadline) }
            }
        }
    }

    fn on_start(&mut self, now: Instant) {
        match self {
            Rule::Gather(policy) => {
                policy.on_start(now);
            }
            Rule::Constant { waiting, .. } => *waiting = 0,
        }
    }

    fn on_end(&mut self, now: Instant) {
        match self {
            Rule::Gather(policy) => policy.on_end(now),
            Rule::Constant { idle, .. } => *idle = now,
        }
    }
}

struct Disk {
    time: Virtual,
    load: Load,
    rule: RefCell<Rule>,
    /// Writers that wait for the next flush, and its end.
    waiting: Cell<u64>,
    next: RefCell<Answer<()>>,
    changed: Gate,
    durable: Cell<u64>,
    idle_max: Cell<Duration>,
}

impl Disk {
    /// A writer.
    async fn write(self: Rc<Self>, client: Resource) {
        let Load { think, send, write, flush, .. } = self.load;
        self.time.sleep(flush.mul_f64(self.time.fraction())).await;
        loop {
            client.serve(send).await;
            self.rule.borrow_mut().on_issue(self.time.now());
            self.time.sleep(write.mul_f64(0.8 + 0.4 * self.time.fraction())).await;
            self.rule.borrow_mut().on_arrival(self.time.now());
            self.waiting.set(self.waiting.get() + 1);
            let durable = self.next.borrow().clone();
            self.changed.open();
            durable.wait().await;
            self.time.sleep(think.mul_f64(self.load.variation.draw(&self.time))).await;
        }
    }

    /// One flush after the other.
    async fn flush(self: Rc<Self>) {
        loop {
            self.changed.until(|| self.waiting.get() > 0).await;
            let idle = self.time.now();
            loop {
                let start = self.rule.borrow().start(self.time.now());
                let Start::At(deadline) = start else { break };
                self.changed.wait_until(deadline).await;
            }
            self.idle_max.set(self.idle_max.get().max(self.time.now() - idle));
            self.rule.borrow_mut().on_start(self.time.now());
            let (writers, group) = (self.waiting.take(), self.next.replace(Answer::new(&self.time)));
            self.time.sleep(self.load.flush.mul_f64(0.95 + 0.1 * self.time.fraction())).await;
            self.rule.borrow_mut().on_end(self.time.now());
            self.durable.set(self.durable.get() + writers);
            group.give(());
            self.time.yield_now().await;
        }
    }
}

impl Variation {
    /// What the mean is multiplied with.
    fn draw(self, time: &Virtual) -> f64 {
        match self {
            Variation::None => 1.0,
            Variation::Uniform => 2.0 * time.fraction(),
            Variation::Exponential => -(1.0 - time.fraction()).ln(),
        }
    }
}

/// Writes made durable within `time`, and the longest that the disk was idle while a writer waited.
pub(super) fn run(load: Load, rule: Rule, time: Duration, seed: u64) -> (u64, Duration) {
    let simulation = Simulation::new(seed);
    let disk = Rc::new(Disk {
        time: simulation.clone(),
        load,
        rule: RefCell::new(rule),
        waiting: Cell::default(),
        next: RefCell::new(Answer::new(&simulation)),
        changed: Gate::new(&simulation),
        durable: Cell::default(),
        idle_max: Cell::default(),
    });
    let clients: Vec<_> = (0..load.clients).map(|_| Resource::new(&simulation, 1)).collect();
    for writer in 0..load.writers {
        let client = clients[(writer % load.clients) as usize].clone();
        simulation.spawn(Rc::clone(&disk).write(client));
    }
    simulation.spawn(Rc::clone(&disk).flush());
    simulation.run_until(Instant::ZERO + time);
    (disk.durable.get(), disk.idle_max.get())
}
