//! What travels from the wire to the device queue.

pub use policy::unit::JobId;
use policy::unit::{ByteRange, Class, Stability};

use crate::export::ExportNo;
use crate::frame::Frames;

/// What a request carries on its whole way, whatever it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub class: Class,
    /// Must it be durable before the reply?
    pub stability: Stability,
    /// To whom it is charged.
    pub job: JobId,
    /// What it is about; none where the volume knows.
    pub export: ExportNo,
}

impl Context {
    /// A client waits for it.
    pub fn synchronous(job: JobId) -> Self {
        Context { class: Class::Synchronous, stability: Stability::Unstable, job, export: ExportNo::NONE }
    }

    /// Nobody waits for it: write-back, read-ahead.
    pub fn asynchronous(job: JobId) -> Self {
        Context { class: Class::Asynchronous, ..Context::synchronous(job) }
    }

    /// The same, with another promise.
    pub fn with_stability(self, stability: Stability) -> Self {
        Context { stability, ..self }
    }

    /// The same, for what is asked of this export.
    pub fn of_export(self, export: ExportNo) -> Self {
        Context { export, ..self }
    }
}

/// What a device is asked to do. Ranges of reads and writes are whole blocks, but for the end of a device whose size
/// is no multiple of the block, and for writes of a part of a block to a file: the first byte then lies `at % 4096` bytes
/// into the first frame.
#[derive(Clone, Debug)]
pub enum Action {
    /// Fill the frames from the range.
    Read(ByteRange, Frames),
    /// Write the frames to the range.
    Write(ByteRange, Frames),
    /// Make all completed writes durable.
    Flush,
    /// Make the range read as zeroes.
    Zero {
        /// Which bytes.
        range: ByteRange,
        /// May the space be given back?
        may_release: bool,
    },
    /// The range is no longer needed and reads as zeroes.
    Discard(ByteRange),
}

impl Action {
    /// The bytes that it is about, if any.
    pub fn range(&self) -> Option<ByteRange> {
        match self {
            Action::Read(range, _) | Action::Write(range, _) | Action::Discard(range) => Some(*range),
            Action::Zero { range, .. } => Some(*range),
            Action::Flush => None,
        }
    }
}

/// One request to a device.
#[derive(Clone, Debug)]
pub struct Request {
    pub action: Action,
    /// For whom, how urgently, and with what promise.
    pub context: Context,
}
