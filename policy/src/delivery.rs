//! Which processor takes a device's completion (MP 2a-1 to 2b-4).
//!
//! An interrupt on a busy processor delays what runs there, so it should hit an idle one. The processor that started
//! the request usually is idle, since it waits for just this completion; and it has the request in its cache.

use crate::unit::ProcessorId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Always this one: 2a-1 for the first, 2a-2 for the second.
    Fixed(ProcessorId),
    /// The one that started the request: 2b-1.
    #[default]
    Initiator,
    /// One that is idle, else the one with the least urgent work: 2b-2.
    Idle,
    /// The one with the most urgent work: 2b-3. Only for comparison.
    Busiest,
    /// All of them; the one that gets the lock does the work: 2b-4. Only for comparison.
    All,
}

/// Urgency of what a processor runs; more is more urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency(pub u32);

/// What a processor does; idle sorts below anything that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    #[default]
    Idle,
    Running(Urgency),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    One(ProcessorId),
    All,
}

impl Method {
    /// Whether the choice depends on the activity of the processors; if not, they need not report it.
    pub const fn needs_activity(self) -> bool {
        matches!(self, Method::Idle | Method::Busiest)
    }

    /// The processor that takes the completion of a request that `initiator` started; `processors[n]` is the activity
    /// of processor `n`. Among equals the initiator is preferred, then the first, so that the choice is deterministic.
    /// A fixed processor that does not exist falls back to the initiator. O(n).
    pub fn target(self, initiator: ProcessorId, processors: &[Activity]) -> Target {
        let preferred = |best: Option<Activity>| {
            let best = best?;
            let is_best = |processor: &ProcessorId| processors.get(usize::from(processor.0)) == Some(&best);
            let first = || processors.iter().position(|activity| *activity == best);
            if is_best(&initiator) { Some(initiator) } else { first().map(|n| ProcessorId(n as u16)) }
        };
        let one = match self {
            Method::All => return Target::All,
            Method::Fixed(processor) => Some(processor).filter(|to| usize::from(to.0) < processors.len()),
            Method::Initiator => None,
            Method::Idle => preferred(processors.iter().min().copied()),
            Method::Busiest => preferred(processors.iter().max().copied()),
        };
        Target::One(one.unwrap_or(initiator))
    }
}
