//! Messages for people.
//!
//! A server waits for nobody who should read what it says: a pipe may be full and a terminal stopped. From
//! [`begin_serving`] on, a thread writes what is told, in order, and what nobody reads for long is dropped and counted.
//! Other commands write it themselves.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write as _};
use std::mem;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::{Condvar, Mutex};

/// What may wait to be written. The banner of some thousand exports is shorter, and no single message is cut.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Who reads takes less for a message.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

static WRITER: Writer = Writer {
    waiting: Mutex::new(Waiting { messages: VecDeque::new(), bytes: 0, dropped: 0, written: 0, has_thread: false }),
    changed: Condvar::new(),
};

/// Where a message is written to.
#[derive(Clone, Copy)]
pub enum Stream {
    Output,
    Error,
}

struct Writer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    /// The first one stays, empty, while it is written.
    messages: VecDeque<(Stream, String)>,
    bytes: usize,
    /// Messages after these.
    dropped: u64,
    /// Messages so far.
    written: u64,
    has_thread: bool,
}

impl Waiting {
    fn push(&mut self, stream: Stream, text: String) {
        // After the first dropped one nothing is accepted before that is said, so what is read is in order.
        if self.dropped > 0 || self.bytes >= WAITING_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes += text.len();
        self.messages.push_back((stream, text));
    }

    fn next(&mut self) -> Option<(Stream, String)> {
        if self.messages.is_empty() && self.dropped > 0 {
            let dropped = mem::take(&mut self.dropped);
            self.push(Stream::Error, format!("awase: {dropped} messages were dropped here, as nobody read them\n"));
        }
        let (stream, text) = self.messages.front_mut()?;
        Some((*stream, mem::take(text)))
    }
}

impl Writer {
    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            let Some((stream, text)) = waiting.next() else {
                self.changed.wait(&mut waiting);
                continue;
            };
            drop(waiting);
            write(stream, &text);
            waiting = self.waiting.lock();
            waiting.messages.pop_front();
            waiting.bytes -= text.len();
            waiting.written += 1;
            self.changed.notify_all();
        }
    }
}

/// From now on nobody who tells something waits for its reader.
///
/// # Errors
/// When there is no thread.
pub fn begin_serving() -> io::Result<()> {
    std::thread::Builder::new().name("messages".into()).spawn(|| WRITER.run())?;
    WRITER.waiting.lock().has_thread = true;
    Ok(())
}

/// Waits until all that was told is written, or nobody reads it.
pub fn settle() {
    let mut waiting = WRITER.waiting.lock();
    let (mut written, mut end) = (waiting.written, Instant::now() + READ_TIMEOUT);
    while !waiting.messages.is_empty() || waiting.dropped > 0 {
        if WRITER.changed.wait_until(&mut waiting, end).timed_out() {
            return;
        }
        if waiting.written != written {
            (written, end) = (waiting.written, Instant::now() + READ_TIMEOUT);
        }
    }
}

/// Writes a line to standard error, which may be closed, full or a pipe that nobody reads any more: `eprintln!` panics then,
/// and a server that panics loses what is not written yet.
pub fn tell(line: impl Display) {
    say(Stream::Error, format!("awase: {line}\n"));
}

/// Writes to a stream that may fail, and that a server does not wait for.
pub fn say(stream: Stream, text: String) {
    let mut waiting = WRITER.waiting.lock();
    if waiting.has_thread {
        waiting.push(stream, text);
        WRITER.changed.notify_all();
    } else {
        drop(waiting);
        write(stream, &text);
    }
}

/// Nobody can be told where this fails.
fn write(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Output => print(text),
        Stream::Error => io::stderr().write_all(text.as_bytes()).map_err(Into::into),
    };
}

/// Writes to standard output, where `print!` panics if that is full or nobody reads it any more.
///
/// # Errors
/// As [`print_by`].
pub fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    print_by(|output| output.write_all(text.as_ref()))
}

/// Has `write` write to standard output. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_by(write: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    match write(&mut output).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
