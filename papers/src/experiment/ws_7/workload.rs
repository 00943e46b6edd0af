//! A workstation with an interactive process, and with jobs that want all of its processors.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::model::processors::bsd::Bsd;
use crate::model::processors::fair::Fair;
use crate::model::processors::{Costs, Processors, Scheduler, Thread, ThreadId};
use crate::model::{Simulation, Virtual};
use policy::unit::Instant;
use policy::usage::Inheritance;

use super::super::Run;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 4.3BSD, with that inheritance of usage.
    Bsd(Inheritance),
    Threads,
    Sessions,
}

/// The load of the machine, from the experiment's parameters.
#[derive(Clone, Copy)]
pub(super) struct Load {
    costs: Costs,
    processors: u16,
    time: Duration,
    think: (Duration, Duration),
    burst: Duration,
    /// Processor time of the steps of compiling one source.
    steps: [Duration; 4],
    shell: Duration,
    reads: u32,
    read: Duration,
    /// Of an answer, what a window server draws.
    server_part: f64,
    /// What the other client has drawn, and how often.
    other: (Duration, Duration),
}

impl Load {
    pub(super) fn of(run: &Run<'_>) -> Self {
        let ms = |name: &str| Duration::from_secs_f64(run.get(name) / 1000.0);
        Load {
            costs: Costs { dispatch: ms("cpu.dispatch"), migration: Duration::ZERO, tick: ms("cpu.tick") },
            processors: run.get("machine.processors") as u16,
            time: Duration::from_secs_f64(run.get("time")),
            think: (ms("interactive.think_min"), ms("interactive.think_max")),
            burst: ms("interactive.burst"),
            steps: ["compile.cpp", "compile.ccom", "compile.c2", "compile.as"].map(ms),
            shell: ms("compile.shell"),
            reads: run.get("compile.reads") as u32,
            read: ms("disk.access"),
            server_part: run.get("server.part") / 100.0,
            other: (ms("server.other"), ms("server.other_every")),
        }
    }
}

#[derive(Default)]
pub(super) struct Seen {
    /// From a key to its echo. Milliseconds, in order of time.
    pub responses_ms: Vec<f64>,
    /// Processor time of the long process and of the job. Seconds.
    pub long_s: f64,
    pub job_s: f64,
    pub sources: u64,
    /// 4.3BSD's priority of the last started pass of the compiler: seconds and priority.
    pub priorities: Vec<(f64, f64)>,
    /// Change of priority from the end of one pass to the beginning of the next.
    pub jumps: Vec<f64>,
    /// Processor time of the window server. Seconds.
    pub server_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub interactive: bool,
    /// A long process for each processor.
    pub long: bool,
    /// Concurrently compiled sources, for each processor.
    pub compilers: u32,
    pub windows: Windows,
}

/// Another program that draws, and who does the drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Windows {
    /// It is not there.
    #[default]
    None,
    /// Each program itself.
    Own,
    /// A server, for both programs.
    Served,
}

pub(super) fn run_with(load: Load, kind: Kind, who: Who, seed: u64) -> Seen {
    let run = Simulation::new(seed);
    let station = Station::new(&run, load, kind);
    let server = (who.windows == Windows::Served).then(|| {
        station.session(4);
        WindowServer::start(&station)
    });
    if who.interactive {
        station.session(1);
        let (own, server) = (station.clone(), server.clone());
        station.processors.start(move |thread| async move { own.interact(thread, server).await });
    }
    if who.windows != Windows::None {
        station.session(5);
        let own = station.clone();
        station.processors.start(move |thread| async move { own.animate(thread, server).await });
    }
    for _ in 0..if who.long { load.processors } else { 0 } {
        station.session(2);
        let own = station.clone();
        station.processors.start(move |thread| async move { own.compute_on(thread).await });
    }
    if who.compilers > 0 {
        station.session(3);
        let own = station.clone();
        station
            .processors
            .start(move |thread| async move { own.make(thread, who.compilers * u32::from(load.processors)).await });
        let own = station.clone();
        run.spawn(async move { own.watch().await });
    }
    run.run_until(Instant::ZERO + load.time);
    drop(run);
    station.seen.take()
}

#[derive(Clone)]
enum Handle {
    Bsd(Rc<RefCell<Bsd>>, Inheritance),
    Fair(Rc<RefCell<Fair>>),
}

#[derive(Clone)]
struct Station {
    time: Virtual,
    processors: Processors,
    handle: Handle,
    load: Load,
    seen: Rc<RefCell<Seen>>,
    /// The pass that was started last.
    pass: Rc<Cell<Option<ThreadId>>>,
    /// Priority of the pass that ended last.
    ended: Rc<Cell<Option<f64>>>,
}

impl Station {
    fn new(time: &Virtual, load: Load, kind: Kind) -> Self {
        let (scheduler, handle): (Rc<RefCell<dyn Scheduler>>, Handle) = match kind {
            Kind::Bsd(inheritance) => {
                let bsd = Rc::new(RefCell::new(Bsd::new(load.processors)));
                (bsd.clone(), Handle::Bsd(bsd, inheritance))
            }
            Kind::Threads | Kind::Sessions => {
                let fair = Rc::new(RefCell::new(Fair::new(kind == Kind::Sessions, load.processors)));
                (fair.clone(), Handle::Fair(fair))
            }
        };
        let processors = Processors::new(time, load.processors, load.costs, scheduler);
        Station {
            time: time.clone(),
            processors,
            handle,
            load,
            seen: Rc::default(),
            pass: Rc::default(),
            ended: Rc::default(),
        }
    }

    /// Processes started from now on belong to this session.
    fn session(&self, session: usize) {
        if let Handle::Fair(fair) = &self.handle {
            fair.borrow_mut().set_session(session);
        }
    }

    /// Reads keys and echoes each on the screen, by a server if there is one.
    async fn interact(self, thread: Thread, server: Option<WindowServer>) {
        let (least, most) = self.load.think;
        loop {
            let think = least + (most - least).mul_f64(self.time.fraction());
            // From the key, not from when the process gets the processor.
            let key = self.time.now() + think;
            self.sleep(&thread, think).await;
            let drawing = server.as_ref().map_or(Duration::ZERO, |_| self.load.burst.mul_f64(self.load.server_part));
            thread.compute(self.load.burst - drawing).await;
            if let Some(server) = &server {
                server.draw(&thread, drawing).await;
            }
            let took = self.time.now() - key;
            self.seen.borrow_mut().responses_ms.push(took.as_secs_f64() * 1000.0);
        }
    }

    /// Another program draws now and then, by the server if there is one.
    async fn animate(self, thread: Thread, server: Option<WindowServer>) {
        let (drawing, every) = self.load.other;
        let mut next = self.time.now();
        loop {
            next += every;
            self.sleep(&thread, next - self.time.now()).await;
            match &server {
                Some(server) => server.draw(&thread, drawing).await,
                None => thread.compute(drawing).await,
            }
        }
    }

    async fn compute_on(self, thread: Thread) {
        let piece = Duration::from_millis(1);
        loop {
            thread.compute(piece).await;
            self.seen.borrow_mut().long_s += piece.as_secs_f64();
        }
    }

    /// Compiles source after source, `compilers` concurrently.
    async fn make(self, thread: Thread, compilers: u32) {
        let in_flight = Rc::new(Cell::new(0));
        loop {
            while in_flight.get() < compilers {
                in_flight.set(in_flight.get() + 1);
                thread.run_in_kernel(self.load.shell / 4).await;
                let (own, count) = (self.clone(), Rc::clone(&in_flight));
                self.fork(&thread, move |child| async move {
                    own.compile(&child).await;
                    count.set(count.get() - 1);
                    own.seen.borrow_mut().sources += 1;
                });
            }
            thread.sleep().await;
        }
    }

    /// `cc`: runs its passes one after the other, each as a process of its own.
    async fn compile(&self, thread: &Thread) {
        self.work(thread, self.load.shell).await;
        for step in self.load.steps {
            let ended = Rc::new(Cell::new(false));
            let (own, end) = (self.clone(), Rc::clone(&ended));
            self.fork(thread, move |child| async move {
                own.pass(&child, step).await;
                end.set(true);
            });
            while !ended.get() {
                thread.sleep().await;
            }
        }
    }

    /// A pass: reads, computes, reads, computes.
    async fn pass(&self, thread: &Thread, step: Duration) {
        self.pass.set(Some(thread.id()));
        if let (Some(before), Some(priority)) = (self.ended.get(), self.priority(thread.id())) {
            self.seen.borrow_mut().jumps.push((priority - before).abs());
        }
        let pieces = self.load.reads.max(1);
        for _ in 0..pieces {
            if self.load.reads > 0 {
                self.sleep(thread, self.load.read).await;
            }
            self.work(thread, step / pieces).await;
        }
        self.ended.set(self.priority(thread.id()));
    }

    fn priority(&self, thread: ThreadId) -> Option<f64> {
        let Handle::Bsd(bsd, _) = &self.handle else { return None };
        Some(f64::from(bsd.borrow().priority(thread)))
    }

    async fn work(&self, thread: &Thread, time: Duration) {
        thread.compute(time).await;
        self.seen.borrow_mut().job_s += time.as_secs_f64();
    }

    /// Starts a child, which wakes its parent at its end.
    fn fork<F: Future<Output = ()> + 'static>(&self, parent: &Thread, script: impl FnOnce(Thread) -> F + 'static) {
        let (own, parent) = (self.clone(), parent.id());
        let child = self.processors.start(move |thread| async move {
            let child = thread.id();
            script(thread).await;
            own.exit(parent, child);
        });
        if let Handle::Bsd(bsd, inheritance) = &self.handle {
            bsd.borrow_mut().fork(self.time.now(), parent, child, *inheritance);
        }
    }

    fn exit(&self, parent: ThreadId, child: ThreadId) {
        if let Handle::Bsd(bsd, inheritance) = &self.handle {
            bsd.borrow_mut().exit(self.time.now(), parent, child, *inheritance);
        }
        self.processors.wake(parent, None);
    }

    async fn sleep(&self, thread: &Thread, time: Duration) {
        let (own, id) = (self.clone(), thread.id());
        self.time.spawn(async move {
            own.time.sleep(time).await;
            own.processors.wake(id, None);
        });
        thread.sleep().await;
    }

    /// Samples the compiler's priority.
    async fn watch(self) {
        loop {
            self.time.sleep(Duration::from_millis(100)).await;
            if let Some(priority) = self.pass.get().and_then(|thread| self.priority(thread)) {
                let now_s = self.time.now().ns() as f64 / 1e9;
                self.seen.borrow_mut().priorities.push((now_s, priority));
            }
        }
    }
}

/// A window server: one process that draws for all programs, in the order of their requests.
#[derive(Clone)]
struct WindowServer {
    processors: Processors,
    thread: ThreadId,
    requests: Rc<RefCell<VecDeque<Drawing>>>,
}

struct Drawing {
    work: Duration,
    client: ThreadId,
    is_done: Rc<Cell<bool>>,
}

impl WindowServer {
    fn start(station: &Station) -> Self {
        let requests: Rc<RefCell<VecDeque<Drawing>>> = Rc::default();
        let (own, taken) = (station.clone(), Rc::clone(&requests));
        let thread = station.processors.start(move |thread| async move {
            loop {
                let drawing = taken.borrow_mut().pop_front();
                let Some(Drawing { work, client, is_done }) = drawing else {
                    thread.sleep().await;
                    continue;
                };
                thread.compute(work).await;
                own.seen.borrow_mut().server_s += work.as_secs_f64();
                is_done.set(true);
                own.processors.wake(client, None);
            }
        });
        WindowServer { processors: station.processors.clone(), thread, requests }
    }

    /// Has something drawn, and waits for it.
    async fn draw(&self, client: &Thread, work: Duration) {
        let is_done = Rc::new(Cell::new(false));
        let request = Drawing { work, client: client.id(), is_done: Rc::clone(&is_done) };
        self.requests.borrow_mut().push_back(request);
        self.processors.wake(self.thread, None);
        while !is_done.get() {
            client.sleep().await;
        }
    }
}
