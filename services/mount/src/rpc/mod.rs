//! Calls to one program of a server, several in flight on one or several connections.

mod channel;
mod message;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kernel::Processor;
use kernel::connection::{Inbound, Limits, Sessions, Step};
use kernel::frame::segments;
use machine::{Connection, Errno};

pub(crate) use channel::Reply;
use channel::{Call, Channel};
pub use message::{Caller, Program};
use message::{Parsed, encode, parse};
pub(crate) use message::{Payload, packed};
use record::Records;

/// A TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub u16);

/// Makes connections to the server.
pub trait Connector: Send + Sync + 'static {
    /// Connects, and calls `made` with the result, from any thread.
    fn connect(&self, port: Port, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>);

    /// A line for people about the server.
    fn report(&self, line: &str);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a reply; then the connection is made anew and the call sent again.
    pub reply: Duration,
    /// Until a call fails; `None`: never (hard).
    pub fails_after: Option<Duration>,
    /// Does a call fail when the server cannot be reached at all?
    pub fails_unconnected: bool,
}

/// Why a call has no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the server did not answer in time")]
    TimedOut,
    #[error("the server cannot be reached: {0}")]
    Unreachable(Errno),
    #[error("the server does not accept the credentials of this user")]
    Credentials,
    #[error("the server has no such service")]
    NoProgram,
    #[error("the server has no such procedure")]
    NoProcedure,
    #[error("the server refuses the call")]
    Refused,
    #[error("the server's answer is not one of this protocol")]
    Garbage,
    #[error("the mount is ending")]
    Closed,
}

impl Failure {
    pub fn errno(&self) -> Errno {
        match self {
            Failure::TimedOut => Errno::TIMED_OUT,
            Failure::Unreachable(errno) => *errno,
            Failure::Credentials => Errno(libc::EACCES),
            Failure::NoProcedure => Errno::NOT_SUPPORTED,
            Failure::NoProgram | Failure::Refused | Failure::Garbage => Errno::IO,
            Failure::Closed => Errno::SHUT_DOWN,
        }
    }
}

/// A program of the server.
pub struct Remote {
    program: Program,
    credentials: Vec<u8>,
    channels: Vec<Arc<Channel>>,
    sessions: Arc<Sessions>,
    next: AtomicU32,
    timeouts: Timeouts,
}

/// How a program is reached.
pub struct Route {
    pub connector: Arc<dyn Connector>,
    pub port: Port,
    pub connections: usize,
    pub timeouts: Timeouts,
    pub caller: Caller,
    /// The number of the first call. Servers take the numbers of an earlier mount for repeated calls, so it is drawn.
    pub first_xid: u32,
}

/// Unanswered bytes on one connection before the next has them are no concern here: what is in flight is bounded by the
/// queue of the mount's files, and other calls by the host's requests. The server must take what is sent within this time.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

impl Remote {
    /// Calls are made on processor `cpu` only.
    pub fn new(cpu: &Processor, program: Program, route: &Route) -> Remote {
        let limits = Limits { stall_timeout: STALL_TIMEOUT, ..Limits::default() };
        let sessions = Arc::new(Sessions::new(limits));
        let channel = || {
            let (connector, sessions) = (Arc::clone(&route.connector), Arc::clone(&sessions));
            let channel = Channel::new(route.port, route.timeouts, sessions, connector);
            channel.start(cpu);
            channel
        };
        Remote {
            program,
            credentials: route.caller.credentials(),
            channels: (0..route.connections.max(1)).map(|_| channel()).collect(),
            sessions,
            next: AtomicU32::new(route.first_xid),
            timeouts: route.timeouts,
        }
    }

    /// Calls a procedure.
    ///
    /// # Errors
    /// Whatever keeps the server from executing it.
    pub(crate) async fn call(&self, cpu: &Processor, procedure: u32, arguments: &[u8]) -> Result<Reply, Failure> {
        self.call_with(cpu, procedure, arguments, Payload::default(), None).await
    }

    /// Calls a procedure. `payload` follows the arguments; the data of the reply goes to `place`.
    ///
    /// # Errors
    /// As [`Remote::call`].
    pub(crate) async fn call_with(
        &self,
        cpu: &Processor,
        procedure: u32,
        arguments: &[u8],
        payload: Payload,
        place: Option<Payload>,
    ) -> Result<Reply, Failure> {
        let xid = self.next.fetch_add(1, Ordering::Relaxed);
        let header = encode(xid, self.program, procedure, &self.credentials, arguments, &payload);
        let Some(channel) = self.channels.iter().min_by_key(|channel| channel.in_flight()) else {
            return Err(Failure::Closed);
        };
        channel.begin(cpu, xid, Call { header, payload, place }).answer().await
    }

    /// Until a call fails; `None`: never.
    pub(crate) fn fails_after(&self) -> Option<Duration> {
        self.timeouts.fails_after
    }

    /// Ends all connections; calls in flight fail.
    pub fn close(&self) {
        self.channels.iter().for_each(|channel| channel.close());
        self.sessions.stop();
        self.sessions.abort();
    }
}

/// Receives the rest of a reply and gives it to who waits.
async fn receive(
    channel: &Channel,
    xid: u32,
    bytes: Vec<u8>,
    rest: usize,
    call: Option<Arc<Call>>,
    inbound: &mut Inbound<'_, Records>,
) -> Step {
    let place = call.as_ref().and_then(|call| call.place.as_ref());
    let mut data = 0;
    if rest > 0 {
        if let Some(place) = place {
            let announced = bytes.last_chunk().map_or(0, |len| u32::from_be_bytes(*len)) as usize;
            data = announced.min(place.len).min(rest);
            if data > 0 {
                // Of a stalled server; a piece has the time of a whole message.
                inbound.restart_timeout();
                inbound.fill(place.offset, data, place.frames.clone()).await?;
            }
        }
        if rest > data {
            inbound.skip(rest - data).await?;
        }
    }
    match parse(&bytes) {
        Parsed::Accepted(at) => {
            if let Some(place) = place.filter(|_| rest == 0) {
                data = copy_data(&bytes[at..], place);
            }
            channel.answer(inbound.session().cpu().now(), xid, Ok((bytes, at, data)));
        }
        Parsed::Refused(failure) => channel.answer(inbound.session().cpu().now(), xid, Err(failure)),
        Parsed::More(_) | Parsed::Malformed => {
            channel.answer(inbound.session().cpu().now(), xid, Err(Failure::Garbage))
        }
    }
    Step::Continue(())
}

/// Copies the data of READ's results that came as bytes: in a record of several fragments. Returns its length.
fn copy_data(results: &[u8], place: &Payload) -> usize {
    let mut results = crate::results::Results::new(results);
    let data = (|| {
        (results.u32()? == 0).then_some(())?;
        results.after()?;
        results.bytes(8)?;
        results.opaque(usize::MAX)
    })();
    let data = data.unwrap_or_default();
    let len = data.len().min(place.len);
    let mut left = &data[..len];
    for segment in segments(&place.frames, place.offset, len) {
        let (here, rest) = left.split_at(segment.len as usize);
        // SAFETY: the frames are given to be filled by this call; nobody else reads or writes them until it is answered.
        unsafe { segment.ptr.copy_from_nonoverlapping(here.as_ptr(), here.len()) };
        left = rest;
    }
    len
}
