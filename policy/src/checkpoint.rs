//! How fast a database's checkpoint goes beside the transactions that go on meanwhile.
//!
//! All at once it would be over soon, and who transacts meanwhile would wait for it: with a million accounts it took 100 ms of
//! a processor, in slices of half a millisecond and more, and stalls of 50 ms. So it is spread, as PostgreSQL's
//! `checkpoint_completion_target` does: it rests after each slice, as long as it is ahead of what transactions use up meanwhile
//! of the room that they have until the next one must begin.

use std::time::Duration;

/// A rest: slices of some 100 µs between such rests take a tenth of a processor.
pub const REST: Duration = Duration::from_millis(1);

/// It is to end when this part of the room is used.
const TARGET: f64 = 0.5;

/// What a checkpoint does after a slice of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Others run first.
    Yield,
    /// For [`REST`].
    Rest,
}

/// After the part `done` of the work, when the part `used` of the room for transactions is; `is_awaited`: somebody waits for
/// its end.
pub fn next(done: f64, used: f64, is_awaited: bool) -> Next {
    if is_awaited || used > TARGET * done { Next::Yield } else { Next::Rest }
}
