//! Clocks that run at different rates.

use std::time::Duration;

use policy::unit::Instant;
use testkit::random::Random;

use super::{DRIFT_PPM, True};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: u64,
    ppm: i64,
}

impl Clock {
    pub fn any(random: &mut Random) -> Self {
        let bound = i64::from(DRIFT_PPM);
        let ppm = match random.below(4) {
            0 => -bound,
            1 => bound,
            _ => random.below(2 * bound as u64) as i64 - bound,
        };
        Clock { offset: random.below(1 << 40), ppm }
    }

    fn rate(self) -> u128 {
        (1_000_000 + self.ppm) as u128
    }

    pub fn local(self, at: True) -> Instant {
        Instant::from_ns(self.offset + (u128::from(at) * self.rate() / 1_000_000) as u64)
    }

    /// The first true time at which the clock shows `local`.
    pub fn at(self, local: Instant) -> True {
        (u128::from(local.ns().saturating_sub(self.offset)) * 1_000_000).div_ceil(self.rate()) as u64
    }

    pub fn lasts(self, duration: Duration) -> u64 {
        (duration.as_nanos() * 1_000_000).div_ceil(self.rate()) as u64
    }
}
