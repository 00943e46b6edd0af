//! When completions are taken (OLTP-1): one by one as they come, or together after a quantum, so that what they cause is
//! issued in one submission.
//!
//! To wait makes each request later and all of them cheaper. Which of the two counts more depends on who asks, so it is
//! tried: under load, epochs with and without the quantum alternate, and what served more requests is kept for a while.
//! A client that waits for its answers is served more often only if they come sooner.

use std::time::Duration;

use crate::unit::Instant;

/// How long to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// Always so long (the paper: 24 ms).
    Fixed {
        /// The quantum.
        quantum: Duration,
    },
    /// A little while, when that proves to serve more.
    #[default]
    Adaptive,
}

/// What is tried.
const QUANTUM: Duration = Duration::from_micros(20);
/// One side of a trial.
const EPOCH: Duration = Duration::from_millis(4);
/// Epochs of a trial, one half of them with the quantum.
const EPOCHS: u32 = 10;
/// A verdict holds so long.
const VERDICT: Duration = Duration::from_millis(600);
/// With fewer requests a second nothing is to be gained.
const REQUESTS_A_SECOND_MIN: u64 = 20_000;
/// The quantum must serve so many more requests of a thousand.
const GAIN_PERMILLE: u64 = 50;

/// The quantum of one processor.
#[derive(Clone, Debug)]
pub struct Quantum {
    mode: Mode,
    began: Instant,
    /// Since `began`.
    requests: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Served as was found best, until then.
    Settled { with: bool, until: Instant },
    /// In this epoch; requests and nanoseconds without and with the quantum so far.
    Trial { epoch: u32, served: [(u64, u64); 2] },
}

impl Quantum {
    /// A policy that has seen nothing yet.
    pub const fn new(mode: Mode) -> Self {
        let state = State::Settled { with: false, until: Instant::ZERO };
        Quantum { mode, began: Instant::ZERO, requests: 0, state }
    }

    /// Waits in another way from now on, and forgets what was tried.
    pub const fn set_mode(&mut self, mode: Mode) {
        *self = Quantum::new(mode);
    }

    /// The processor has done what there was to do, and `requests` came since it was asked last. How long should it wait
    /// before it takes completions?
    pub fn on_turn(&mut self, now: Instant, requests: u64) -> Duration {
        match self.mode {
            Mode::Off => return Duration::ZERO,
            Mode::Fixed { quantum } => return quantum,
            Mode::Adaptive => self.requests += requests,
        }
        let elapsed = now.since(self.began);
        if elapsed >= EPOCH {
            self.end_epoch(now, elapsed);
        }
        let with = match self.state {
            State::Settled { with, .. } => with,
            State::Trial { epoch, .. } => epoch % 2 == 1,
        };
        if with { QUANTUM } else { Duration::ZERO }
    }

    fn end_epoch(&mut self, now: Instant, elapsed: Duration) {
        let (requests, ns) = (std::mem::take(&mut self.requests), elapsed.as_nanos() as u64);
        self.began = now;
        let is_idle = u128::from(requests) * 1_000_000_000 < u128::from(REQUESTS_A_SECOND_MIN) * u128::from(ns);
        self.state = match self.state {
            _ if is_idle => State::Settled { with: false, until: now },
            State::Settled { until, .. } if now >= until => State::Trial { epoch: 0, served: [(0, 0); 2] },
            State::Settled { .. } => self.state,
            State::Trial { epoch, mut served } => {
                let side = &mut served[(epoch % 2) as usize];
                *side = (side.0 + requests, side.1 + ns);
                if epoch + 1 < EPOCHS {
                    State::Trial { epoch: epoch + 1, served }
                } else {
                    State::Settled { with: is_better(served), until: now + VERDICT }
                }
            }
        };
    }
}

fn is_better([without, with]: [(u64, u64); 2]) -> bool {
    let gained = u128::from(with.0) * u128::from(without.1) * 1000;
    gained > u128::from(without.0) * u128::from(with.1) * u128::from(1000 + GAIN_PERMILLE)
}
