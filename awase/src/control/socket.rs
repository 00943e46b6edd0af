//! The control socket: what its clients' threads do, and its bounds.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use machine::linux::net::ListeningSocket;
use serde_json::{Value, json};

use super::ControlPanel;
use crate::client_threads::ClientThreads;

/// The longest request. Bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Clients at a time; further ones are refused.
const CLIENTS_MAX: u32 = 16;

/// A client that sends no request or takes no answer for this long is disconnected.
const TIMEOUT: Duration = Duration::from_secs(30);

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
        let of_clients = Weak::clone(&known);
        let threads = ClientThreads { accepting: "control", serving: "control client", clients_max: CLIENTS_MAX };
        // An error also ends the connection.
        let serve = move |stream: UnixStream| drop(serve(&stream, &of_clients));
        threads.accept(listener, move || known.strong_count() == 0, refuse, serve).context("cannot start a thread")?;
        Ok(ControlSocket { _socket: socket, _panel: Arc::clone(panel) })
    }
}

fn refuse(stream: &UnixStream) {
    let why = format!("{CLIENTS_MAX} clients are connected already; try again later");
    // The client may have disconnected.
    let _ = send(stream, &json!({ "error": why }));
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
