//! Whether a change shortens waits: it is tried, and stays where it does.

use std::time::Duration;

/// Waits after a change that do not count, and those that do.
const SETTLE: u32 = 8;
const WINDOW: u32 = 64;
/// Waits until the other way is tried again.
const HOLD: u32 = 4096;

/// Waits with the change must take at most this percentage of those without.
const WORTH_PERCENT: u128 = 85;

/// A change on trial.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    is_on: bool,
    /// Waits until the other way is tried, or the trial ends; and the nanoseconds of the last of them.
    left: u32,
    spent: u128,
    /// On trial: what the waits took before. Nanoseconds.
    before: Option<u128>,
}

impl Default for Trial {
    fn default() -> Self {
        Trial { is_on: false, left: SETTLE + WINDOW, spent: 0, before: None }
    }
}

impl Trial {
    /// It has been decided that all stays as it is.
    pub const fn settled() -> Self {
        Trial { is_on: false, left: HOLD, spent: 0, before: None }
    }

    /// Whether the change is to be in force.
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether both ways are being compared now.
    pub const fn is_running(&self) -> bool {
        self.before.is_some() || self.left <= WINDOW
    }

    /// A wait that the change may shorten ended. Returns whether both ways have been compared now.
    pub fn on_wait(&mut self, waited: Duration) -> bool {
        if self.left <= WINDOW {
            self.spent += waited.as_nanos();
        }
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        let spent = std::mem::take(&mut self.spent);
        match self.before.take() {
            None => {
                (self.is_on, self.left, self.before) = (!self.is_on, SETTLE + WINDOW, Some(spent));
                false
            }
            Some(before) => {
                let (without, with) = if self.is_on { (before, spent) } else { (spent, before) };
                (self.is_on, self.left) = (with * 100 <= without * WORTH_PERCENT, HOLD);
                true
            }
        }
    }
}
