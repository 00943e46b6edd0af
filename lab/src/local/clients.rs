//! Clients of a server on this host, each kind on a thread of its own.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use super::{Host, LocalError, Protocol, Server};
use crate::measure::load::{Drive, Length, Load, Outcome, Stop, Target, nbd, prepare};

/// Size of the reads that fill the cache. Bytes.
const FILL_BYTES: u32 = 64 << 10;

/// All of them use the same export, or the same file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clients {
    pub(crate) protocol: Protocol,
    pub(crate) load: Load,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
}

/// The load generator of a server.
#[derive(Clone, Copy)]
pub(crate) struct Generator<'a> {
    pub(crate) host: &'a Host,
    pub(crate) server: &'a Server,
    /// Processors that the load leaves to the server, if the host has more.
    pub(crate) processors: u16,
}

impl Generator<'_> {
    fn target(&self, protocol: Protocol) -> Result<Target, LocalError> {
        let missing = || LocalError::Load(format!("the server does not offer {protocol:?}"));
        self.server.target(protocol).ok_or_else(missing)
    }

    /// Connects clients; creates their file if it does not exist.
    fn open(&self, clients: &Clients, length: Length) -> Result<Drive, LocalError> {
        let target = self.target(clients.protocol)?;
        if let Target::Nfs(endpoint) = &target {
            prepare(endpoint, &clients.load, &Stop::when(self.host.interrupted())).map_err(failed)?;
        }
        Drive::open(&target, &clients.load, length).map_err(failed)
    }

    /// Reads once what the clients will ask for, so that it is cached.
    pub(crate) fn fill(&self, clients: &Clients) -> Result<(), LocalError> {
        let load = Load { request_bytes: FILL_BYTES, connections: 1, ..clients.load.reading_once() };
        let fill = self.open(&Clients { load, ..*clients }, Length::OnePass)?;
        fill.run(&Stop::when(self.host.interrupted())).map(drop).map_err(failed)
    }

    /// Writes out and flushes what clients wrote, so that it does not affect the next ones.
    pub(crate) fn flush(&self, protocol: Protocol) -> Result<(), LocalError> {
        match self.target(protocol)? {
            Target::Nbd { at, export } => nbd::flush(&at, &export).map_err(failed),
            // What is written over NFS is stable, or committed.
            Target::Nfs(_) => Ok(()),
        }
    }

    /// Runs the clients, concurrently with others that are not measured. Returns the outcomes of both.
    pub(crate) fn run(
        &self,
        clients: &Clients,
        others: Option<&Clients>,
        time: Time,
    ) -> Result<(Outcome, Option<Outcome>), LocalError> {
        let measured = self.open(clients, Length::For { warm: time.warm, measured: time.measured })?;
        let others = others.map(|clients| self.open(clients, Length::UntilOver)).transpose()?;
        let (is_over, never) = (AtomicBool::new(false), AtomicBool::new(false));
        let (host, processors) = (self.host, self.processors);
        let (outcome, others) = thread::scope(|scope| {
            let start = |drive: Drive, number: usize, over| {
                scope.spawn(move || {
                    host.pin_beyond(processors, number);
                    if number > 0 {
                        Host::run_when_idle();
                    }
                    drive.run(&Stop { over, interrupted: host.interrupted() })
                })
            };
            let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<Outcome>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))
            };
            let others = others.map(|drive| start(drive, 1, &is_over));
            let outcome = join(start(measured, 0, &never));
            is_over.store(true, Relaxed);
            (outcome, others.map(join))
        });
        let others = others.transpose().map_err(failed)?;
        Ok((outcome.map_err(failed)?, others))
    }
}

fn failed(error: anyhow::Error) -> LocalError {
    LocalError::Load(format!("{error:#}"))
}
