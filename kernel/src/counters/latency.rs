//! Latency histograms: each power of two is divided into eight buckets, so that percentiles are exact to an eighth at
//! any scale, and recording is an increment.

use super::Counter;

/// log2 of the buckets per octave.
const CUT_BITS: u32 = 3;

const CUT: usize = 1 << CUT_BITS;

/// 2^41 ticks or longer (minutes) go into the last bucket.
const OCTAVE_MAX: u32 = 40;

pub const BUCKETS: usize = (OCTAVE_MAX - CUT_BITS + 2) as usize * CUT;

/// The bucket of a duration in ticks.
#[inline]
fn bucket(ticks: u64) -> usize {
    if ticks < CUT as u64 {
        return ticks as usize;
    }
    let octave = ticks.ilog2();
    if octave > OCTAVE_MAX {
        return BUCKETS - 1;
    }
    let shift = octave - CUT_BITS;
    (shift as usize + 1) * CUT + (ticks >> shift) as usize % CUT
}

/// The shortest duration, in ticks, that is beyond a bucket.
pub fn upper_bound(bucket: usize) -> u64 {
    if bucket < CUT {
        return bucket as u64 + 1;
    }
    let shift = bucket / CUT - 1;
    ((CUT + bucket % CUT + 1) as u64) << shift
}

/// A histogram with one processor as its writer.
pub(super) struct Latency([Counter; BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Latency(std::array::from_fn(|_| Counter::default()))
    }
}

impl Latency {
    #[inline]
    pub(super) fn record(&self, count: u64, ticks: u64) {
        self.0[bucket(ticks)].add(count);
    }

    pub(super) fn read(&self) -> Histogram {
        Histogram { buckets: self.0.iter().map(Counter::get).collect() }
    }
}

/// Number of requests by latency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
}

impl Histogram {
    /// Requests in each bucket, shortest first.
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn add(&mut self, other: &Histogram) {
        self.buckets.resize(BUCKETS, 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, more)| *sum += more);
    }

    /// Requests that took less than `ticks`, interpolated within a bucket.
    pub fn below(&self, ticks: f64) -> u64 {
        let (mut sum, mut lower) = (0, 0);
        for (bucket, count) in self.buckets.iter().enumerate() {
            let upper = upper_bound(bucket);
            if upper as f64 > ticks {
                let part = (ticks - lower as f64) / (upper - lower) as f64;
                return sum + (*count as f64 * part.max(0.0)) as u64;
            }
            sum += count;
            lower = upper;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_lies_in_its_bucket_and_buckets_are_an_eighth_wide_at_most() {
        let mut ticks = 0;
        while ticks < 1 << 41 {
            let bucket = bucket(ticks);
            let lower = if bucket == 0 { 0 } else { upper_bound(bucket - 1) };
            let upper = upper_bound(bucket);
            assert!((lower..upper).contains(&ticks), "{ticks} is not in {lower}..{upper}");
            assert!(upper - lower <= (lower / CUT as u64).max(1), "{lower}..{upper}");
            ticks += ticks / 97 + 1;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket((1 << 41) - 1), BUCKETS - 1);
    }

    #[test]
    fn as_many_are_below_a_latency_as_were_recorded() {
        let latency = Latency::default();
        assert_eq!(latency.read().below(1e9), 0);
        (1..=1000).for_each(|ticks| latency.record(1, ticks));
        let read = latency.read();
        assert_eq!(read.total(), 1000);
        assert_eq!(read.below(1e9), 1000);
        assert!((495..=505).contains(&read.below(501.0)), "{}", read.below(501.0));
    }
}
