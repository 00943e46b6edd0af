//! The mainframe: one processor, its dispatcher and I/O supervisor, and the OLTP system, which is one program to them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::model::{Simulation, Virtual};
use policy::quantum::{Mode, Quantum};
use policy::unit::Instant;

use super::account::{Account, Path};
use super::costs::Costs;
use super::devices::{ANSWERS, Channels, Devices, JOURNAL, MESSAGES, SYSTEM, Used};
use super::modules::Modules;
use super::trace::Trace;
use super::workload::{Mix, Next, Oltp, Phase, Region, Replayed};

/// The six techniques of the paper's section 4, in its order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Techniques {
    /// (1) Completions are taken after a quantum.
    pub quantum: Mode,
    /// (2) Trace records are merged, and made in place.
    pub is_trace_thinned: bool,
    /// (3) Exit routines run at once.
    pub is_exit_immediate: bool,
    /// (4) The call for supervisor mode is tested for first.
    pub is_mode_call_first: bool,
    pub has_binary_names: bool,
    /// (6) Consecutive calls are handled without returning in between.
    pub looks_ahead: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Transactions that the front-end processor replays.
    pub transactions: u64,
    pub mix: Mix,
}

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Between the first and the last tenth of the transactions.
    pub account: Account,
    /// By device, from the start on.
    pub used: Vec<Used>,
    pub time: Duration,
    /// Modules that had to be loaded, a transaction.
    pub loads: f64,
}

/// Runs the load; returns its account.
pub fn run(costs: &Costs, techniques: Techniques, load: Load, seed: u64) -> Account {
    watch(costs, techniques, load, seed).account
}

/// Runs the load, and counts what its devices do.
pub fn watch(costs: &Costs, techniques: Techniques, load: Load, seed: u64) -> Ran {
    let simulation = Simulation::new(seed);
    let channels = Channels::new(&simulation);
    let messages = load.mix.replay(load.transactions, costs.terminals, |bound| simulation.below(bound));
    let processor = Processor {
        time: (*simulation).clone(),
        oltp: Oltp::new(costs.regions, messages),
        devices: Devices::new(costs.disks, costs.devices, &simulation, channels.signals.clone()),
        quantum: Quantum::new(techniques.quantum),
        modules: Modules::new(costs.modules),
        trace: Trace::new(costs.record, techniques.is_trace_thinned, costs.records),
        costs: costs.clone(),
        techniques,
        transactions: load.transactions,
        channels,
        account: Account::default(),
        owed_ns: 0,
        exits: VecDeque::new(),
        stacked: Vec::new(),
        work: None,
        requests: 0,
    };
    simulation.complete(processor.serve()).unwrap_or_default()
}

/// The OLTP system's work until its next I/O request.
struct Work {
    region: usize,
    device: usize,
    parts: VecDeque<Part>,
}

#[derive(Clone, Copy)]
struct Part {
    path: Path,
    own_ns: u64,
    trace_ns: u64,
}

struct Processor {
    time: Virtual,
    costs: Costs,
    techniques: Techniques,
    transactions: u64,
    channels: Rc<Channels>,
    devices: Devices,
    quantum: Quantum,
    trace: Trace,
    modules: Modules,
    oltp: Oltp,
    account: Account,
    /// Time spent with interrupts disabled that has not passed yet, nanoseconds.
    owed_ns: u64,
    /// Regions whose I/O has ended, as exit routines that wait to be dispatched.
    exits: VecDeque<usize>,
    /// Requests that wait for the end of the quantum: device and region.
    stacked: Vec<(usize, usize)>,
    /// The interrupted program's remaining work.
    work: Option<Work>,
    /// Since the quantum policy was last called.
    requests: u64,
}

impl Processor {
    async fn serve(mut self) -> Ran {
        // During the last tenth, regions begin to be empty.
        let (from, to) = (self.transactions / 10, self.transactions * 9 / 10);
        let mut start = None;
        while self.account.transactions < to {
            if start.is_none() && self.account.transactions >= from {
                start = Some(self.account);
            }
            if let Some(region) = self.exits.pop_front() {
                self.charge(Path::Dispatch);
                self.run_exit_routine(region);
                self.look_for_interrupt().await;
            } else if self.work.is_some() || !self.oltp.ready.is_empty() {
                self.charge(Path::Dispatch);
                let quantum = self.quantum.on_time_slice(self.now(), std::mem::take(&mut self.requests));
                if quantum.is_zero() { self.run_enabled().await } else { self.run_suppressed(quantum).await }
            } else {
                self.wait_for_work().await;
            }
        }
        Ran {
            account: self.account.since(&start.unwrap_or_default()),
            used: self.devices.used(),
            time: self.now() - Instant::ZERO,
            loads: self.modules.loads() as f64 / self.account.transactions.max(1) as f64,
        }
    }

    /// Runs the OLTP system until an I/O interrupt, or until it has nothing to do.
    async fn run_enabled(&mut self) {
        while let Some(mut work) = self.work.take().or_else(|| self.next_work(true)) {
            let starts = self.now();
            let left_ns: u64 = work.parts.iter().map(|part| part.own_ns + part.trace_ns).sum();
            self.owed_ns = 0;
            let is_interrupted = self.channels.interrupted_before(starts + Duration::from_nanos(left_ns)).await;
            if is_interrupted {
                // Completions during disabled interrupts have waited.
                self.time.sleep_until(starts).await;
            }
            self.account_for(&mut work, self.time.now().since(starts));
            if is_interrupted {
                self.work = Some(work);
                self.charge(Path::StateSave);
                self.take_completions();
                return;
            }
            self.devices.issue(work.device, work.region, self.time.now());
        }
        self.settle().await;
    }

    /// Runs the OLTP system for a quantum, or until it has nothing to do; then completions are taken, without a
    /// program's state to save, and the requests stacked meanwhile are issued in a batch.
    async fn run_suppressed(&mut self, quantum: Duration) {
        let end = self.now() + quantum;
        while self.now() < end {
            let Some(mut work) = self.work.take().or_else(|| self.next_work(false)) else { break };
            let spent_ns = work.parts.iter().map(|part| part.own_ns + part.trace_ns).sum();
            self.account_for(&mut work, Duration::from_nanos(spent_ns));
            self.owed_ns += spent_ns;
            self.stacked.push((work.device, work.region));
        }
        self.settle().await;
        self.take_completions();
        self.issue_stacked();
    }

    /// Accounts for `time` of the work.
    fn account_for(&mut self, work: &mut Work, time: Duration) {
        let mut ns = time.as_nanos() as u64;
        while let Some(part) = work.parts.front_mut() {
            let path = part.path as usize;
            let (own_ns, trace_ns) = (part.own_ns.min(ns), part.trace_ns.min(ns.saturating_sub(part.own_ns)));
            self.account.own_ns[path] += own_ns;
            self.account.trace_ns[path] += trace_ns;
            ns -= own_ns + trace_ns;
            part.own_ns -= own_ns;
            part.trace_ns -= trace_ns;
            if part.own_ns + part.trace_ns > 0 {
                return;
            }
            work.parts.pop_front();
        }
    }

    /// Idle until an I/O ends.
    async fn wait_for_work(&mut self) {
        self.settle().await;
        let since = self.time.now();
        self.channels.interrupted_before(Instant::from_ns(u64::MAX)).await;
        self.account.idle_ns += self.time.now().since(since).as_nanos() as u64;
        self.take_completions();
        self.issue_stacked();
    }

    /// An exit routine is a program: it can be interrupted unless interrupts are suppressed.
    async fn look_for_interrupt(&mut self) {
        if self.techniques.quantum != Mode::Off {
            return;
        }
        let end = self.now();
        self.owed_ns = 0;
        if self.channels.interrupted_before(end).await {
            self.time.sleep_until(end).await;
            self.charge(Path::StateSave);
            self.take_completions();
        }
    }

    /// Takes all pending completions.
    fn take_completions(&mut self) {
        let mut is_first = true;
        while let Some(device) = self.channels.take() {
            self.account.interrupts += u64::from(std::mem::take(&mut is_first));
            let own_ns = self.costs.completion_ns(self.devices.kind(device));
            let (records, trace_ns) = self.trace.of(Path::IoCompletion);
            self.charge_part(Part { path: Path::IoCompletion, own_ns, trace_ns }, records);
            let Some(region) = self.devices.end(device, self.now()) else { continue };
            if self.techniques.is_exit_immediate {
                self.run_exit_routine(region);
            } else {
                self.exits.push_back(region);
            }
        }
    }

    fn issue_stacked(&mut self) {
        if self.stacked.is_empty() {
            return;
        }
        let (records, trace_ns) = self.trace.of_records(Path::IoRequest, self.costs.pass_records);
        self.charge_part(Part { path: Path::IoRequest, own_ns: self.costs.pass_ns, trace_ns }, records);
        let at = self.now();
        for (device, region) in std::mem::take(&mut self.stacked) {
            self.devices.issue(device, region, at);
        }
    }

    fn run_exit_routine(&mut self, region: usize) {
        self.charge(Path::ExitRoutine);
        self.oltp.ready.push_back(region);
    }

    /// The OLTP system's next work, for the next ready region.
    fn next_work(&mut self, passes_channels: bool) -> Option<Work> {
        let region = self.oltp.ready.pop_front()?;
        let mut work = Work { region, device: MESSAGES, parts: VecDeque::with_capacity(16) };
        let phase = self.oltp.regions[region].phase;
        match phase {
            Phase::Free => self.read(&mut work),
            Phase::Reading if !self.begin(&mut work) => return None,
            Phase::Reading => {}
            Phase::Calling => self.go_on(&mut work),
            Phase::Journal => self.answer(&mut work),
            Phase::Replying => {
                self.account.transactions += 1;
                self.account.response_ns += self.now().ns() - self.oltp.regions[region].since_ns;
                self.read(&mut work);
            }
        }
        self.request(&mut work, passes_channels);
        Some(work)
    }

    fn read(&mut self, work: &mut Work) {
        self.oltp.regions[work.region].phase = Phase::Reading;
        work.device = MESSAGES;
    }

    /// Takes a message; false if all have been replayed.
    fn begin(&mut self, work: &mut Work) -> bool {
        let Some(Replayed { transaction, terminal }) = self.oltp.messages.pop_front() else { return false };
        let time = &self.time;
        let loads = (0..self.costs.other_calls).filter(|_| self.modules.run(|| time.fraction())).count() as u64;
        self.oltp.regions[work.region] = Region {
            phase: Phase::Calling,
            transaction: Some(transaction),
            terminal,
            since_ns: self.now().ns(),
            loads,
        };
        self.find_terminal(work, self.costs.searches_in);
        self.add(work, Path::Edit);
        self.go_on(work);
        true
    }

    /// The application runs until a call of it needs a disk.
    fn go_on(&mut self, work: &mut Work) {
        loop {
            let region = &mut self.oltp.regions[work.region];
            if region.loads > 0 {
                region.loads -= 1;
                work.device = SYSTEM;
                return;
            }
            let Some(transaction) = region.transaction.as_mut() else { return self.read(work) };
            let application_ns = transaction.application_ns;
            let next = transaction.next();
            match next {
                Next::Io => {
                    work.device = self.devices.any_disk();
                    return;
                }
                Next::Call => {
                    self.add(work, Path::SubDispatch);
                    self.add_part(work, Path::Application, application_ns);
                    self.add(work, Path::Ask);
                }
                Next::ConsecutiveCall if self.techniques.looks_ahead => {}
                Next::ConsecutiveCall => {
                    self.add(work, Path::SubDispatch);
                    self.add(work, Path::Ask);
                }
                Next::Commit => {
                    region.phase = Phase::Journal;
                    work.device = JOURNAL;
                    return;
                }
            }
        }
    }

    fn answer(&mut self, work: &mut Work) {
        self.oltp.regions[work.region].phase = Phase::Replying;
        work.device = ANSWERS;
        for _ in 0..self.costs.other_calls {
            self.add(work, Path::OtherCalls);
        }
        self.add(work, Path::Edit);
        self.find_terminal(work, self.costs.searches_out);
    }

    /// To request an I/O the OLTP system enters supervisor mode.
    fn request(&mut self, work: &mut Work, passes_channels: bool) {
        self.requests += 1;
        if self.techniques.is_mode_call_first {
            self.add_part(work, Path::ModeSwitch, self.costs.mode_first_ns);
        } else {
            self.add(work, Path::ModeSwitch);
        }
        self.add(work, Path::IoRequest);
        if passes_channels {
            let (records, trace_ns) = self.trace.of_records(Path::IoRequest, self.costs.pass_records);
            work.parts.push_back(Part { path: Path::IoRequest, own_ns: self.costs.pass_ns, trace_ns });
            self.account.records[Path::IoRequest as usize] += records;
        }
    }

    /// The terminals' table is searched from its start, `searches` times a message.
    fn find_terminal(&mut self, work: &mut Work, searches: u64) {
        let terminal = self.oltp.regions[work.region].terminal;
        let compared = if self.techniques.has_binary_names { 0 } else { terminal };
        self.add_part(work, Path::Names, searches * compared * self.costs.compare_ns);
    }

    fn add(&mut self, work: &mut Work, path: Path) {
        let (records, trace_ns) = self.trace.of(path);
        let ahead_ns = if path == Path::SubDispatch && self.techniques.looks_ahead { self.costs.look_ns } else { 0 };
        let own_ns = self.costs.own_ns[path as usize] + ahead_ns;
        work.parts.push_back(Part { path, own_ns, trace_ns });
        self.account.records[path as usize] += records;
        self.account.times[path as usize] += 1;
    }

    fn add_part(&mut self, work: &mut Work, path: Path, own_ns: u64) {
        work.parts.push_back(Part { path, own_ns, trace_ns: 0 });
        self.account.times[path as usize] += 1;
    }

    /// Runs a path with interrupts disabled.
    fn charge(&mut self, path: Path) {
        let (records, trace_ns) = self.trace.of(path);
        self.charge_part(Part { path, own_ns: self.costs.own_ns[path as usize], trace_ns }, records);
    }

    fn charge_part(&mut self, part: Part, records: u64) {
        let path = part.path as usize;
        self.account.own_ns[path] += part.own_ns;
        self.account.trace_ns[path] += part.trace_ns;
        self.account.times[path] += 1;
        self.account.records[path] += records;
        self.owed_ns += part.own_ns + part.trace_ns;
    }

    /// Now, including the time that was spent and has not passed yet.
    fn now(&self) -> Instant {
        self.time.now() + Duration::from_nanos(self.owed_ns)
    }

    async fn settle(&mut self) {
        let then = self.now();
        self.owed_ns = 0;
        self.time.sleep_until(then).await;
    }
}
