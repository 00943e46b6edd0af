//! What the table of switches is made of.

use std::time::Duration;

use super::load::{Asks, Clients, Order, Sends, Speaks};

/// A switch, or several that are set together, under one load.
pub(super) struct Case {
    /// In tables: the switch, and which load where it has several.
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// What is compared: first the defaults, then what they are compared with. Each sets the same switches.
    pub(super) values: &'static [Value],
    pub(super) bed: Bed,
    pub(super) load: Load,
    /// A cell takes no less, however little is asked for: what is slow needs its time. Zero with little effort.
    pub(super) time_min: Duration,
    /// Each round is cut into so many, where a small difference matters: what lies close together in time meets the same
    /// host.
    pub(super) slices: u32,
    /// Rounds at most, where a round takes long.
    pub(super) rounds_max: u32,
}

/// One of the values that are compared.
pub(super) struct Value {
    pub(super) name: &'static str,
    /// Switches and their values, as `awase set` takes them.
    pub(super) set: &'static [(&'static str, &'static str)],
    /// Memory of the cache, where it is not that of the bed. Bytes.
    pub(super) memory: Option<u64>,
    /// How many times better the default is, as published.
    pub(super) paper: Option<Published>,
    /// Is the server's web page open, and asked for its numbers twice a second? Otherwise nothing is served to watch it.
    pub(super) watched: bool,
}

/// A ratio of a paper.
pub(super) struct Published {
    pub(super) of: Measure,
    pub(super) ratio: f64,
    pub(super) source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Requests a second.
    Rate,
    /// Processor time of a request.
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bed {
    /// A server whose switches are set while it runs.
    Server {
        /// Of its cache. Bytes.
        memory: u64,
    },
    /// A server for each cell, started with its switches: for those that apply to memory that is taken from then on.
    Fresh {
        /// Of its cache. Bytes.
        memory: u64,
    },
    /// A kernel in this process, on so many processors: for what no client can ask of a server.
    Kernel {
        /// How many, if there are.
        processors: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    Clients {
        measured: Clients,
        /// These are not, and disturb.
        beside: Option<Clients>,
        /// Is what they ask for cached before?
        cached: bool,
    },
    /// The test program of paper MP, a process on each processor: reads 4 KiB of a raw device, spins, and again.
    Iotest {
        /// A device that answers after so long; without, memory.
        latency: Option<Duration>,
        processes: u32,
        spin: Duration,
    },
    /// A reader of a modelled disk beside a writer whose blocks are synced every three seconds.
    Storm,
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
    bed: Bed,
    measured: Clients,
    cached: bool,
    values: &'static [Value],
) -> Case {
    let load = Load::Clients { measured, beside: None, cached };
    Case { name, about, values, bed, load, time_min: Duration::ZERO, slices: 1, rounds_max: u32::MAX }
}

pub(super) const fn reads(export: &'static str, bytes: u32, region: u64, depth: u32) -> Clients {
    let (protocol, asks, order, sends) = (Speaks::Nbd(export), Asks::Reads, Order::Random, Sends::Together);
    Clients { protocol, asks, bytes, order, from: 0, region, connections: 1, depth, sends }
}
