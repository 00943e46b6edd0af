//! The clients of a case.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use super::super::{HereError, Host, Served};
use crate::load::{Address, Drive, Endpoint, Length, Load, Operation, Outcome, Stability, Stop, Target, files, nbd};
pub(super) use crate::load::{Order, Sends};

pub(super) const DIRECTORY: &str = "/files";

/// Size of the reads that fill the cache. Bytes.
const FILL_BYTES: u32 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clients {
    pub(super) protocol: Speaks,
    pub(super) asks: Asks,
    /// Of a read or a write. Bytes.
    pub(super) bytes: u32,
    pub(super) order: Order,
    /// Start of the region. Bytes.
    pub(super) from: u64,
    /// Length of the region. Bytes.
    pub(super) region: u64,
    pub(super) connections: u32,
    /// Requests in flight on each connection.
    pub(super) depth: u32,
    pub(super) sends: Sends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Nbd(&'static str),
    /// NFS, with one file of the exported directory.
    Nfs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Reads,
    /// Alternating reads and attributes.
    ReadsAndAttributes,
    /// Writes; over NFS, stable ones. After every `a_flush` of them a flush, which counts into the last one's latency;
    /// 0 for none.
    Writes {
        a_flush: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) warm: Duration,
    pub(super) measured: Duration,
}

impl Clients {
    /// The clients' load, all on the same file or export.
    fn load(&self) -> Load {
        let operation = match (self.asks, self.protocol) {
            (Asks::Reads, _) => Operation::Read(self.order),
            (Asks::ReadsAndAttributes, _) => Operation::ReadAndAttributes(self.order),
            (Asks::Writes { .. }, Speaks::Nfs) => Operation::Overwrite(self.order, Stability::FileSync),
            (Asks::Writes { a_flush }, Speaks::Nbd(_)) => {
                Operation::Overwrite(self.order, Stability::Flushed { writes: a_flush })
            }
        };
        Load {
            request_bytes: self.bytes,
            from: self.from,
            file_bytes: self.region,
            connections: self.connections,
            shared: true,
            sends: self.sends,
            ..Load::new(operation, 4, self.depth)
        }
    }
}

/// A server, and its part of the host.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) host: &'a dyn Host,
    pub(super) server: &'a dyn Served,
    /// Processors that the load leaves to the server, if the host has more.
    pub(super) processors: u16,
}

impl Asked<'_> {
    fn target(&self, protocol: Speaks) -> Result<Target, HereError> {
        match protocol {
            Speaks::Nbd(export) => {
                let at = Address::Unix(self.server.nbd().to_owned());
                Ok(Target::Nbd { at, export: export.to_owned() })
            }
            Speaks::Nfs => {
                let at = self.server.nfs().ok_or_else(|| HereError::Load("there is no directory".to_owned()))?;
                Ok(Target::Nfs(Endpoint { nfs: at, mount: at, export: DIRECTORY.to_owned(), uid: 0, gid: 0 }))
            }
        }
    }

    /// Connects clients; creates their file if it does not exist.
    fn open(&self, clients: &Clients, length: Length) -> Result<Drive, HereError> {
        let (target, load) = (self.target(clients.protocol)?, clients.load());
        let interrupted = || self.host.is_interrupted();
        if let Target::Nfs(endpoint) = &target {
            files::prepare(endpoint, &load, &Stop::when(&interrupted)).map_err(failed)?;
        }
        Drive::open(&target, &load, length).map_err(failed)
    }

    /// Reads once what the clients will ask for, so that it is cached.
    pub(super) fn fill(&self, clients: &Clients) -> Result<(), HereError> {
        let interrupted = || self.host.is_interrupted();
        let whole =
            Clients { bytes: FILL_BYTES, connections: 1, asks: Asks::Reads, order: Order::Sequential, ..*clients };
        let fill = self.open(&Clients { depth: 4, sends: Sends::Together, ..whole }, Length::OnePass)?;
        fill.run(&Stop::when(&interrupted)).map(drop).map_err(failed)
    }

    /// Writes out and flushes what clients wrote, so that it does not affect the next ones.
    pub(super) fn flush(&self, export: &str) -> Result<(), HereError> {
        nbd::flush(&Address::Unix(self.server.nbd().to_owned()), export).map_err(failed)
    }

    /// Runs the clients, concurrently with others of which only the requests are counted.
    pub(super) fn run(&self, clients: &Clients, beside: Option<&Clients>, time: Time) -> Result<Outcome, HereError> {
        let measured = self.open(clients, Length::For { warm: time.warm, measured: time.measured })?;
        let beside = beside.map(|clients| self.open(clients, Length::UntilOver)).transpose()?;
        let (is_over, never) = (AtomicBool::new(false), AtomicBool::new(false));
        let (host, processors) = (self.host, self.processors);
        let interrupted = || host.is_interrupted();
        let (outcome, others) = thread::scope(|scope| {
            let start = |drive: Drive, number: usize, over| {
                let interrupted = &interrupted;
                scope.spawn(move || {
                    host.keep_clear(processors, number);
                    if number > 0 {
                        host.give_way();
                    }
                    drive.run(&Stop { over, interrupted })
                })
            };
            let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<Outcome>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client gave up")))
            };
            let beside = beside.map(|drive| start(drive, 1, &is_over));
            let outcome = join(start(measured, 0, &never));
            is_over.store(true, Relaxed);
            (outcome, beside.map(join))
        });
        let all = others.transpose().map_err(failed)?.map_or(0, |others| others.all);
        let outcome = outcome.map_err(failed)?;
        Ok(Outcome { all: outcome.all + all, ..outcome })
    }
}

fn failed(error: anyhow::Error) -> HereError {
    HereError::Load(format!("{error:#}"))
}
