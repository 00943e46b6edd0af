//! Checks of the contract between two layers.

use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange};

use super::{Device, DeviceFacts, DeviceRef, SeekTarget, Work, contains};
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

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        self.below.seek(cpu, at, target)
    }
}
