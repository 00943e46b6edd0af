//! The table of switches, `cases.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::super::Protocol;
use super::super::clients::Clients;
use crate::measure::load::{Load, Operation, Order, Sends};

pub(super) static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("cases.toml")).unwrap_or_else(|error| panic!("cases.toml: {error}"));
    let of_switch = |Switch { source, values, case }| {
        let with = move |case| Case { values: Vec::clone(&values), source: Option::clone(&source), ..case };
        Vec::into_iter(case).map(with)
    };
    file.switch.into_iter().flat_map(of_switch).collect()
});

#[derive(Deserialize)]
struct File {
    switch: Vec<Switch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    source: Option<String>,
    values: Vec<Value>,
    case: Vec<Case>,
}

/// A switch, or several that are set in one step, under one load.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    /// Name in tables: the switch, and the load if the switch has several.
    pub(super) name: String,
    pub(super) about: String,
    /// Values that are compared, the defaults first. Each sets the same switches.
    #[serde(skip)]
    pub(super) values: Vec<Value>,
    /// Where the paper's ratios stand.
    #[serde(skip)]
    pub(super) source: Option<String>,
    pub(super) fixture: Fixture,
    pub(super) work: Work,
    /// Least time of a cell, even with a shorter run: slow effects need their time. Zero with little effort.
    #[serde(default)]
    pub(super) time_min_ms: u64,
    /// Slices of a round. More slices show smaller differences: close measurements meet the same state of the host.
    #[serde(default = "one")]
    pub(super) slices: u32,
    /// Repetitions at most, for cases whose rounds take long.
    #[serde(default = "any_number")]
    pub(super) rounds_max: u32,
}

fn one() -> u32 {
    1
}

fn any_number() -> u32 {
    u32::MAX
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Value {
    pub(super) name: String,
    /// Switches and their values, as `awase set` takes them.
    pub(super) set: BTreeMap<String, String>,
    /// Memory of the cache, if not the fixture's. Bytes.
    pub(super) memory: Option<u64>,
    /// With the default and with this value, as published.
    pub(super) paper: Option<Published>,
    /// Is the server's web page open, and asked for its numbers twice a second? Otherwise the page is not served.
    pub(super) watched: bool,
}

impl Value {
    pub(super) fn switches(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(switch, to)| (switch.as_str(), to.as_str()))
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Published {
    Rate([f64; 2]),
    /// CPU time of a request.
    Cpu([f64; 2]),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fixture {
    /// A server whose switches are set at run time.
    Server {
        /// Memory of its cache.
        memory_mib: u64,
    },
    /// A server for each cell, started with its switches: for those that apply to memory as it is taken.
    Fresh {
        /// Memory of its cache.
        memory_mib: u64,
    },
    /// A kernel in this process: for what no client can ask of a server.
    Kernel {
        /// Limited to what the host has.
        processors: u16,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Work {
    Clients {
        #[serde(deserialize_with = "clients")]
        measured: Clients,
        /// Concurrent clients that are not measured, to disturb.
        #[serde(default, deserialize_with = "other_clients")]
        others: Option<Clients>,
        /// Is what they ask for cached before?
        #[serde(default)]
        cached: bool,
    },
    /// The test program of paper MP, a process on each processor: in a loop, reads 4 KiB of a raw device, then spins.
    Iotest {
        /// When the device answers; 0: at once, as memory.
        #[serde(default)]
        latency_us: u64,
        processes: u32,
        #[serde(default)]
        spin_us: u64,
    },
    /// A reader of a modelled disk, with a writer whose blocks are synced every two seconds.
    Storm,
    /// A writer of 8 KiB in order to a modelled disk, with a flush after every `a_flush` writes.
    Appends { a_flush: u64 },
}

/// Clients in the table: random reads, unless something else is said.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The export of NBD; without one, the file of NFS.
    export: Option<String>,
    operation: Option<Operation>,
    /// Of a request.
    bytes: u32,
    /// MiB in front of the region, and MiB of it.
    #[serde(default)]
    from: u64,
    region: u64,
    #[serde(default)]
    in_flight: u32,
    #[serde(default = "one")]
    connections: u32,
    /// As many as `load.clients` says.
    #[serde(default)]
    are_several: bool,
    /// Work on a reply before the next request is sent, each by itself; otherwise they are sent in batches.
    work_us: Option<u64>,
}

/// As many as `load.depth` says.
pub(super) const DEPTH: u32 = 0;

/// As many as `load.clients` says.
pub(super) const CLIENTS: u32 = 0;

fn clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Clients, D::Error> {
    let asked = Asked::deserialize(deserializer)?;
    let load = Load {
        request_bytes: asked.bytes,
        from: asked.from << 20,
        file_bytes: asked.region << 20,
        shared: true,
        connections: if asked.are_several { CLIENTS } else { asked.connections },
        sends: asked.work_us.map_or(Sends::Batched, |us| Sends::Single { work: Duration::from_micros(us) }),
        ..Load::new(asked.operation.unwrap_or(Operation::Read(Order::Random)), 0, asked.in_flight)
    };
    let protocol = asked.export.map_or(Protocol::Nfs, |export| Protocol::Nbd(export.leak()));
    Ok(Clients { protocol, load })
}

fn other_clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Clients>, D::Error> {
    clients(deserializer).map(Some)
}
