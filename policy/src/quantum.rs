//! When completions are taken (OLTP-1): one by one as they arrive, or in a batch after a quantum, so that the requests
//! they cause are issued in one submission.
//!
//! Waiting makes each request slower and all of them cheaper. Which counts more depends on the clients, so it is tried.
//! First, in a few time slices: do more requests arrive when the processor waits? A client that has one request in
//! flight and waits for its reply sends no other meanwhile, and is not delayed further. If so, epochs with and without
//! the quantum alternate, and waiting stays on for a while unless it served fewer requests.
//!
//! Whether completions should gather for a while is tried, not guessed: first in eight time slices, whether more
//! requests gather at all (one client with one request in flight sends no other meanwhile, and must not be later for
//! the question); then epochs of 4 ms with and without the quantum alternate, and the processor waits unless that
//! serves fewer requests; the verdict holds for 0.6 s. (32 cached 4 KiB reads in flight: a fifth to a third more, and a
//! tenth of the kernel entries, because client and server meet less often in the socket.)

use std::time::Duration;

use crate::unit::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each completion is taken by itself, as it arrives.
    Off,
    /// Always this long (the paper: 24 ms).
    Fixed { quantum: Duration },
    /// A short while, when that proves to serve more.
    #[default]
    Adaptive,
}

const QUANTUM: Duration = Duration::from_micros(20);
/// Time slices in which to probe whether waiting gathers more.
const PROBES: u64 = 8;
/// Probing succeeds when two time slices served at least as much as three did before.
const GATHERED: (u64, u64) = (3, 2);
/// Duration of one half of a comparison.
const EPOCH: Duration = Duration::from_millis(4);
/// Epochs of a trial, half of them with the quantum.
const EPOCHS: u32 = 10;
/// How long the result of a trial holds.
const RESULT_VALID: Duration = Duration::from_millis(600);
/// With fewer requests a second there is nothing to gain.
const REQUESTS_A_SECOND_MIN: u64 = 20_000;
/// Where the quantum is on already, it stays while it serves no fewer requests than without, less this tolerance:
/// trials are noisy, and it is the cheaper way.
const TOLERANCE_PERMILLE: u64 = 20;

#[derive(Clone, Debug)]
pub struct Quantum {
    mode: Mode,
    began: Instant,
    /// Since `began`.
    served: Sample,
    state: State,
}

/// Requests, and the time slices that served any.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    requests: u64,
    slices: u64,
}

impl Sample {
    fn add(&mut self, requests: u64) {
        self.requests += requests;
        self.slices += 1;
    }

    /// Whether time slices were fuller by the ratio [`GATHERED`].
    fn is_gathered(self, than: Sample) -> bool {
        let (much, little) = GATHERED;
        self.requests * than.slices * little >= than.requests * self.slices * much
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The result of the last trial, valid until then.
    Settled { with: bool, until: Instant },
    /// Probing: what arrived after each wait, and in the epoch before.
    Probe { gathered: Option<Sample>, before: Sample },
    /// Requests and nanoseconds without and with the quantum so far.
    Trial { was_with: bool, epoch: u32, sides: [(u64, u64); 2] },
}

impl State {
    const fn trial(was_with: bool) -> Self {
        State::Trial { was_with, epoch: 0, sides: [(0, 0); 2] }
    }
}

impl Quantum {
    pub const fn new(mode: Mode) -> Self {
        let state = State::Settled { with: false, until: Instant::ZERO };
        Quantum { mode, began: Instant::ZERO, served: Sample { requests: 0, slices: 0 }, state }
    }

    /// Changes the mode, and discards measurements.
    pub const fn set_mode(&mut self, mode: Mode) {
        *self = Quantum::new(mode);
    }

    /// A time slice ended, and `requests` arrived since the last one. Returns how long to wait for completions.
    pub fn on_time_slice(&mut self, now: Instant, requests: u64) -> Duration {
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
        // A time slice that served nothing holds back no replies, so waiting cannot gather anything.
        if requests > 0 && self.waits(now, requests) { QUANTUM } else { Duration::ZERO }
    }

    fn waits(&mut self, now: Instant, requests: u64) -> bool {
        match &mut self.state {
            State::Settled { with, .. } => *with,
            State::Trial { epoch, .. } => *epoch % 2 == 1,
            State::Probe { gathered, before } => {
                // Requests of the first time slice arrived without waiting.
                let Some(gathered) = gathered else {
                    *gathered = Some(Sample::default());
                    return true;
                };
                gathered.add(requests);
                if gathered.slices < PROBES {
                    return true;
                }
                self.state = if gathered.is_gathered(*before) {
                    (self.began, self.served) = (now, Sample::default());
                    State::trial(false)
                } else {
                    State::Settled { with: false, until: now + RESULT_VALID }
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
                    let with = is_no_worse(sides, if was_with { TOLERANCE_PERMILLE } else { 0 });
                    State::Settled { with, until: now + RESULT_VALID }
                }
            }
        };
    }
}

/// Whether the quantum serves as many requests, less the tolerance.
fn is_no_worse([without, with]: [(u64, u64); 2], tolerance_permille: u64) -> bool {
    let served = u128::from(with.0) * u128::from(without.1) * 1000;
    served >= u128::from(without.0) * u128::from(with.1) * u128::from(1000 - tolerance_permille)
}
