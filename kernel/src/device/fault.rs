//! Injects failures, for tests: at random from a seed, or the next N operations.

use machine::Errno;
use parking_lot::Mutex;
use policy::unit::ByteRange;

use super::{Device, DeviceFacts, DeviceRef, FoundData, Work};
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
}

/// Failures per thousand operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub read_permille: u16,
    pub write_permille: u16,
    pub flush_permille: u16,
    pub seed: u64,
}

/// Failed operations do not reach the device below.
pub struct Fault {
    below: DeviceRef,
    faults: Faults,
    state: Mutex<State>,
}

struct State {
    random: u64,
    /// Scheduled failures: operation, number, error.
    next: Vec<(Operation, u32, Errno)>,
}

impl Fault {
    pub fn new(below: DeviceRef, faults: Faults) -> Self {
        Fault { below, faults, state: Mutex::new(State { random: faults.seed, next: Vec::new() }) }
    }

    /// Makes the next `count` operations of a kind fail with `errno`.
    pub fn fail_next(&self, operation: Operation, count: u32, errno: Errno) {
        self.state.lock().next.push((operation, count, errno));
    }

    fn verdict(&self, action: &Action) -> Result<(), Errno> {
        let (operation, permille) = match action {
            Action::Read(..) => (Operation::Read, self.faults.read_permille),
            Action::Write(..) | Action::Zero { .. } | Action::Discard(..) => {
                (Operation::Write, self.faults.write_permille)
            }
            Action::Flush => (Operation::Flush, self.faults.flush_permille),
        };
        let mut state = self.state.lock();
        if let Some(at) = state.next.iter().position(|(of, _, _)| *of == operation) {
            let (_, left, errno) = &mut state.next[at];
            *left = left.saturating_sub(1);
            let (errno, spent) = (*errno, *left == 0);
            if spent {
                state.next.remove(at);
            }
            return Err(errno);
        }
        if permille > 0 && state.roll() % 1000 < u64::from(permille) { Err(Errno::IO) } else { Ok(()) }
    }
}

impl State {
    /// The next pseudo-random number (`SplitMix64`).
    fn roll(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Device for Fault {
    fn facts(&self) -> DeviceFacts {
        // Reads of holes come here, too.
        DeviceFacts { may_be_sparse: false, ..self.below.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        match self.verdict(&request.action) {
            Ok(()) => self.below.perform(cpu, request),
            Err(errno) => Box::pin(async move { Err(errno) }),
        }
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}
