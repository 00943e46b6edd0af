//! Messages for people.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line to standard error, which may be closed, full or a pipe that nobody reads any more: `eprintln!` panics then,
/// and a server that panics loses what is not written yet.
pub fn tell(line: impl Display) {
    let line = format!("awase: {line}\n");
    // Nobody can be told where this fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
