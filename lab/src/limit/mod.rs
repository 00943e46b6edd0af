//! `awase-lab limit`: the shortest programs that answer clients of NBD, NFS, PostgreSQL and FUSE. What they reach is what protocol, sockets
//! and disk allow on a machine, so that the benchmarks can say how far from that a server is.
//!
//! One thread serves all connections (`serve`). *Null* answers from one buffer: no cache, no accounting, no disk. *Pass*
//! makes each request one request to the file, by direct I/O and `io_uring`, and flushes for as many at once as it was told
//! are in flight: the grouping that no server can know, since only the client knows it. A *log* is the same for transactions.
//!
//! They trust their clients, and are of no use for anything else.

mod arena;
mod call;
mod connection;
mod disk;
mod fuse;
mod log;
mod nbd;
mod nfs;
mod null;
mod outbound;
mod pass;
mod postgres;
mod replies;
mod serve;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use arena::Arena;
use call::Files;
use log::Log;
use null::Null;
use pass::{Group, Pass};
use serve::{Listener, Server};

/// The protocol.
#[derive(Debug, Subcommand)]
pub enum Limit {
    Nbd(Nbd),
    Nfs(Nfs),
    Postgres(Postgres),
    Fuse(fuse::Fuse),
}

/// What all of them can be told.
#[derive(Args, Debug)]
struct Common {
    /// How long it polls before it sleeps, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 500)]
    poll_us: u64,
    /// Flushes and stable writes that one flush is for: as many as clients have in flight.
    #[arg(long, value_name = "N", default_value_t = 1)]
    group: usize,
    /// Reads without storage come from 128 MiB of memory, not from one buffer that the processor's cache holds.
    #[arg(long)]
    spread: bool,
    /// A flush is for one of so many parts of them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    part: u8,
}

/// A disk over NBD.
#[derive(Args, Debug)]
pub struct Nbd {
    /// Listen at this Unix socket.
    #[arg(long, value_name = "PATH", required_unless_present = "tcp")]
    unix: Option<PathBuf>,
    /// Listen at this address.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "unix")]
    tcp: Option<SocketAddr>,
    /// Nothing is stored; the disk has so many bytes.
    #[arg(long, value_name = "BYTES", required_unless_present = "pass")]
    null: Option<u64>,
    /// Each request goes to this file .
    #[arg(long, value_name = "FILE", conflicts_with = "null")]
    pass: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A directory over NFSv3 and MOUNT, on one port; whatever path is mounted.
#[derive(Args, Debug)]
pub struct Nfs {
    /// Listen at this address.
    #[arg(long, value_name = "HOST:PORT")]
    tcp: SocketAddr,
    /// Nothing is stored; every name is that of a file of so many bytes.
    #[arg(long, value_name = "BYTES", required_unless_present = "pass")]
    null: Option<u64>,
    /// Each request goes to a file in this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "null")]
    pass: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A database over PostgreSQL's protocol: every query returns the same row.
#[derive(Args, Debug)]
pub struct Postgres {
    /// Listen at this address.
    #[arg(long, value_name = "HOST:PORT")]
    tcp: SocketAddr,
    /// How long it polls before it sleeps, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 500)]
    poll_us: u64,
    /// 4 KiB are written to this file, and durable, before a query is answered. Its first 16 MiB are overwritten.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Queries that one such write is for: as many as clients have in flight.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "log")]
    group: usize,
}

/// Serves until it is ended.
///
/// # Errors
/// When it cannot listen, or the file cannot be used.
pub fn run(limit: &Limit) -> Result<()> {
    match limit {
        Limit::Nbd(command) => command.run(),
        Limit::Nfs(command) => command.run(),
        Limit::Postgres(command) => command.run(),
        Limit::Fuse(command) => command.run(),
    }
}

fn tcp(address: SocketAddr) -> Result<Listener> {
    Ok(Listener::Tcp(TcpListener::bind(address).with_context(|| format!("--tcp {address}"))?))
}

impl Nbd {
    fn run(&self) -> Result<()> {
        let listener = match (&self.unix, self.tcp) {
            (Some(path), _) => {
                Listener::Unix(UnixListener::bind(path).with_context(|| format!("--unix {}", path.display()))?)
            }
            (None, Some(address)) => tcp(address)?,
            (None, None) => bail!("--unix or --tcp is needed"),
        };
        let mut arena = Arena::new()?;
        let poll = self.common.poll();
        if let Some(path) = &self.pass {
            let storage =
                Pass::of_file(path, self.common.group(), &arena).with_context(|| path.display().to_string())?;
            let greet = |socket: &_, storage: &Pass| nbd::negotiate(socket, storage.bytes(0));
            return Server { listener, protocol: nbd::Nbd, storage, arena, poll, greet }.run();
        }
        let storage = Null::new(self.null.unwrap_or_default(), self.common.spread, &mut arena)?;
        let greet = |socket: &_, storage: &Null| nbd::negotiate(socket, storage.bytes(0));
        Server { listener, protocol: nbd::Nbd, storage, arena, poll, greet }.run()
    }
}

impl Nfs {
    fn run(&self) -> Result<()> {
        let listener = tcp(self.tcp)?;
        let mut arena = Arena::new()?;
        let poll = self.common.poll();
        if let Some(path) = &self.pass {
            let storage = Pass::of_directory(path, self.common.group(), &arena)?;
            return Server { listener, protocol: nfs::Nfs, storage, arena, poll, greet: |_, _| Ok(true) }.run();
        }
        let storage = Null::new(self.null.unwrap_or_default(), self.common.spread, &mut arena)?;
        Server { listener, protocol: nfs::Nfs, storage, arena, poll, greet: |_, _| Ok(true) }.run()
    }
}

impl Postgres {
    fn run(&self) -> Result<()> {
        let listener = tcp(self.tcp)?;
        let mut arena = Arena::new()?;
        let poll = Duration::from_micros(self.poll_us);
        let protocol = postgres::Postgres { is_stored: self.log.is_some() };
        if let Some(path) = &self.log {
            let storage = Log::new(path, self.group, &mut arena).with_context(|| path.display().to_string())?;
            let greet = |socket: &_, _: &Log| postgres::begin(socket);
            return Server { listener, protocol, storage, arena, poll, greet }.run();
        }
        let storage = Null::new(0, false, &mut arena)?;
        let greet = |socket: &_, _: &Null| postgres::begin(socket);
        Server { listener, protocol, storage, arena, poll, greet }.run()
    }
}

impl Common {
    fn group(&self) -> Group {
        Group { in_flight: self.group, part: self.part.into() }
    }

    fn poll(&self) -> Duration {
        Duration::from_micros(self.poll_us)
    }
}
