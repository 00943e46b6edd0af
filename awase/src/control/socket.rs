//! The control socket: its threads and bounds.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use machine::linux::net::ListeningSocket;
use serde_json::{Value, json};

use super::ControlPanel;

/// The longest request. Bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Clients at a time; further ones are refused.
const CLIENTS_MAX: u32 = 16;

/// A client that sends no request or takes no answer for this long is disconnected.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Delay before the next attempt after the host could not accept a client.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The listening socket. When dropped, it accepts no more clients and the connected ones are disconnected.
pub struct ControlSocket {
    /// Its drop ends the thread that accepts.
    _socket: ListeningSocket,
    /// Its drop ends the clients' threads.
    _panel: Arc<ControlPanel>,
}

impl ControlSocket {
    /// Answers on `socket` from a thread of its own.
    ///
    /// # Errors
    /// When the host has no descriptor or thread left.
    pub fn serve(socket: ListeningSocket, panel: &Arc<ControlPanel>) -> anyhow::Result<ControlSocket> {
        let listener = socket.for_thread().context("cannot listen on the control socket")?;
        let known = Arc::downgrade(panel);
        let accept = move || accept(&listener, &known);
        thread::Builder::new().name("control".into()).spawn(accept).context("cannot start a thread")?;
        Ok(ControlSocket { _socket: socket, _panel: Arc::clone(panel) })
    }
}

fn accept(listener: &UnixListener, panel: &Weak<ControlPanel>) {
    let clients = Arc::new(AtomicU32::new(0));
    loop {
        match listener.accept() {
            Ok((stream, _)) => start(stream, panel, &clients),
            // Shut down: the server ends.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) if panel.strong_count() == 0 => return,
            Err(_) => thread::sleep(ACCEPT_RETRY),
        }
    }
}

/// Counts a client while it is connected.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn start(stream: UnixStream, panel: &Weak<ControlPanel>, clients: &Arc<AtomicU32>) {
    let before = clients.fetch_add(1, Ordering::SeqCst);
    let counted = Counted(Arc::clone(clients));
    if before >= CLIENTS_MAX {
        // The client may have disconnected.
        let _ =
            send(&stream, &json!({ "error": format!("{CLIENTS_MAX} clients are connected already; try again later") }));
        return;
    }
    let panel = Weak::clone(panel);
    let serve = move || {
        let _counted = counted;
        // An error also ends the connection.
        let _ = serve(&stream, &panel);
    };
    // Without a thread the client is dropped, and no longer counted.
    let _ = thread::Builder::new().name("control client".into()).spawn(serve);
}

/// Answers one client's requests until it disconnects or exceeds a bound.
fn serve(stream: &UnixStream, panel: &Weak<ControlPanel>) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut received = Vec::new();
    loop {
        let line = match next_line(stream, &mut received)? {
            Line::Complete(line) => line,
            Line::None => return Ok(()),
            Line::TooLong => {
                return send(stream, &json!({ "error": format!("the request is longer than {LINE_BYTES_MAX} bytes") }));
            }
        };
        let Some(panel) = panel.upgrade() else { return Ok(()) };
        send(stream, &panel.answer(&line))?;
    }
}

enum Line {
    Complete(Vec<u8>),
    None,
    TooLong,
}

/// The next line, from what was `received` and the stream. The whole line must arrive before the timeout, so a client that
/// sends byte by byte does not extend it.
fn next_line(mut stream: &UnixStream, received: &mut Vec<u8>) -> io::Result<Line> {
    let end = Instant::now() + TIMEOUT;
    let mut searched = 0;
    loop {
        if let Some(at) = received[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = received.split_off(searched + at + 1);
            return Ok(Line::Complete(std::mem::replace(received, rest)));
        }
        if received.len() >= LINE_BYTES_MAX {
            return Ok(Line::TooLong);
        }
        searched = received.len();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(Line::None),
            Ok(len) => received.extend(&bytes[..len]),
            // A signal to the server, delivered to this thread.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn send(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    let mut line = answer.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}
