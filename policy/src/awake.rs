//! Whether idle processors keep the cores of others awake, while one of them waits for the next request, and for short times
//! only.
//!
//! A client that is answered, or a worker of the host that completes a write, runs on a core that sleeps, if there is one.
//! On a virtual machine to wake it takes tens of microseconds, several times what one request costs. If the idle
//! processors poll, too, and yield, no core sleeps: the client runs at once beside one of them. With one client on
//! the same two cores cached reads became about twice as fast. It helps nobody whose clients are on other
//! machines, or sleep themselves, and it costs the time of whole cores: so it is tried, and goes on only where waits
//! become shorter. With many clients, who keep the cores awake themselves, it took a tenth of what they did.

use std::time::Duration;

/// Waits after a change that do not count, and those that do.
const SETTLE: u32 = 8;
const TRIAL: u32 = 64;
/// Waits until the other way is tried again.
const HOLD: u32 = 4096;

/// Waits with awake cores must take at most this percentage of those without.
const WORTH_PERCENT: u128 = 85;

/// Nothing is tried before so many of the last waits were short: a long one halves their number.
const SHORT_MIN: u32 = 64;
const SHORT_MAX: u32 = 256;

/// A wait that ends with more completions than a reply's and the next request's is not one of a lone client.
const COMPLETIONS_MAX: usize = 2;

/// What one processor concludes from its waits.
#[derive(Clone, Copy, Debug)]
pub struct KeepAwake {
    is_on: bool,
    /// Short waits lately.
    short: u32,
    /// Short waits until the other way is tried, or the trial ends; and the nanoseconds of the last of them.
    left: u32,
    spent: u128,
    /// On trial: what the waits took before. Nanoseconds.
    before: Option<u128>,
}

impl Default for KeepAwake {
    fn default() -> Self {
        KeepAwake { is_on: false, short: 0, left: SETTLE + TRIAL, spent: 0, before: None }
    }
}

impl KeepAwake {
    /// Whether the cores of other processors are to be kept awake now.
    pub const fn is_on(&self) -> bool {
        self.is_on && self.short >= SHORT_MIN
    }

    /// So many completions arrived `waited` after the processor became idle, which polls for `longest` at most.
    pub fn on_work(&mut self, waited: Duration, completions: usize, longest: Duration) {
        if waited > longest || completions > COMPLETIONS_MAX {
            self.short /= 2;
            return;
        }
        self.short = (self.short + 1).min(SHORT_MAX);
        if self.short < SHORT_MIN {
            return;
        }
        if self.left <= TRIAL {
            self.spent += waited.as_nanos();
        }
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        let spent = std::mem::take(&mut self.spent);
        match self.before.take() {
            None => {
                (self.is_on, self.left, self.before) = (!self.is_on, SETTLE + TRIAL, Some(spent));
            }
            Some(before) => {
                let (without, with) = if self.is_on { (before, spent) } else { (spent, before) };
                (self.is_on, self.left) = (with * 100 <= without * WORTH_PERCENT, HOLD);
            }
        }
    }
}
