//! One thread that serves all connections: it receives what is there, takes the calls, sends all replies that are ready
//! at once, and polls for more before it sleeps.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::arena::Arena;
use super::call::Protocol;
use super::connection::Connection;
use super::replies::{Connections, Replies, Storage};
use crate::measure::epoll::Epoll;

/// Send buffer for clients on this host, as Awase has it.
const SEND_BYTES: libc::c_int = 1 << 20;

/// Calls that are held back until more come are released when none has come for so long.
const RELEASE_MS: u32 = 20;

/// Looks at one connection for input until epoll is asked about all.
const POLLS_OF_ONE: u32 = 64;

/// Numbers that epoll reports beside those of connections.
const LISTENER: usize = usize::MAX;
const STORAGE: usize = usize::MAX - 1;

pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let bytes: *const libc::c_int = &SEND_BYTES;
                // SAFETY: an open socket and a number that lives until the call returns. It works without it, too.
                unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, bytes.cast(), 4) };
                Ok(stream.into())
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

pub struct Server<P, S> {
    pub listener: Listener,
    pub protocol: P,
    pub storage: S,
    pub arena: Arena,
    /// How long it polls before it sleeps.
    pub poll: Duration,
    /// Greets a client; false if it leaves.
    pub greet: fn(&OwnedFd, &S) -> io::Result<bool>,
}

struct Loop<P, S> {
    server: Server<P, S>,
    epoll: Epoll,
    connections: Connections,
    /// Numbers of those that are open.
    open: Vec<usize>,
    due: Vec<usize>,
    ready: Vec<usize>,
    /// Of the machine.
    cores: usize,
}

impl<P: Protocol, S: Storage> Server<P, S> {
    /// Serves for ever.
    pub fn run(self) -> Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&self.listener, LISTENER)?;
        if let Some(descriptor) = self.storage.descriptor() {
            epoll.add(&descriptor, STORAGE)?;
        }
        let (open, due, ready) = Default::default();
        let (connections, cores) = (Connections::default(), available_parallelism()?.get());
        Loop { server: self, epoll, connections, open, due, ready, cores }.run()
    }
}

impl<P: Protocol, S: Storage> Loop<P, S> {
    fn run(&mut self) -> Result<()> {
        let mut idle_since = None;
        let mut polls = 0_u32;
        loop {
            let mut has_worked = match self.open[..] {
                [only] if !polls.is_multiple_of(POLLS_OF_ONE) => self.receive(only)?,
                _ => self.look(Some(0))?,
            };
            polls = polls.wrapping_add(1);
            let Server { protocol, storage, arena, .. } = &mut self.server;
            has_worked |= storage.advance(&mut Replies { protocol, connections: &mut self.connections, arena })?;
            self.send()?;
            if has_worked {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.server.poll {
                // Where clients have no core of their own, they go first.
                if self.open.len() >= self.cores {
                    std::thread::yield_now();
                }
                continue;
            }
            let timeout_ms = self.server.storage.is_waiting().then_some(RELEASE_MS);
            if self.look(timeout_ms)? {
                idle_since = None;
            } else if self.server.storage.is_waiting() {
                self.server.storage.release();
            }
        }
    }

    /// Serves those that epoll reports; waits for the first until the timeout. False if there are none.
    fn look(&mut self, timeout_ms: Option<u32>) -> Result<bool> {
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(&mut ready, timeout_ms)?;
        let mut has_worked = false;
        for &number in &ready {
            has_worked |= match number {
                LISTENER => self.accept()?,
                STORAGE => true,
                number => {
                    self.connections.mark(number);
                    self.receive(number)?
                }
            };
        }
        self.ready = ready;
        Ok(has_worked)
    }

    fn accept(&mut self) -> Result<bool> {
        let socket = self.server.listener.accept()?;
        match (self.server.greet)(&socket, &self.server.storage) {
            Ok(true) => {
                let replies_late = S::TAKES_DATA && matches!(self.server.listener, Listener::Tcp(_));
                let connection = Connection::new(socket, replies_late);
                let descriptor = connection.as_raw_fd();
                let number = self.connections.add(connection);
                self.epoll.add(&descriptor, number)?;
                self.open.push(number);
            }
            Ok(false) => {}
            Err(error) => eprintln!("a client that is not understood: {error}"),
        }
        Ok(true)
    }

    /// Takes what has arrived on a connection. False if nothing has.
    fn receive(&mut self, number: usize) -> Result<bool> {
        let Server { protocol, storage, arena, .. } = &mut self.server;
        let Some(connection) = self.connections.get(number) else { return Ok(false) };
        let mut received = connection.receive(arena);
        while let Ok(true) = received {
            let Some(connection) = self.connections.get(number) else { break };
            match connection.next(protocol, arena, storage, S::TAKES_DATA) {
                Ok(Some((call, chunk))) => {
                    let mut replies = Replies { protocol, connections: &mut self.connections, arena };
                    storage.take(number, call, chunk, &mut replies);
                }
                Ok(None) => {
                    if !connection.out.is_empty() {
                        self.connections.mark(number);
                    }
                    return Ok(true);
                }
                Err(error) => received = Err(error),
            }
        }
        if let Err(error) = received {
            self.end(number, &error);
        }
        Ok(false)
    }

    fn end(&mut self, number: usize, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) {
            eprintln!("a connection ends: {error}");
        }
        self.connections.remove(number);
        self.open.retain(|open| *open != number);
    }

    /// Sends what is due.
    fn send(&mut self) -> Result<()> {
        let mut due = std::mem::take(&mut self.due);
        self.connections.take_due(&mut due);
        for &number in &due {
            let Some(connection) = self.connections.get(number) else { continue };
            connection.is_due = false;
            let descriptor = connection.as_raw_fd();
            if let Err(error) = connection.out.send(descriptor, &mut self.server.arena) {
                self.end(number, &error);
                continue;
            }
            let is_blocked = !connection.out.is_empty();
            if is_blocked != connection.is_blocked {
                connection.is_blocked = is_blocked;
                self.epoll.change(&descriptor, number, is_blocked)?;
            }
        }
        self.due = due;
        Ok(())
    }
}
