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

use crate::trial::Trial;

/// Nothing is tried before so many of the last waits were short: a long one halves their number.
const SHORT_MIN: u32 = 64;
const SHORT_MAX: u32 = 256;

/// A wait that ends with more completions than a reply's and the next request's is not one of a lone client.
const COMPLETIONS_MAX: usize = 2;

/// What one processor concludes from its waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAwake {
    /// Short waits lately.
    short: u32,
    trial: Trial,
}

impl KeepAwake {
    /// Whether the cores of other processors are to be kept awake now.
    pub const fn is_on(&self) -> bool {
        self.trial.is_on() && self.short >= SHORT_MIN
    }

    /// A request took longer than is worth polling for.
    pub fn on_long_request(&mut self) {
        self.short /= 2;
    }

    /// So many completions arrived `waited` after the processor became idle, which polls for `longest` at most.
    pub fn on_work(&mut self, waited: Duration, completions: usize, longest: Duration) {
        if waited > longest || completions > COMPLETIONS_MAX {
            self.short /= 2;
            return;
        }
        self.short = (self.short + 1).min(SHORT_MAX);
        if self.short >= SHORT_MIN {
            self.trial.on_wait(waited);
        }
    }
}
