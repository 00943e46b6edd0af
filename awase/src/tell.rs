//! Messages for people.
//!
//! A server waits for nobody who should read what it says: a pipe may be full and a terminal stopped. From
//! [`begin_serving`] on, a thread for each stream writes what is told, in order, and what nobody reads for long is dropped and
//! counted: a stream that nobody reads holds up no other. Other commands write it themselves.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write as _};
use std::mem;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::{Condvar, Mutex};

/// What may wait to be written to a stream. No single message is cut.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Who reads takes less for a message.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Who reads slowly is waited for no longer: a signal may wait, too.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

static OUTPUT: Writer = Writer::new(Stream::Output);
static ERROR: Writer = Writer::new(Stream::Error);

/// Where a message is written to.
#[derive(Clone, Copy)]
pub enum Stream {
    Output,
    Error,
}

struct Writer {
    stream: Stream,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    /// The first one stays, empty, while it is written.
    messages: VecDeque<String>,
    bytes: usize,
    /// Messages after these.
    dropped: u64,
    /// Messages so far.
    written: u64,
    has_thread: bool,
}

impl Waiting {
    fn push(&mut self, text: String) {
        // After the first dropped one nothing is accepted before that is said, so what is read is in order.
        if self.dropped > 0 || self.bytes >= WAITING_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes += text.len();
        self.messages.push_back(text);
    }

    fn next(&mut self) -> Option<String> {
        if self.messages.is_empty() && self.dropped > 0 {
            let dropped = mem::take(&mut self.dropped);
            self.push(format!("awase: {dropped} messages were dropped here, as nobody read them\n"));
        }
        self.messages.front_mut().map(mem::take)
    }

    fn note_written(&mut self, text: &str) {
        self.messages.pop_front();
        self.bytes -= text.len();
        self.written += 1;
    }

    /// How many are written when all that was told until now is.
    fn end(&self) -> u64 {
        self.written + self.messages.len() as u64 + u64::from(self.dropped > 0)
    }
}

impl Writer {
    const fn new(stream: Stream) -> Writer {
        let waiting = Waiting { messages: VecDeque::new(), bytes: 0, dropped: 0, written: 0, has_thread: false };
        Writer { stream, waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            let Some(text) = waiting.next() else {
                self.changed.wait(&mut waiting);
                continue;
            };
            drop(waiting);
            self.write(&text);
            waiting = self.waiting.lock();
            waiting.note_written(&text);
            self.changed.notify_all();
        }
    }

    /// Nobody can be told where this fails.
    fn write(&self, text: &str) {
        let _ = match self.stream {
            Stream::Output => print(text),
            Stream::Error => io::stderr().write_all(text.as_bytes()).map_err(Into::into),
        };
    }

    fn settle(&self, end: Instant) {
        let mut waiting = self.waiting.lock();
        let all = waiting.end();
        let (mut written, mut stuck) = (waiting.written, Instant::now() + READ_TIMEOUT);
        while waiting.written < all {
            if self.changed.wait_until(&mut waiting, stuck.min(end)).timed_out() {
                return;
            }
            if waiting.written != written {
                (written, stuck) = (waiting.written, Instant::now() + READ_TIMEOUT);
            }
        }
    }
}

/// From now on nobody who tells something waits for its reader.
///
/// # Errors
/// When there is no thread.
pub fn begin_serving() -> io::Result<()> {
    for writer in [&OUTPUT, &ERROR] {
        std::thread::Builder::new().name("messages".into()).spawn(move || writer.run())?;
        writer.waiting.lock().has_thread = true;
    }
    Ok(())
}

/// Waits until all that was told before is written, or nobody reads it, or only slowly.
pub fn settle() {
    settle_within(SETTLE_TIMEOUT);
}

/// As [`settle`], for at most `bound`.
pub fn settle_within(bound: Duration) {
    let end = Instant::now() + bound;
    for writer in [&OUTPUT, &ERROR] {
        writer.settle(end);
    }
}

/// Writes a line to standard error, which may be closed, full or a pipe that nobody reads any more: `eprintln!` panics then,
/// and a server that panics loses what is not written yet.
pub fn tell(line: impl Display) {
    say(Stream::Error, format!("awase: {line}\n"));
}

/// As [`tell`], a line each. They are one message, which is written or dropped as a whole.
pub fn tell_all(lines: impl IntoIterator<Item = impl Display>) {
    say(Stream::Error, lines.into_iter().map(|line| format!("awase: {line}\n")).collect());
}

/// Writes to a stream that may fail, and that a server does not wait for.
pub fn say(stream: Stream, text: String) {
    let writer = match stream {
        Stream::Output => &OUTPUT,
        Stream::Error => &ERROR,
    };
    let mut waiting = writer.waiting.lock();
    if !waiting.has_thread {
        drop(waiting);
        writer.write(&text);
    } else if !text.is_empty() {
        waiting.push(text);
        writer.changed.notify_all();
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn what_is_told_meanwhile_is_not_waited_for() {
        let (writer, is_settled) = (Writer::new(Stream::Error), AtomicBool::new(false));
        writer.waiting.lock().push("first".into());
        let go_on = || {
            let mut waiting = writer.waiting.lock();
            waiting.push("another".into());
            let text = waiting.next().expect("pushed");
            waiting.note_written(&text);
            writer.changed.notify_all();
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_settled.load(Ordering::Relaxed) {
                    go_on();
                    thread::yield_now();
                }
            });
            let (begin, bound) = (Instant::now(), Duration::from_secs(60));
            writer.settle(begin + bound);
            is_settled.store(true, Ordering::Relaxed);
            assert!(begin.elapsed() < bound);
        });
        assert!(writer.waiting.lock().written > 0);
    }

    #[test]
    fn a_slow_reader_is_not_waited_for_longer_than_is_allowed() {
        let writer = Writer::new(Stream::Error);
        writer.waiting.lock().push("never written".into());
        let begin = Instant::now();
        writer.settle(begin);
        assert!(begin.elapsed() < READ_TIMEOUT);
    }
}
