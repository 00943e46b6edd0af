//! Checks of the contract between two layers.

use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange};

use super::{Device, DeviceFacts, DeviceRef, FoundData, Work, contains};
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};

/// Asserts, in builds with debug assertions, that requests satisfy the contract of [`Device`].
pub struct Checked {
    below: DeviceRef,
}

impl Checked {
    pub fn new(below: DeviceRef) -> Self {
        Checked { below }
    }
}

impl Device for Checked {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn is_immediate(&self) -> bool {
        self.below.is_immediate()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        let facts = self.below.facts();
        if let Some(range) = request.action.range() {
            debug_assert!(contains(facts.size, range), "{range:?} outside {} bytes", facts.size);
            debug_assert!(range.len > 0, "an empty request");
        }
        match &request.action {
            Action::Read(range, frames) | Action::Write(range, frames) => {
                debug_assert!(range.at.0.is_multiple_of(BLOCK_BYTES), "{range:?} does not begin with a block");
                let whole = range.len.is_multiple_of(BLOCK_BYTES) || range.end() == ByteOffset(facts.size);
                debug_assert!(whole, "{range:?} does not end with a block");
                debug_assert_eq!(frames.len() as u64, range.len.div_ceil(BLOCK_BYTES));
            }
            _ => {}
        }
        debug_assert!(facts.writable || matches!(request.action, Action::Read(..) | Action::Flush));
        self.below.perform(cpu, request)
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        debug_assert!(contains(self.below.facts().size, within), "{within:?} outside the device");
        debug_assert!(within.len > 0 && runs_max > 0, "nothing to find");
        Box::pin(async move {
            let found = self.below.find_data(cpu, within, runs_max).await?;
            debug_assert!(found.runs.len() <= runs_max, "{} runs, not {runs_max}", found.runs.len());
            debug_assert!(within.at < found.end && found.end <= within.end(), "{within:?} up to {}", found.end);
            let ends = found.runs.iter().flat_map(|run| [run.at, run.end()]);
            debug_assert!(ends.chain([found.end]).is_sorted(), "{found:?} is not in order");
            debug_assert!(found.runs.iter().all(|run| run.len > 0 && within.at <= run.at), "{found:?} of {within:?}");
            Ok(found)
        })
    }
}
