//! What a processor records of what happens on it.

use machine::TickSource;

use super::Processor;
use crate::request::JobId;
use crate::trace::{Began, Event, SHORT_MAX};

/// What is done for nobody in particular.
pub(super) const NOBODY: JobId = JobId(0);

impl Processor {
    /// Stamps are in these units.
    #[inline]
    pub fn ticks(&self) -> u64 {
        match self.0.tick_source {
            TickSource::Counter => machine::counter(),
            TickSource::Clock => self.now().ns(),
        }
    }

    /// Records a moment; in place, with the stamp of what this processor recorded before it.
    #[inline]
    pub fn trace(&self, event: Event, job: JobId, a: u64, b: u64) {
        self.0.recorder.moment_by(event, job, a, short(b), || self.ticks());
    }

    /// Something begins that is recorded when it ends.
    #[inline]
    pub fn begin(&self, event: Event, job: JobId) -> Began {
        self.0.recorder.begin(event, job, || self.ticks())
    }

    /// It ends.
    #[inline]
    pub fn end(&self, began: Began, event: Event, job: JobId, a: u64, b: u64) {
        self.0.recorder.end(began, event, job, a, short(b), || self.ticks());
    }
}

/// As a record's short argument.
pub(super) fn short(value: u64) -> u32 {
    value.min(u64::from(SHORT_MAX)) as u32
}
