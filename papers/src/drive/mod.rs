//! Where the time of disks goes: pure models, time in and time out, without clock or content.
//!
//! A [`Drive`] is a data sheet: a [`mechanical`] disk or a [`flash`] device. [`Drive::start`] returns one in operation:
//! it takes commands, each with its time, and returns when each is done and where the time went. The mechanical disks
//! of 1990 are sheets in `papers/parameters`.

pub mod flash;
pub mod mechanical;

use std::time::Duration;

use policy::unit::{ByteRange, Instant};

use flash::{Channels, Flash};
use mechanical::{Mechanical, Mechanism};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Read,
    /// Done when the data are on the medium, or where they survive a power cut.
    Write,
}

/// When a command was done, and where the time went. The rest went into the command itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// When the drive began with it: at its arrival, or when the one before was done.
    pub began: Instant,
    pub done: Instant,
    /// Time to move the arm.
    pub seek: Duration,
    /// Time to wait for the rotation to a sector.
    pub rotation: Duration,
    /// Time to move data between medium, buffer and host.
    pub transfer: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drive {
    Mechanical(Mechanical),
    Flash(Flash),
}

#[derive(Clone, Debug)]
pub enum Running {
    Mechanical(Mechanism),
    Flash(Channels),
}

impl Drive {
    pub fn size(&self) -> u64 {
        match self {
            Drive::Mechanical(model) => model.size(),
            Drive::Flash(model) => model.size,
        }
    }

    /// Starts it at rest: the arm at the start, an empty buffer, nothing in flight.
    pub fn start(self) -> Running {
        match self {
            Drive::Mechanical(model) => Running::Mechanical(Mechanism::new(model)),
            Drive::Flash(model) => Running::Flash(Channels::new(model)),
        }
    }
}

impl Running {
    /// Starts a command at `now`; commands arrive in order of time.
    pub fn serve(&mut self, now: Instant, access: Access, range: ByteRange) -> Timing {
        match self {
            Running::Mechanical(mechanism) => mechanism.serve(now, access, range),
            Running::Flash(channels) => channels.serve(now, access, range),
        }
    }
}
