//! What is drawn: which transaction, with which arguments, and when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};

use super::mix::{Argument, Mix};

/// The draws of one worker. The same for the same seed and worker.
pub struct Draw {
    random: StdRng,
    /// Up to each transaction, its weight included.
    weights: Vec<u64>,
    /// What TPC-C's constants C are made of: the same for all workers, or each would have other favourites.
    constant: i64,
}

impl Draw {
    pub fn new(mix: &Mix, worker: usize) -> Self {
        let random = StdRng::seed_from_u64(mix.seed.wrapping_mul(0x9e37_79b9).wrapping_add(worker as u64));
        let mut sum = 0;
        let mut add = |weight: u32| {
            sum += u64::from(weight);
            sum
        };
        let weights = mix.transactions_of.iter().map(|one| add(one.weight)).collect();
        let constant = StdRng::seed_from_u64(mix.seed).random_range(0..=i64::from(u32::MAX));
        Draw { random, weights, constant }
    }

    /// The index of a transaction.
    pub fn transaction(&mut self) -> usize {
        let sum = self.weights.last().copied().unwrap_or(1).max(1);
        let drawn = self.random.random_range(0..sum);
        self.weights.partition_point(|up_to| *up_to <= drawn)
    }

    /// An argument as text.
    pub fn argument(&mut self, argument: &Argument, terminal: usize, count: &AtomicU64) -> String {
        match argument {
            Argument::Uniform([from, to]) => self.random.random_range(*from..=*to).to_string(),
            Argument::Zipf([from, to]) => self.zipf(*from, *to).to_string(),
            Argument::NonUniform { a, from, to } => {
                let (high, low) = (self.random.random_range(0..=*a), self.random.random_range(*from..=*to));
                let span = i128::from(*to) - i128::from(*from) + 1;
                let constant = i128::from(self.constant) % (i128::from(*a) + 1);
                let drawn = (i128::from(high | low) + constant).rem_euclid(span);
                (drawn + i128::from(*from)).to_string()
            }
            Argument::Text(text) => text.clone(),
            Argument::Terminal => (terminal + 1).to_string(),
            Argument::Count => (count.fetch_add(1, Ordering::Relaxed) + 1).to_string(),
        }
    }

    /// The inverse of the harmonic numbers, taken as continuous.
    fn zipf(&mut self, from: i64, to: i64) -> i64 {
        let span = (i128::from(to) - i128::from(from) + 1) as f64;
        let rank = (span + 1.0).powf(self.random.random::<f64>()) - 1.0;
        from.saturating_add(rank as i64).min(to)
    }

    /// A time of this mean, exponentially distributed.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random.random::<f64>()).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(text: &str) -> (Mix, Draw) {
        let mix = Mix::parse(text).expect("a mix");
        let draw = Draw::new(&mix, 0);
        (mix, draw)
    }

    const TWO: &str =
        "[[transaction]]\nname = \"a\"\nweight = 3\nsql = \"a\"\n[[transaction]]\nname = \"b\"\nsql = \"b\"";

    #[test]
    fn weights_are_kept_and_draws_repeat() {
        let (_, mut first) = draw(TWO);
        let drawn: Vec<usize> = (0..4000).map(|_| first.transaction()).collect();
        let share = drawn.iter().filter(|index| **index == 0).count();
        assert!((2850..3150).contains(&share), "{share} of 4000, 3 of 4 expected");
        let (_, mut again) = draw(TWO);
        assert_eq!(drawn, (0..4000).map(|_| again.transaction()).collect::<Vec<_>>());
    }

    #[test]
    fn arguments_stay_within_their_bounds_and_zipf_favours_the_first() {
        let (_, mut draw) = draw(TWO);
        let count = AtomicU64::new(0);
        let mut first = 0;
        for _ in 0..2000 {
            for argument in
                [Argument::Uniform([-5, 5]), Argument::Zipf([-5, 5]), Argument::NonUniform { a: 7, from: -5, to: 5 }]
            {
                let drawn: i64 = draw.argument(&argument, 0, &count).parse().expect("a number");
                assert!((-5..=5).contains(&drawn), "{drawn} of {argument:?}");
                first += usize::from(drawn == -5 && matches!(argument, Argument::Zipf(_)));
            }
        }
        // ln 2 / ln 12 of all.
        assert!((460..660).contains(&first), "{first} of 2000");
        assert!(draw.argument(&Argument::Zipf([1, i64::MAX]), 0, &count).parse::<i64>().is_ok());
        assert_eq!(draw.argument(&Argument::Terminal, 6, &count), "7");
        assert_eq!(draw.argument(&Argument::Count, 6, &count), "1");
        assert_eq!(draw.argument(&Argument::Count, 6, &count), "2");
    }

    #[test]
    fn all_workers_have_the_same_favourites() {
        let (mix, first) = draw(TWO);
        let second = Draw::new(&mix, 1);
        assert_eq!(first.constant, second.constant);
        assert_ne!(first.random, second.random);
    }

    #[test]
    fn times_to_think_have_their_mean() {
        let (_, mut draw) = draw(TWO);
        let sum: Duration = (0..4000).map(|_| draw.exponential(Duration::from_millis(10))).sum();
        assert!((36..44).contains(&sum.as_secs()), "{sum:?} for 40 s");
    }
}
