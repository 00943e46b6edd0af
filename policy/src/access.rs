//! Which processor starts a device (MP 1a, 1b): the one that runs the request, or always the same one.
//!
//! A funnel lets a driver without locks run on a multiprocessor: each request migrates to one processor and the driver
//! runs only there. It costs a migration for each request and makes that processor the bottleneck.

use crate::unit::ProcessorId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Only the master (MP 1a).
    Funnel,
    /// Each processor: 1b.
    #[default]
    Symmetric,
}

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

    /// The processor that starts a request that arrives on `initiator`.
    pub const fn starts(&self, initiator: ProcessorId) -> ProcessorId {
        match self.mode {
            Mode::Funnel => self.master,
            Mode::Symmetric => initiator,
        }
    }

    /// The one processor that starts all requests, if funnelled.
    pub const fn only(&self) -> Option<ProcessorId> {
        match self.mode {
            Mode::Funnel => Some(self.master),
            Mode::Symmetric => None,
        }
    }
}
