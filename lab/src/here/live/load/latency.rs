//! How long requests took: a histogram of bounded size.

/// Each power of two is split into so many.
const PARTS: u64 = 64;
const PARTS_BITS: u32 = PARTS.trailing_zeros();

/// Counts of latencies in nanoseconds, each known to a sixty-fourth of itself.
#[derive(Clone, Debug)]
pub(in crate::here::live) struct Latencies {
    counts: Vec<u32>,
    total: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { counts: vec![0; bucket(u64::MAX) + 1], total: 0 }
    }
}

impl Latencies {
    pub(in crate::here::live) fn record(&mut self, ns: u64) {
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    pub(in crate::here::live) fn add(&mut self, other: &Latencies) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        self.total += other.total;
    }

    /// What that part of all did not exceed, in microseconds; 0 of none.
    pub(in crate::here::live) fn percentile_us(&self, part: f64) -> f64 {
        let rank = ((part * self.total as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (number, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below >= rank {
                return middle(number) / 1000.0;
            }
        }
        0.0
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS {
        return ns as usize;
    }
    let shift = ns.ilog2() - PARTS_BITS;
    (u64::from(shift) * PARTS + (ns >> shift)) as usize
}

fn middle(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    if bucket < 2 * PARTS {
        return bucket as f64;
    }
    let shift = bucket / PARTS - 1;
    ((bucket - shift * PARTS) as f64 + 0.5) * 2_f64.powi(shift as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_known_to_a_sixty_fourth() {
        let mut latencies = Latencies::default();
        (1..=100_000).for_each(|us: u64| latencies.record(us * 1000));
        for (part, us) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0), (1.0, 100_000.0)] {
            let told = latencies.percentile_us(part);
            assert!((told / us - 1.0).abs() < 1.0 / 64.0, "{part}: {told}");
        }
        assert_eq!(Latencies::default().percentile_us(0.5), 0.0);
    }

    #[test]
    fn the_shortest_and_the_longest_have_their_places() {
        let mut latencies = Latencies::default();
        [0, 63, 64, 127, 128, u64::MAX].into_iter().for_each(|ns| latencies.record(ns));
        assert_eq!(latencies.total, 6);
        let mut both = latencies.clone();
        both.add(&latencies);
        assert_eq!(both.total, 12);
    }
}
