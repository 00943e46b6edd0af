//! Which processor takes a device's completion (MP 2a-1 to 2b-4).
//!
//! An interrupt on a busy processor holds up whoever runs there, so what counts is to hit one that is idle. The processor
//! that started the request usually is, as it waits for just this; and it has the request in its cache.

use crate::unit::ProcessorId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Always this one: 2a-1 when it is the first, 2a-2 when it is the second.
    Fixed(ProcessorId),
    /// The one that started the request: 2b-1.
    #[default]
    Initiator,
    /// One that is idle, else the one that runs what is least urgent: 2b-2.
    Idle,
    /// The one that runs what is most urgent: 2b-3. Only for comparison.
    Busiest,
    /// All of them; who gets the lock does the work: 2b-4. Only for comparison.
    All,
}

/// How urgent is what a processor runs? More is more urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency(pub u32);

/// What a processor does. Idle is less than anything that runs.
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
    /// Does the choice depend on what the processors do? Otherwise nobody need say it.
    pub const fn looks_at_activity(self) -> bool {
        matches!(self, Method::Idle | Method::Busiest)
    }

    /// Who takes the completion of a request that `initiator` started, when `processors[n]` is what processor `n` does.
    /// Among equals the initiator is preferred, then the first: that way the same facts have the same answer. A fixed
    /// processor that is not there leaves it to the initiator. O(n).
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
