//! The load itself: terminals spread over a few threads, each of which waits for all of its own at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{Write as _, stderr};
use std::iter::repeat_n;
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

use super::draw::Draw;
use super::measure::Measured;
use super::mix::Mix;
use super::terminal::{Call, Ended, Terminal};
use super::wire::{Target, Wire};

/// A worker looks at the clock at least so often.
const PATIENCE: Duration = Duration::from_millis(100);
/// After the end, replies that are still under way are waited for so long.
const GRACE: Duration = Duration::from_secs(30);
const EVENTS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    None,
    /// A line to the standard error output each second.
    Lines,
}

/// What all workers share.
struct Shared<'a> {
    mix: &'a Mix,
    /// Transactions begun that count.
    begun: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
    ready: Barrier,
    count: AtomicU64,
}

/// Runs the mix to its end.
///
/// # Errors
/// If a terminal cannot be set up, or its connection ends.
pub fn run(mix: &Mix, target: &Target, progress: Progress) -> anyhow::Result<Measured> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = processors.min(mix.terminals);
    let shared = Shared {
        mix,
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        ready: Barrier::new(workers + 1),
        count: AtomicU64::new(0),
    };
    let interrupted = std::sync::Arc::new(AtomicBool::new(false));
    let handler = signal_hook::flag::register(signal_hook::consts::SIGINT, std::sync::Arc::clone(&interrupted))?;
    let result = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| {
                let shared = &shared;
                scope.spawn(move || {
                    let result = Worker::new(shared, target, worker, workers);
                    // All begin together, also when one failed: the others must not wait for it for ever.
                    shared.is_over.fetch_or(result.is_err(), Ordering::SeqCst);
                    shared.ready.wait();
                    let result = result.and_then(|mut worker| worker.run().map(|()| worker.measured));
                    shared.is_over.fetch_or(result.is_err(), Ordering::SeqCst);
                    result
                })
            })
            .collect();
        shared.ready.wait();
        watch(&shared, progress, &interrupted, || handles.iter().all(|handle| handle.is_finished()));
        let mut all = Measured::new(mix.transactions_of.len());
        for handle in handles {
            all.add(&handle.join().map_err(|_| anyhow!("a thread of the load panicked"))??);
        }
        Ok(all)
    });
    signal_hook::low_level::unregister(handler);
    result
}

/// Ends the load in time, and shows how it goes.
fn watch(shared: &Shared<'_>, progress: Progress, interrupted: &AtomicBool, is_over: impl Fn() -> bool) {
    let (begin, mut shown, mut before) = (Instant::now(), 0, 0);
    let limit = shared.mix.duration.map(|duration| duration + shared.mix.warm_up);
    while !is_over() {
        std::thread::sleep(Duration::from_millis(20));
        let passed = begin.elapsed();
        if interrupted.load(Ordering::SeqCst) || limit.is_some_and(|limit| passed >= limit) {
            shared.is_over.store(true, Ordering::SeqCst);
        }
        if progress == Progress::Lines && passed.as_secs() > shown {
            shown = passed.as_secs();
            let ended = shared.ended.load(Ordering::Relaxed);
            let warm_up = if passed < shared.mix.warm_up { ", warming up" } else { "" };
            let rate = ended - before;
            // Nobody may read it any more.
            let _ = writeln!(stderr(), "{shown:>4} s  {rate:>8} transactions in the last second{warm_up}");
            before = ended;
        }
    }
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    draw: Draw,
    terminals: Vec<Terminal>,
    /// The number of the first of them in the whole load, and the distance to the next.
    first: usize,
    step: usize,
    poller: std::os::fd::OwnedFd,
    begin: Instant,
    /// Terminals that think, by when they have thought enough.
    thinking: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Those with something new to send.
    to_send: Vec<usize>,
    /// In an open loop: those that could do more, what waits for one, and when the next transaction is due.
    idle: Vec<usize>,
    waiting: VecDeque<Instant>,
    next_due: Option<Instant>,
    interval: Option<Duration>,
    under_way: usize,
    measured: Measured,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, target: &Target, worker: usize, workers: usize) -> anyhow::Result<Worker<'a>> {
        let poller = epoll::create(CreateFlags::CLOEXEC)?;
        let mut terminals = Vec::new();
        for number in (worker..shared.mix.terminals).step_by(workers) {
            let mut wire = Wire::open(target).with_context(|| format!("terminal {}", number + 1))?;
            wire.prepare(shared.mix.transactions_of.iter().map(|one| one.sql.as_str()))?;
            wire.set_nonblocking()?;
            epoll::add(&poller, &wire, EventData::new_u64(terminals.len() as u64), EventFlags::IN)?;
            terminals.push(Terminal { wire, calls: VecDeque::new(), is_blocked: false });
        }
        Ok(Worker {
            shared,
            draw: Draw::new(shared.mix, worker),
            idle: (0..terminals.len()).flat_map(|one| repeat_n(one, shared.mix.pipeline)).collect(),
            to_send: Vec::new(),
            terminals,
            first: worker,
            step: workers,
            poller,
            begin: Instant::now(),
            thinking: BinaryHeap::new(),
            waiting: VecDeque::new(),
            next_due: None,
            interval: shared.mix.rate.map(|rate| Duration::from_secs_f64(workers as f64 / rate)),
            under_way: 0,
            measured: Measured::new(shared.mix.transactions_of.len()),
        })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        self.begin = Instant::now();
        match self.interval {
            Some(interval) => self.next_due = Some(self.begin + self.draw.exponential(interval)),
            None => {
                for terminal in std::mem::take(&mut self.idle) {
                    self.think(terminal);
                }
            }
        }
        let mut over_since = None;
        while over_since.is_none() || self.under_way > 0 {
            self.start_what_is_due()?;
            let events = self.wait(over_since.is_some())?;
            for (terminal, flags) in events {
                self.on_event(terminal, flags)?;
            }
            if self.shared.is_over.load(Ordering::SeqCst) && over_since.is_none() {
                over_since = Some(self.end());
            }
            if over_since.is_some_and(|since| since.elapsed() > GRACE) {
                return Err(anyhow!("{} transactions got no reply within {GRACE:?} after the end", self.under_way));
            }
        }
        Ok(())
    }

    /// What was due and has not begun has waited until now, at least: left out, a slow server would look fast.
    fn end(&mut self) -> Instant {
        let now = Instant::now();
        self.measured.time = now.duration_since(self.begin).saturating_sub(self.shared.mix.warm_up);
        self.arrive(now);
        self.next_due = None;
        // Where a terminal is idle, what came due in the last moment was not kept waiting by the server.
        let has_waited = self.idle.is_empty();
        for due in std::mem::take(&mut self.waiting) {
            if has_waited && self.counts(due) {
                self.measured.not_begun(self.draw.transaction(), now.duration_since(due));
            }
        }
        now
    }

    fn think(&mut self, terminal: usize) {
        let mean = self.shared.mix.think_time;
        let time = if mean.is_zero() { mean } else { self.draw.exponential(mean) };
        self.thinking.push(Reverse((Instant::now() + time, terminal)));
    }

    fn start_what_is_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.arrive(now);
        while let (Some(&due), Some(&terminal)) = (self.waiting.front(), self.idle.last())
            && self.may_begin(due)
        {
            self.waiting.pop_front();
            self.idle.pop();
            self.start(terminal, due)?;
        }
        while let Some(&Reverse((due, terminal))) = self.thinking.peek()
            && due <= now
        {
            self.thinking.pop();
            if self.may_begin(due) {
                self.start(terminal, due)?;
            }
        }
        self.send()
    }

    /// In an open loop: what is due by `now`.
    fn arrive(&mut self, now: Instant) {
        while let (Some(due), Some(interval)) = (self.next_due, self.interval)
            && due <= now
        {
            self.waiting.push_back(due);
            self.next_due = Some(due + self.draw.exponential(interval));
        }
    }

    /// What a terminal begins at the same time leaves together.
    fn send(&mut self) -> anyhow::Result<()> {
        let mut terminals = std::mem::take(&mut self.to_send);
        for terminal in terminals.drain(..) {
            self.terminals[terminal].wire.send()?;
            self.watch_sending(terminal)?;
        }
        self.to_send = terminals;
        Ok(())
    }

    /// Not after the end, which is also when as many have begun as the mix says.
    fn may_begin(&self, due: Instant) -> bool {
        let Shared { mix, begun, is_over, .. } = self.shared;
        if !is_over.load(Ordering::Relaxed) && self.counts(due) {
            let begun = begun.fetch_add(1, Ordering::SeqCst);
            is_over.fetch_or(mix.limit().is_some_and(|limit| begun >= limit), Ordering::SeqCst);
        }
        !is_over.load(Ordering::Relaxed)
    }

    fn start(&mut self, terminal: usize, due: Instant) -> anyhow::Result<()> {
        let shared = self.shared;
        let transaction = self.draw.transaction();
        let number = self.first + terminal * self.step;
        let drawn = &shared.mix.transactions_of[transaction].arguments;
        let arguments = drawn.iter().map(|argument| self.draw.argument(argument, number, &shared.count)).collect();
        self.under_way += 1;
        self.terminals[terminal].begin(Call { transaction, arguments, due, retries: 0 })?;
        self.to_send.push(terminal);
        Ok(())
    }

    fn counts(&self, due: Instant) -> bool {
        due.duration_since(self.begin) >= self.shared.mix.warm_up
    }

    fn wait(&mut self, is_over: bool) -> anyhow::Result<Vec<(usize, EventFlags)>> {
        let thought = self.thinking.peek().map(|Reverse((at, _))| *at);
        let next = thought.into_iter().chain(self.next_due).min().filter(|_| !is_over);
        let patience = next.map_or(PATIENCE, |at| at.saturating_duration_since(Instant::now()).min(PATIENCE));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        match epoll::wait(&self.poller, &mut buffer, Some(&timeout)) {
            Ok((events, _)) => Ok(events.iter().map(|event| (event.data.u64() as usize, event.flags)).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error).context("cannot wait for replies"),
        }
    }

    fn on_event(&mut self, terminal: usize, flags: EventFlags) -> anyhow::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.terminals[terminal].wire.send()?;
            self.watch_sending(terminal)?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        loop {
            let ended = self.terminals[terminal].receive(self.shared.mix.retries);
            let ended = ended.with_context(|| format!("terminal {}", self.first + terminal * self.step + 1))?;
            let Some((call, how)) = ended else { return Ok(()) };
            self.on_reply(terminal, &call, how);
            if self.terminals[terminal].calls.is_empty() {
                return Ok(());
            }
        }
    }

    fn on_reply(&mut self, terminal: usize, call: &Call, how: Ended) {
        let counts = self.counts(call.due);
        match how {
            Ended::Again => {
                self.measured.transactions[call.transaction].retries += u64::from(counts);
                return self.to_send.push(terminal);
            }
            Ended::Done if counts => {
                let at = self.begin.elapsed().saturating_sub(self.shared.mix.warm_up);
                self.measured.done(call.transaction, call.due.elapsed(), at);
            }
            Ended::Failed(refusal) if counts => {
                self.measured.failed(call.transaction, &refusal.code, &refusal.message);
            }
            Ended::Done | Ended::Failed(_) => {}
        }
        self.under_way -= 1;
        self.shared.ended.fetch_add(1, Ordering::Relaxed);
        match self.interval {
            Some(_) => self.idle.push(terminal),
            None => self.think(terminal),
        }
    }

    /// Room to send matters only while something is left to be sent.
    fn watch_sending(&mut self, terminal: usize) -> anyhow::Result<()> {
        let one = &mut self.terminals[terminal];
        let is_blocked = one.wire.is_blocked();
        if std::mem::replace(&mut one.is_blocked, is_blocked) != is_blocked {
            let flags = if is_blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.poller, &one.wire, EventData::new_u64(terminal as u64), flags)?;
        }
        Ok(())
    }
}
