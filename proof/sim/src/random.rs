//! Random numbers of a simulated world, all derived from its seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
#[derive(Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Stream number `stream` of `seed`. Each part of a world draws from its own, so that one more draw in one part
    /// does not change the others.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Random(rng)
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no division, and the bias of 2^-64 * bound does not matter.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `min` to `max`, inclusive.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        if max <= min { min } else { min + self.below((max - min).saturating_add(1)) }
    }

    /// True in `permille` of a thousand cases. Draws nothing when the result is certain.
    pub fn permille(&mut self, permille: u32) -> bool {
        match permille {
            0 => false,
            1000.. => true,
            _ => self.below(1000) < u64::from(permille),
        }
    }

    /// One of `options`, which is not empty.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len() as u64) as usize]
    }
}

/// Scatters `value` over all 64 bits (the finalizer of splitmix64): a stateless random number.
pub(crate) const fn scatter(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
