//! Signals that end the program.

use std::time::Duration;

/// One that comes so soon after the first is the same once more: timeout(1), and some supervisors, signal the process and
/// then its group. Whoever does not want to wait any longer sends another.
pub const SAME_SIGNAL: Duration = Duration::from_millis(500);
