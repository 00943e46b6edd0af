//! The control socket: its threads, and the bounds within which anybody is listened to.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use machine::linux::net::ListeningSocket;
use serde_json::{Value, json};

use super::Board;

/// The longest request. Bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Clients at a time; more are turned away.
const CLIENTS_MAX: u32 = 16;

/// A client that says nothing for so long, or does not take its answer, is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);

/// After the host could not accept a client, it is asked again so much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The socket while it is listened to. Dropped, it takes no more clients; those there are find no server.
pub struct ControlSocket {
    /// Its drop ends the thread that accepts.
    _socket: ListeningSocket,
    /// Its drop is what clients' threads notice.
    _board: Arc<Board>,
}

impl ControlSocket {
    /// Answers on `socket` from a thread of its own.
    ///
    /// # Errors
    /// When the host has no descriptor or thread left.
    pub fn serve(socket: ListeningSocket, board: &Arc<Board>) -> anyhow::Result<ControlSocket> {
        let listener = socket.for_thread().context("cannot listen on the control socket")?;
        let known = Arc::downgrade(board);
        let accept = move || accept(&listener, &known);
        thread::Builder::new().name("control".into()).spawn(accept).context("cannot start a thread")?;
        Ok(ControlSocket { _socket: socket, _board: Arc::clone(board) })
    }
}

fn accept(listener: &UnixListener, board: &Weak<Board>) {
    let clients = Arc::new(AtomicU32::new(0));
    loop {
        match listener.accept() {
            Ok((stream, _)) => start(stream, board, &clients),
            // It was shut down: the server ends.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) if board.strong_count() == 0 => return,
            Err(_) => thread::sleep(ACCEPT_RETRY),
        }
    }
}

/// Counts a client for as long as it is there.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn start(stream: UnixStream, board: &Weak<Board>, clients: &Arc<AtomicU32>) {
    let before = clients.fetch_add(1, Ordering::SeqCst);
    let counted = Counted(Arc::clone(clients));
    if before >= CLIENTS_MAX {
        // It may have gone again, which is as well.
        let _ =
            say(&stream, &json!({ "error": format!("{CLIENTS_MAX} clients are connected already; try again later") }));
        return;
    }
    let board = Weak::clone(board);
    let serve = move || {
        let _counted = counted;
        // However it ends: the client is gone, or is made to go.
        let _ = serve(&stream, &board);
    };
    // Without a thread the client is dropped, and counted no more.
    let _ = thread::Builder::new().name("control client".into()).spawn(serve);
}

/// Answers one client's requests until it leaves or goes beyond a bound.
fn serve(stream: &UnixStream, board: &Weak<Board>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut received = Vec::new();
    loop {
        let line = match next_line(stream, &mut received)? {
            Line::Complete(line) => line,
            Line::None => return Ok(()),
            Line::TooLong => {
                return say(stream, &json!({ "error": format!("the request is longer than {LINE_BYTES_MAX} bytes") }));
            }
        };
        let Some(board) = board.upgrade() else { return Ok(()) };
        say(stream, &board.answer(&line))?;
    }
}

enum Line {
    Complete(Vec<u8>),
    None,
    TooLong,
}

/// The next line of what was `received` and what is to come; all of it must be there in time, however it trickles.
fn next_line(mut stream: &UnixStream, received: &mut Vec<u8>) -> io::Result<Line> {
    let end = Instant::now() + PATIENCE;
    let mut looked = 0;
    loop {
        if let Some(at) = received[looked..].iter().position(|byte| *byte == b'\n') {
            let rest = received.split_off(looked + at + 1);
            return Ok(Line::Complete(std::mem::replace(received, rest)));
        }
        if received.len() >= LINE_BYTES_MAX {
            return Ok(Line::TooLong);
        }
        looked = received.len();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(Line::None),
            Ok(len) => received.extend(&bytes[..len]),
            // A signal of the server's, which happened to meet this thread.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn say(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    let mut line = answer.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}
