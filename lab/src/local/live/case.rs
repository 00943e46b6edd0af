//! Types of the table of switches.

use std::time::Duration;

use super::super::Protocol;
use super::super::clients::Clients;
use crate::measure::load::{Load, Operation, Order};

/// A switch, or several that are set in one step, under one load.
pub(super) struct Case {
    /// Name in tables: the switch, and the load if the switch has several.
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Values that are compared, the defaults first. Each sets the same switches.
    pub(super) values: &'static [Value],
    pub(super) fixture: Fixture,
    pub(super) work: Work,
    /// Least time of a cell, even with a shorter run: slow effects need their time. Zero with little effort.
    pub(super) time_min: Duration,
    /// Slices of a round. More slices show smaller differences: close measurements meet the same state of the host.
    pub(super) slices: u32,
    /// Repetitions at most, for cases whose rounds take long.
    pub(super) rounds_max: u32,
}

pub(super) struct Value {
    pub(super) name: &'static str,
    /// Switches and their values, as `awase set` takes them.
    pub(super) set: &'static [(&'static str, &'static str)],
    /// Memory of the cache, if not the fixture's. Bytes.
    pub(super) memory: Option<u64>,
    /// How many times better the default is, as published.
    pub(super) paper: Option<Published>,
    /// Is the server's web page open, and asked for its numbers twice a second? Otherwise the page is not served.
    pub(super) watched: bool,
}

/// A ratio published in a paper.
pub(super) struct Published {
    pub(super) of: Measure,
    pub(super) ratio: f64,
    pub(super) source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Rate,
    /// CPU time of a request.
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fixture {
    /// A server whose switches are set at run time.
    Server {
        /// Memory of its cache. Bytes.
        memory: u64,
    },
    /// A server for each cell, started with its switches: for those that apply to memory as it is taken.
    Fresh {
        /// Memory of its cache. Bytes.
        memory: u64,
    },
    /// A kernel in this process: for what no client can ask of a server.
    Kernel {
        /// Limited to what the host has.
        processors: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    Clients {
        measured: Clients,
        /// Concurrent clients that are not measured, to disturb.
        others: Option<Clients>,
        /// Is what they ask for cached before?
        cached: bool,
    },
    /// The test program of paper MP, a process on each processor: in a loop, reads 4 KiB of a raw device, then spins.
    Iotest {
        /// A device that answers after this time; `None`: memory.
        latency: Option<Duration>,
        processes: u32,
        spin: Duration,
    },
    /// A reader of a modelled disk, with a writer whose blocks are synced every two seconds.
    Storm,
    /// A writer of 8 KiB in order to a modelled disk, with a flush after every `a_flush` writes.
    Appends { a_flush: u64 },
}

/// As many as `load.depth` says.
pub(super) const DEPTH: u32 = 0;

/// As many as `load.clients` says.
pub(super) const CLIENTS: u32 = 0;

pub(super) const fn value(name: &'static str, set: &'static [(&'static str, &'static str)]) -> Value {
    Value { name, set, memory: None, paper: None, watched: false }
}

pub(super) const fn published(value: Value, of: Measure, ratio: f64, source: &'static str) -> Value {
    Value { paper: Some(Published { of, ratio, source }), ..value }
}

pub(super) const fn case(
    name: &'static str,
    about: &'static str,
    fixture: Fixture,
    measured: Clients,
    cached: bool,
    values: &'static [Value],
) -> Case {
    let work = Work::Clients { measured, others: None, cached };
    Case { name, about, values, fixture, work, time_min: Duration::ZERO, slices: 1, rounds_max: u32::MAX }
}

/// Random reads of `bytes` in the first `region` bytes of an export.
pub(super) const fn reads(export: &'static str, bytes: u32, region: u64, in_flight: u32) -> Clients {
    let load = Load::new(Operation::Read(Order::Random), 4, in_flight);
    let load = Load { request_bytes: bytes, file_bytes: region, shared: true, ..load };
    Clients { protocol: Protocol::Nbd(export), load }
}

impl Clients {
    pub(super) const fn with(self, load: Load) -> Clients {
        Clients { load, ..self }
    }
}
