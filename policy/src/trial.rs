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
    /// Whether the change is to be in force.
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// A wait that the change may shorten ended.
    pub fn on_wait(&mut self, waited: Duration) {
        if self.left <= WINDOW {
            self.spent += waited.as_nanos();
        }
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        let spent = std::mem::take(&mut self.spent);
        match self.before.take() {
            None => {
                (self.is_on, self.left, self.before) = (!self.is_on, SETTLE + WINDOW, Some(spent));
            }
            Some(before) => {
                let (without, with) = if self.is_on { (before, spent) } else { (spent, before) };
                (self.is_on, self.left) = (with * 100 <= without * WORTH_PERCENT, HOLD);
            }
        }
    }
}
