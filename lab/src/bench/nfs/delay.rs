//! A link that delays every byte each way: a TCP proxy, since not every kernel can delay packets itself.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes in flight in one direction of a connection; the sender waits when they are reached. Far above the
/// bandwidth-delay product of any link measured here.
const TRAVELLING_BYTES_MAX: usize = 64 << 20;

/// Largest receive.
const PIECE_BYTES: usize = 256 << 10;

/// A proxy in front of a server. Dropping it closes all of its connections.
pub struct DelayedLink {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl DelayedLink {
    /// Listens on a free port of loopback and forwards to `server`, each byte `delay` after its arrival.
    pub fn new(server: SocketAddr, delay: Duration) -> Result<DelayedLink> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port for the delayed link")?;
        let address = listener.local_addr()?;
        let (is_closed, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let acceptor = {
            let (is_closed, streams) = (is_closed.clone(), streams.clone());
            thread::Builder::new().name("delay".into()).spawn(move || {
                for client in listener.incoming() {
                    if is_closed.load(Ordering::Acquire) {
                        break;
                    }
                    if let Err(error) = client.and_then(|client| join(client, server, delay, &streams)) {
                        eprintln!("awase-lab: the delayed link cannot pass on a connection: {error}");
                    }
                }
            })?
        };
        Ok(DelayedLink { address, is_closed, streams, acceptor: Some(acceptor) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DelayedLink {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        // Wakes the acceptor, which then sees that the link is closed.
        let woken = TcpStream::connect(self.address).is_ok();
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
    }
}

/// Connects a client with the server: each direction has two threads, which end with the connection.
fn join(client: TcpStream, server: SocketAddr, delay: Duration, streams: &Mutex<Vec<TcpStream>>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let way = Arc::new(Way::default());
        let entrance = way.clone();
        thread::Builder::new().name("delay-in".into()).spawn(move || entrance.take_in(from, delay))?;
        thread::Builder::new().name("delay-out".into()).spawn(move || way.let_out(to))?;
    }
    streams.lock().unwrap_or_else(PoisonError::into_inner).extend([client, server]);
    Ok(())
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    travelling: Mutex<Travelling>,
    changed: Condvar,
}

#[derive(Default)]
struct Travelling {
    /// Arrival time of a piece, and its bytes.
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    is_ended: bool,
}

impl Way {
    fn take_in(&self, mut from: TcpStream, delay: Duration) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let arrival = Instant::now() + delay;
            let mut travelling = self.travelling.lock().unwrap_or_else(PoisonError::into_inner);
            while travelling.bytes > TRAVELLING_BYTES_MAX && !travelling.is_ended {
                travelling = self.changed.wait(travelling).unwrap_or_else(PoisonError::into_inner);
            }
            if travelling.is_ended {
                break;
            }
            travelling.pieces.push_back((arrival, buffer[..bytes].to_vec()));
            travelling.bytes += bytes;
            self.changed.notify_all();
        }
        self.end();
    }

    fn let_out(&self, mut to: TcpStream) {
        while let Some((arrival, piece)) = self.first() {
            thread::sleep(arrival.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        self.end();
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits for the earliest piece; `None` after the last.
    fn first(&self) -> Option<(Instant, Vec<u8>)> {
        let mut travelling = self.travelling.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((arrival, piece)) = travelling.pieces.pop_front() {
                travelling.bytes -= piece.len();
                self.changed.notify_all();
                return Some((arrival, piece));
            }
            if travelling.is_ended {
                return None;
            }
            travelling = self.changed.wait(travelling).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        self.travelling.lock().unwrap_or_else(PoisonError::into_inner).is_ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_pass_both_ways_in_order_and_none_early() {
        const DELAY: Duration = Duration::from_millis(20);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = DelayedLink::new(server.local_addr().unwrap(), DELAY).unwrap();
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut client = TcpStream::connect(link.address()).unwrap();
        let start = Instant::now();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        // A lower bound holds on a busy machine too.
        assert!(start.elapsed() >= 2 * DELAY);
        assert!(got == sent);
        echo.join().unwrap();
    }
}
