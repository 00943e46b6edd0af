//! What disks do with their time: pure models, time in and time out, without clock or content.
//!
//! A [`Drive`] is a data sheet: a [`mechanical`] disk or a [`flash`] device. [`Drive::start`] gives a drive that is at
//! work: it is told when a command comes and tells when that is done, and where the time went. The drives that are
//! known are in `drive/catalog.rs`, each with its source.

mod catalog;
pub mod flash;
pub mod mechanical;

use std::time::Duration;

use policy::unit::{ByteRange, Instant};

use flash::{Channels, Flash};
use mechanical::{Mechanical, Mechanism};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Read,
    /// Writes; done when the data are on the medium, or where a power cut does not reach them.
    Write,
}

/// When a command was done, and where the time went. What is left of it went into the command itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// When the drive began with it: when it came, or when the one before was done.
    pub began: Instant,
    pub done: Instant,
    /// Of it, moving the arm.
    pub seek: Duration,
    /// Of it, waiting for the disk to turn to a sector.
    pub rotation: Duration,
    /// Of it, moving data between medium, buffer and host.
    pub transfer: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drive {
    /// With moving parts.
    Mechanical(Mechanical),
    /// Without.
    Flash(Flash),
}

#[derive(Clone, Debug)]
pub enum Running {
    /// With moving parts.
    Mechanical(Mechanism),
    /// Without.
    Flash(Channels),
}

impl Drive {
    /// The drives that are known.
    pub fn all() -> [Drive; 5] {
        catalog::ALL
    }

    /// The drive of that name.
    pub fn named(name: &str) -> Option<Drive> {
        Self::all().into_iter().find(|drive| drive.name() == name)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Drive::Mechanical(model) => model.name,
            Drive::Flash(model) => model.name,
        }
    }

    /// The data sheet or paper that its numbers are from.
    pub fn source(&self) -> &'static str {
        match self {
            Drive::Mechanical(model) => model.source,
            Drive::Flash(model) => model.source,
        }
    }

    /// Bytes that it holds.
    pub fn size(&self) -> u64 {
        match self {
            Drive::Mechanical(model) => model.size(),
            Drive::Flash(model) => model.size,
        }
    }

    /// Puts it to work: with the arm at the start, nothing in its buffer and nothing under way.
    pub fn start(self) -> Running {
        match self {
            Drive::Mechanical(model) => Running::Mechanical(Mechanism::new(model)),
            Drive::Flash(model) => Running::Flash(Channels::new(model)),
        }
    }
}

impl Running {
    /// A command comes at `now`; commands come in order of time.
    pub fn serve(&mut self, now: Instant, access: Access, range: ByteRange) -> Timing {
        match self {
            Running::Mechanical(mechanism) => mechanism.serve(now, access, range),
            Running::Flash(channels) => channels.serve(now, access, range),
        }
    }

    /// A command without data, such as a flush, comes at `now`.
    pub fn serve_without_data(&mut self, now: Instant) -> Timing {
        match self {
            Running::Mechanical(mechanism) => mechanism.serve_without_data(now),
            Running::Flash(channels) => channels.serve_without_data(now),
        }
    }
}
