//! Load on a server: connections with a given number of requests in flight, each reissued as soon as it is answered.
//! One thread drives any number of connections with little work: one receive and one send for each batch of replies.

mod connection;
mod drive;
mod files;
pub mod nbd;
mod nfs;
mod plan;
mod prepare;
mod rpc;
mod session;

use std::time::Duration;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde::Deserialize;

pub use drive::{Drive, Stop, drive};
pub use nbd::Address;
pub use prepare::{prepare, warm};
pub use session::{Endpoint, Session};

/// A request without a reply for longer counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Slots of a connection: a slot's number is the low byte of its calls' identifiers.
pub const IN_FLIGHT_MAX: u32 = 256;

/// Significant digits of latencies.
const DIGITS: u8 = 3;

#[derive(Clone, Debug)]
pub enum Target {
    Nbd { at: Address, export: String },
    Nfs(Endpoint),
}

/// Where the next request of a connection goes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Behind the last one; from the start again at the end of the file.
    Sequential,
    Random,
}

/// When what is written becomes durable.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Stability {
    /// Before each reply (NFS: `stable_how`, RFC 1813, 3.3.7).
    FileSync,
    /// By a COMMIT after every `commit_bytes`, when all writes before it are answered, and by one at the end.
    Unstable {
        /// Bytes between two COMMITs.
        commit_bytes: u64,
    },
    /// By a flush after every `writes` writes, which counts into the last one's latency; 0: none. NFS: FILE_SYNC.
    Flushed { writes: u32 },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads within the file.
    Read(Order),
    /// Alternating reads and attributes of the file.
    ReadAndAttributes(Order),
    /// Writes within the file.
    Overwrite(Order, Stability),
    /// Writes at the end of the file, which is empty at first.
    Extend(Stability),
    /// CREATE of a new file, then its REMOVE; each slot has a name of its own.
    CreateRemove,
}

impl Operation {
    /// Does it use the content of the files?
    pub fn needs_content(self) -> bool {
        !matches!(self, Operation::Extend(_) | Operation::CreateRemove)
    }
}

/// How a client sends its next requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sends {
    /// All at once that a batch of replies makes room for: the most that a server can be asked for.
    #[default]
    Batched,
    /// One by one, each after as much work on a reply as fio and libnbd do.
    Single { work: Duration },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub operation: Operation,
    pub request_bytes: u32,
    /// Start of the region in a file.
    #[serde(skip)]
    pub from: u64,
    /// Length of the region in a file.
    #[serde(default = "file_bytes")]
    pub file_bytes: u64,
    #[serde(default = "one")]
    pub connections: u32,
    /// Do all connections use the same files? In order, each then begins in its own part.
    #[serde(skip)]
    pub shared: bool,
    /// Files of a connection; its requests go to one after another.
    #[serde(default = "one")]
    pub files: u32,
    pub in_flight: u32,
    #[serde(skip)]
    pub sends: Sends,
}

const fn file_bytes() -> u64 {
    256 << 20
}

const fn one() -> u32 {
    1
}

impl Load {
    /// One connection with one file of 256 MiB.
    pub const fn new(operation: Operation, request_kib: u32, in_flight: u32) -> Load {
        Load {
            operation,
            request_bytes: request_kib << 10,
            from: 0,
            file_bytes: file_bytes(),
            connections: one(),
            shared: false,
            files: one(),
            in_flight,
            sends: Sends::Batched,
        }
    }

    /// Its region once, in order, so that a server may cache it.
    #[must_use]
    pub fn reading_once(self) -> Load {
        Load { operation: Operation::Read(Order::Sequential), in_flight: 4, sends: Sends::Batched, ..self }
    }

    /// Checks that the load can be driven.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<()> {
        let bytes = u64::from(self.request_bytes);
        ensure!(bytes > 0 && bytes.is_multiple_of(4), "requests are of a multiple of 4 bytes");
        ensure!(self.file_bytes >= bytes && self.file_bytes.is_multiple_of(bytes), "files are of whole requests");
        ensure!((1..=IN_FLIGHT_MAX).contains(&self.in_flight), "1 to {IN_FLIGHT_MAX} requests in flight");
        ensure!(self.connections > 0 && self.files > 0, "at least one connection and one file");
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After the measured time, and a warm-up before it.
    For { warm: Duration, measured: Duration },
    /// After one pass of each connection through its files.
    OnePass,
    /// When [`Stop::over`] is set.
    UntilOver,
}

#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies(Histogram::new(DIGITS).expect("a number of digits that it takes"))
    }
}

impl Latencies {
    pub fn record(&mut self, took: Duration) {
        // It grows as needed, and its range is hours.
        let _ = self.0.record((took.as_nanos() as u64).max(1));
    }

    pub fn add(&mut self, others: &Latencies) {
        let _ = self.0.add(&others.0);
    }

    /// This percentile in microseconds; 0 without requests.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_percentile(percent) as f64 / 1e3 }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests answered from start to end, without COMMITs.
    pub all: u64,
    pub requests: u64,
    pub commits: u64,
    /// Bytes of the measured reads or writes.
    pub bytes: u64,
    /// From the first request, or the end of the warm-up, to the last reply.
    pub elapsed: Duration,
    /// Of the measured requests, without COMMITs.
    pub latencies: Latencies,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub fn bytes_a_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
