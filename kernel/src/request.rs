//! Requests and their context, from the wire to the device queue.

use machine::Errno;
pub use policy::unit::JobId;
use policy::unit::{ByteRange, Class, Stability};

use crate::export::ExportNo;
use crate::frame::Frames;

/// Attributes that a request carries on its whole way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub class: Class,
    /// Must it be durable before the reply?
    pub stability: Stability,
    /// The job to charge.
    pub job: JobId,
    /// `NONE`: the volume's.
    pub export: ExportNo,
}

impl Context {
    /// A client waits for it.
    pub fn synchronous(job: JobId) -> Self {
        Context { class: Class::Synchronous, stability: Stability::Unstable, job, export: ExportNo::NONE }
    }

    /// No client waits for it: write-back, read-ahead.
    pub fn asynchronous(job: JobId) -> Self {
        Context { class: Class::Asynchronous, ..Context::synchronous(job) }
    }

    pub fn with_stability(self, stability: Stability) -> Self {
        Context { stability, ..self }
    }

    pub fn of_export(self, export: ExportNo) -> Self {
        Context { export, ..self }
    }
}

/// An operation on a device. Reads and writes are whole blocks, except at the end of a device whose size is not a
/// multiple of the block, and for writes of a partial block to a file: the first byte then lies `at % 4096` bytes into
/// the first frame.
#[derive(Clone, Debug)]
pub enum Action {
    Read(ByteRange, Frames),
    Write(ByteRange, Frames),
    /// Make all completed writes durable.
    Flush,
    /// Make the range read as zeroes.
    Zero {
        range: ByteRange,
        /// May the space be freed?
        may_release: bool,
    },
    /// The range is no longer needed. On success it reads as zeroes.
    Discard(ByteRange),
}

impl Action {
    /// The range affected, if any.
    pub fn range(&self) -> Option<ByteRange> {
        match self {
            Action::Read(range, _) | Action::Write(range, _) | Action::Discard(range) => Some(*range),
            Action::Zero { range, .. } => Some(*range),
            Action::Flush => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub action: Action,
    pub context: Context,
}

/// The result of a request that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was asked for need not have been done"]
pub enum Outcome {
    Done,
    /// The write is done, but not durable as was asked: that takes a flush.
    Unforced,
    /// The content was changed by others during the read: the data is stale and must be read again.
    Changed,
    /// The device has no such operation (zero, discard).
    Unsupported,
}

impl Outcome {
    /// For callers without an alternative.
    ///
    /// # Errors
    /// [`Errno::IO`] if changed, [`Errno::NOT_SUPPORTED`] if unsupported or not made durable.
    pub fn required(self) -> Result<(), Errno> {
        match self {
            Outcome::Done => Ok(()),
            Outcome::Changed => Err(Errno::IO),
            Outcome::Unforced | Outcome::Unsupported => Err(Errno::NOT_SUPPORTED),
        }
    }
}
