//! When completions are taken (OLTP-1): one by one as they come, or together after a quantum, so that what they cause is
//! issued in one submission.
//!
//! To wait makes each request later and all of them cheaper. Which of the two counts more depends on who asks, so it is
//! tried. First, with a few turns only: does more come together when the processor waits? Whoever has one request in
//! flight and waits for its answer sends no other meanwhile, and is not held up further. If so, epochs with and without
//! the quantum alternate, and waiting is kept for a while unless it served fewer requests.

use std::time::Duration;

use crate::unit::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// Always so long (the paper: 24 ms).
    Fixed { quantum: Duration },
    /// A little while, when that proves to serve more.
    #[default]
    Adaptive,
}

const QUANTUM: Duration = Duration::from_micros(20);
/// Turns that wait to see whether more comes together.
const PROBES: u64 = 8;
/// Then as much must come in two turns as came in three.
const GATHERED: (u64, u64) = (3, 2);
/// One side of a trial.
const EPOCH: Duration = Duration::from_millis(4);
/// Epochs of a trial, one half of them with the quantum.
const EPOCHS: u32 = 10;
/// A verdict holds so long.
const VERDICT: Duration = Duration::from_millis(600);
/// With fewer requests a second nothing is to be gained.
const REQUESTS_A_SECOND_MIN: u64 = 20_000;
/// Where the processor waits already, it goes on while it serves no fewer requests than without but for so many of a
/// thousand: trials are not exact, and it is the cheaper way.
const DOUBT_PERMILLE: u64 = 20;

/// The quantum of one processor.
#[derive(Clone, Debug)]
pub struct Quantum {
    mode: Mode,
    began: Instant,
    /// Since `began`.
    served: Served,
    state: State,
}

/// Requests, and turns that served any.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    requests: u64,
    turns: u64,
}

impl Served {
    fn add(&mut self, requests: u64) {
        self.requests += requests;
        self.turns += 1;
    }

    /// Were turns so much fuller than those?
    fn is_gathered(self, than: Served) -> bool {
        let (much, little) = GATHERED;
        self.requests * than.turns * little >= than.requests * self.turns * much
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Served as was found best, until then.
    Settled { with: bool, until: Instant },
    /// Waits for a few turns. What came after each wait, and what came in the epoch before.
    Probe { gathered: Option<Served>, before: Served },
    /// In this epoch; requests and nanoseconds without and with the quantum so far.
    Trial { was_with: bool, epoch: u32, sides: [(u64, u64); 2] },
}

impl State {
    const fn trial(was_with: bool) -> Self {
        State::Trial { was_with, epoch: 0, sides: [(0, 0); 2] }
    }
}

impl Quantum {
    /// A policy that has seen nothing yet.
    pub const fn new(mode: Mode) -> Self {
        let state = State::Settled { with: false, until: Instant::ZERO };
        Quantum { mode, began: Instant::ZERO, served: Served { requests: 0, turns: 0 }, state }
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
            Mode::Adaptive => {}
        }
        if requests > 0 {
            self.served.add(requests);
        }
        let elapsed = now.since(self.began);
        if elapsed >= EPOCH {
            self.end_epoch(now, elapsed);
        }
        // A turn that served nothing has no answers to hold back, and nobody asks anew for what he has not got yet.
        if requests > 0 && self.waits(now, requests) { QUANTUM } else { Duration::ZERO }
    }

    fn waits(&mut self, now: Instant, requests: u64) -> bool {
        match &mut self.state {
            State::Settled { with, .. } => *with,
            State::Trial { epoch, .. } => *epoch % 2 == 1,
            State::Probe { gathered, before } => {
                // What came in the first turn was not waited for.
                let Some(gathered) = gathered else {
                    *gathered = Some(Served::default());
                    return true;
                };
                gathered.add(requests);
                if gathered.turns < PROBES {
                    return true;
                }
                self.state = if gathered.is_gathered(*before) {
                    (self.began, self.served) = (now, Served::default());
                    State::trial(false)
                } else {
                    State::Settled { with: false, until: now + VERDICT }
                };
                false
            }
        }
    }

    fn end_epoch(&mut self, now: Instant, elapsed: Duration) {
        let (served, ns) = (std::mem::take(&mut self.served), elapsed.as_nanos() as u64);
        self.began = now;
        let is_idle = u128::from(served.requests) * 1_000_000_000 < u128::from(REQUESTS_A_SECOND_MIN) * u128::from(ns);
        self.state = match self.state {
            _ if is_idle => State::Settled { with: false, until: now },
            State::Settled { with: true, until } if now >= until => State::trial(true),
            State::Settled { with: false, until } if now >= until => State::Probe { gathered: None, before: served },
            State::Settled { .. } | State::Probe { .. } => self.state,
            State::Trial { was_with, epoch, mut sides } => {
                let side = &mut sides[(epoch % 2) as usize];
                *side = (side.0 + served.requests, side.1 + ns);
                if epoch + 1 < EPOCHS {
                    State::Trial { was_with, epoch: epoch + 1, sides }
                } else {
                    let with = is_no_worse(sides, if was_with { DOUBT_PERMILLE } else { 0 });
                    State::Settled { with, until: now + VERDICT }
                }
            }
        };
    }
}

/// Does the quantum serve as many requests, but for so many of a thousand?
fn is_no_worse([without, with]: [(u64, u64); 2], doubt_permille: u64) -> bool {
    let served = u128::from(with.0) * u128::from(without.1) * 1000;
    served >= u128::from(without.0) * u128::from(with.1) * u128::from(1000 - doubt_permille)
}
