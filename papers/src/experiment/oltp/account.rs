//! Accounting of the processor's time.

/// What the processor runs: each path has its own time, and the time of the trace records that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Application,
    /// The OLTP system in user mode: messages are edited.
    Edit,
    /// Supervisor call: an application calls the OLTP system.
    Ask,
    /// Supervisor call: the OLTP system dispatches an application.
    SubDispatch,
    /// Supervisor call: the OLTP system enters supervisor mode.
    ModeSwitch,
    /// The four supervisor calls that are rare.
    OtherCalls,
    /// Supervisor call: I/O is requested.
    IoRequest,
    IoCompletion,
    /// Saves the state of the interrupted program.
    StateSave,
    Dispatch,
    /// Routines of the OLTP system that run when an I/O has ended.
    ExitRoutine,
    /// The front-end processor's driver looks terminals up by their names.
    Names,
}

pub const PATHS: usize = 12;

impl Path {
    /// All paths and their names.
    pub const ALL: [(Path, &'static str); PATHS] = [
        (Path::Application, "applications"),
        (Path::Edit, "OLTP, user mode"),
        (Path::Ask, "call: application asks"),
        (Path::SubDispatch, "call: sub-dispatch"),
        (Path::ModeSwitch, "call: supervisor mode"),
        (Path::OtherCalls, "calls: others"),
        (Path::IoRequest, "I/O requests"),
        (Path::IoCompletion, "I/O completions"),
        (Path::StateSave, "state saved"),
        (Path::Dispatch, "dispatcher"),
        (Path::ExitRoutine, "exit routines"),
        (Path::Names, "terminal names"),
    ];

    pub fn is_user(self) -> bool {
        matches!(self, Path::Application | Path::Edit)
    }

    /// Is it I/O handling, as the paper counts it in 3 (4)?
    pub fn is_io(self) -> bool {
        matches!(self, Path::IoRequest | Path::IoCompletion | Path::StateSave)
    }
}

/// Sums from the start of a run, or over a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Time of each path without its records; nanoseconds.
    pub own_ns: [u64; PATHS],
    /// Time of the records that each path leaves; nanoseconds.
    pub trace_ns: [u64; PATHS],
    /// Nanoseconds without work.
    pub idle_ns: u64,
    pub times: [u64; PATHS],
    /// Interrupts: one may bring several completions.
    pub interrupts: u64,
    /// Trace records that each path left, in thousandths.
    pub records: [u64; PATHS],
    pub transactions: u64,
    /// Sum of the response times, nanoseconds.
    pub response_ns: u64,
}

impl Account {
    pub fn since(&self, earlier: &Account) -> Account {
        let each = |now: [u64; PATHS], then: [u64; PATHS]| std::array::from_fn(|path| now[path] - then[path]);
        Account {
            own_ns: each(self.own_ns, earlier.own_ns),
            trace_ns: each(self.trace_ns, earlier.trace_ns),
            idle_ns: self.idle_ns - earlier.idle_ns,
            times: each(self.times, earlier.times),
            interrupts: self.interrupts - earlier.interrupts,
            records: each(self.records, earlier.records),
            transactions: self.transactions - earlier.transactions,
            response_ns: self.response_ns - earlier.response_ns,
        }
    }

    pub fn total_ns(&self) -> u64 {
        self.own_ns.iter().sum::<u64>() + self.trace_ns.iter().sum::<u64>() + self.idle_ns
    }

    pub fn per_hour(&self) -> f64 {
        self.per_second(self.transactions) * 3600.0
    }

    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.total_ns().max(1) as f64
    }

    pub fn rate(&self, path: Path) -> f64 {
        self.per_second(self.times[path as usize])
    }

    /// Percent of the time of some paths, with or without their records.
    pub fn share(&self, records: bool, of: impl Fn(Path) -> bool) -> f64 {
        let chosen = Path::ALL.iter().filter(|(path, _)| of(*path)).map(|(path, _)| *path as usize);
        let ns: u64 = chosen.map(|path| self.own_ns[path] + if records { self.trace_ns[path] } else { 0 }).sum();
        self.percent(ns)
    }

    /// Percent of the time for trace records.
    pub fn trace_share(&self) -> f64 {
        self.percent(self.trace_ns.iter().sum())
    }

    /// Percent of the time without work.
    pub fn idle_share(&self) -> f64 {
        self.percent(self.idle_ns)
    }

    /// Nanoseconds as milliseconds a transaction.
    pub fn ms_a_transaction(&self, ns: u64) -> f64 {
        ns as f64 / 1e6 / self.transactions.max(1) as f64
    }

    fn percent(&self, ns: u64) -> f64 {
        ns as f64 * 100.0 / self.total_ns().max(1) as f64
    }
}
