//! A link that delays every byte each way and lets through so many a second: a TCP proxy, since not every kernel can delay
//! packets itself.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Receives in flight in one direction of a connection; the sender waits when they are reached. Far above what arrives
/// during the delay of any link measured here.
const TRAVELLING_MAX: usize = 1024;

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
    /// Listens on a free port of loopback and forwards to `server`, each byte `delay` after its arrival. `rate`: of each
    /// direction of a connection, in bytes a second; `None`: unlimited.
    pub fn new(server: SocketAddr, delay: Duration, rate: Option<u64>) -> Result<DelayedLink> {
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
                    if let Err(error) = client.and_then(|client| join(client, server, (delay, rate), &streams)) {
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
fn join(
    client: TcpStream,
    server: SocketAddr,
    pace: (Duration, Option<u64>),
    streams: &Mutex<Vec<TcpStream>>,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (entrance, exit) = sync_channel(TRAVELLING_MAX);
        thread::Builder::new().name("delay-in".into()).spawn(move || take_in(from, &entrance, pace))?;
        thread::Builder::new().name("delay-out".into()).spawn(move || let_out(to, exit))?;
    }
    streams.lock().unwrap_or_else(PoisonError::into_inner).extend([client, server]);
    Ok(())
}

/// Notes when each piece is due; ends with the connection.
fn take_in(mut from: TcpStream, travelling: &SyncSender<(Instant, Vec<u8>)>, (delay, rate): (Duration, Option<u64>)) {
    let mut buffer = vec![0; PIECE_BYTES];
    // When the last byte so far has left the sender's end.
    let mut left = Instant::now();
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let takes = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64));
        left = left.max(Instant::now()) + takes;
        if travelling.send((left + delay, buffer[..bytes].to_vec())).is_err() {
            break;
        }
    }
}

/// Passes each piece on when it is due.
fn let_out(mut to: TcpStream, travelling: Receiver<(Instant, Vec<u8>)>) {
    for (due, piece) in travelling {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_pass_both_ways_in_order_and_none_early() {
        const DELAY: Duration = Duration::from_millis(20);
        // Of the 4 MB there and back, the last leave after 40 ms each way.
        const RATE: u64 = 100_000_000;
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = DelayedLink::new(server.local_addr().unwrap(), DELAY, Some(RATE)).unwrap();
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
        assert!(start.elapsed() >= 2 * DELAY + Duration::from_millis(40));
        assert!(got == sent);
        echo.join().unwrap();
    }
}
