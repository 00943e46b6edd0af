//! The load: connections, each with so many requests under way, asked again as soon as they are answered. Each has a thread
//! of its own and does as little as can be: one receive, one send for all that came in together.

mod connection;
mod latency;
mod nbd;
mod nfs;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{HereError, Host};
use connection::{Connection, Told};
pub(super) use latency::Latencies;
use nbd::Nbd;
use nfs::Nfs;

/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exported directory, and the file in it that is read and written.
pub(super) const DIRECTORY: &str = "/files";
const FILE: &str = "load";

/// What is read to have it cached, at a time. Bytes.
const FILL_BYTES: u32 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clients {
    pub(super) protocol: Speaks,
    pub(super) asks: Asks,
    /// Of a read or a write. Bytes.
    pub(super) bytes: u32,
    pub(super) order: Order,
    /// From here on. Bytes.
    pub(super) from: u64,
    /// So much. Bytes.
    pub(super) region: u64,
    pub(super) connections: u32,
    /// Requests that each has under way.
    pub(super) depth: u32,
    pub(super) sends: Sends,
}

/// How a client sends what it asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    /// All that the replies that came together leave room for, at once: asks as much as it can of the server.
    Together,
    /// Each by itself, after as much work on what came as fio and libnbd do for each.
    Singly { work: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// NBD, with the export of that name.
    Nbd(&'static str),
    /// NFS, with one file of the exported directory.
    Nfs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Reads,
    /// Reads and attributes in turn.
    ReadsAndAttributes,
    /// Writes; over NFS, stable ones. After so many of them a flush, with which the last one's time ends; 0 for none.
    Writes {
        a_flush: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One after the other, each connection in its part.
    Sequential,
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Read { at: u64, len: u32 },
    Write { at: u64, len: u32 },
    Flush,
    Attributes,
}

/// A reply, of which the head was read.
struct Reply {
    slot: u32,
    /// What is left of it. Bytes.
    rest: u64,
}

/// How requests look on the wire.
trait Protocol: Send {
    /// Of a reply: enough to know what it is and how long.
    fn head_bytes(&self) -> usize;

    /// Adds a request to what is sent.
    fn request(&mut self, slot: u32, action: Action, out: &mut Vec<u8>);

    /// What a reply's head says.
    fn reply(&self, head: &[u8], slots: &[Action]) -> io::Result<Reply>;
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Where a server is reached.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) nbd: &'a Path,
    pub(super) nfs: Option<SocketAddr>,
    /// Processors that the load leaves to the server, where there are more.
    pub(super) processors: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) warm: Duration,
    pub(super) measured: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Requests a second, while it was measured.
    pub(super) rate: f64,
    pub(super) latencies: Latencies,
    /// Requests of all clients from beginning to end: what the server's work is divided by.
    pub(super) all: u64,
}

/// Reads once what the clients will ask for, so that it is cached.
pub(super) fn fill(target: Target<'_>, clients: &Clients) -> Result<(), HereError> {
    let whole = Clients { asks: Asks::Reads, order: Order::Sequential, connections: 1, depth: 4, ..*clients };
    let mut connection = connect(target, &Clients { bytes: FILL_BYTES, ..whole }, 0)?;
    let reads = clients.region.div_ceil(FILL_BYTES.into());
    connection.run_for(reads).map_err(failed)
}

/// Has everything written that clients have, so that the next ones meet nothing of it.
pub(super) fn flush(target: Target<'_>, clients: &Clients) -> Result<(), HereError> {
    let one = Clients { connections: 1, depth: 1, ..*clients };
    connect(target, &one, 0)?.flush().map_err(failed)
}

/// Runs the clients, and beside them others that are not measured.
pub(super) fn run(
    host: &dyn Host,
    target: Target<'_>,
    clients: &Clients,
    beside: Option<&Clients>,
    time: Time,
) -> Result<Outcome, HereError> {
    let connections = |clients: &Clients| -> Result<Vec<Connection>, HereError> {
        (0..clients.connections).map(|number| connect(target, clients, number)).collect()
    };
    let (measured, beside) = (connections(clients)?, beside.map(connections).transpose()?.unwrap_or_default());
    let warm = Instant::now() + time.warm;
    let is_over = AtomicBool::new(false);
    let interrupted = || host.is_interrupted();
    let told = Told { warm, end: Some(warm + time.measured), is_over: &is_over, is_interrupted: &interrupted };
    thread::scope(|scope| {
        let mut place = 0;
        // Who is measured must not wait for the others before the server is even asked.
        let mut start = |mut connection: Connection, end: Option<Instant>| {
            let number = place;
            place += 1;
            let told = Told { end, ..told };
            scope.spawn(move || {
                host.keep_clear(target.processors, number);
                if end.is_none() {
                    host.give_way();
                }
                connection.run(&told)
            })
        };
        let measured: Vec<_> = measured.into_iter().map(|connection| start(connection, told.end)).collect();
        let beside: Vec<_> = beside.into_iter().map(|connection| start(connection, None)).collect();
        let mut outcome = Outcome::default();
        let mut result = Ok(());
        let mut join = |thread: thread::ScopedJoinHandle<'_, io::Result<Outcome>>, counts: bool| match thread
            .join()
            .unwrap_or_else(|_| Err(refused("a client gave up")))
        {
            Ok(of_one) => {
                outcome.all += of_one.all;
                if counts {
                    outcome.rate += of_one.rate;
                    outcome.latencies.add(&of_one.latencies);
                }
            }
            Err(error) => result = Err(failed(error)),
        };
        measured.into_iter().for_each(|thread| join(thread, true));
        is_over.store(true, Ordering::Relaxed);
        beside.into_iter().for_each(|thread| join(thread, false));
        if host.is_interrupted() {
            return Err(HereError::Interrupted);
        }
        result.map(|()| outcome)
    })
}

fn connect(target: Target<'_>, clients: &Clients, number: u32) -> Result<Connection, HereError> {
    let payload = payload(clients.bytes as usize);
    match clients.protocol {
        Speaks::Nbd(export) => {
            let (nbd, stream) = Nbd::connect(target.nbd, export, payload).map_err(failed)?;
            Ok(Connection::new(Box::new(stream), Box::new(nbd), clients, number))
        }
        Speaks::Nfs => {
            let address = target.nfs.ok_or_else(|| HereError::Load("there is no directory".to_owned()))?;
            let (mut nfs, mut stream) = Nfs::connect(address, DIRECTORY, FILE, payload).map_err(failed)?;
            nfs.prepare(&mut stream, clients.from + clients.region).map_err(failed)?;
            Ok(Connection::new(Box::new(stream), Box::new(nfs), clients, number))
        }
    }
}

/// Bytes that are no zeroes, of which a disk might take a shorter way.
fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|number| 1 + (number % 251) as u8).collect()
}

fn refused(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

fn failed(error: io::Error) -> HereError {
    HereError::Load(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the server did not answer within {} s", PATIENCE.as_secs())
        }
        _ => error.to_string(),
    })
}
