//! Which processor starts a device (MP 1a, 1b): whichever runs the request, or always the same one.
//!
//! A funnel lets a driver that knows of no locks run on a multiprocessor: whoever wants the device goes to one processor
//! first, and the driver runs there alone. It costs a move for each request and makes that processor the narrow place.

use crate::unit::ProcessorId;

/// Who may start a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Only the master: 1a.
    Funnel,
    /// Each processor: 1b.
    #[default]
    Symmetric,
}

/// Which processor starts a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    mode: Mode,
    master: ProcessorId,
}

impl Access {
    /// Funnelled accesses are started by `master`.
    pub const fn new(mode: Mode, master: ProcessorId) -> Self {
        Access { mode, master }
    }

    /// Who starts a request that arrives on `initiator`.
    pub const fn starts(&self, initiator: ProcessorId) -> ProcessorId {
        match self.mode {
            Mode::Funnel => self.master,
            Mode::Symmetric => initiator,
        }
    }

    /// The one processor that starts all requests, if it is one.
    pub const fn only(&self) -> Option<ProcessorId> {
        match self.mode {
            Mode::Funnel => Some(self.master),
            Mode::Symmetric => None,
        }
    }
}
