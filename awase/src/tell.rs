//! Messages for people.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write as _};

use anyhow::Context as _;

/// Writes a line to standard error, which may be closed, full or a pipe that nobody reads any more: `eprintln!` panics then,
/// and a server that panics loses what is not written yet.
pub fn tell(line: impl Display) {
    print_to_stderr(&format!("awase: {line}\n"));
}

/// Writes to standard error where standard output is somebody else's.
pub fn print_to_stderr(text: &str) {
    // Nobody can be told where this fails.
    let _ = io::stderr().write_all(text.as_bytes());
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
