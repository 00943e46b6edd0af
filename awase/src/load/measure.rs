//! What is measured, by worker and then in all.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Significant digits of the latencies.
const DIGITS: u8 = 3;

#[derive(Clone)]
pub struct OfTransaction {
    /// From when each was due to its reply, or to the end if it had not begun by then, in microseconds.
    pub latencies: Histogram<u64>,
    /// Of these, those that had not begun.
    pub not_begun: u64,
    /// Errors by SQLSTATE, with the first message of each.
    pub errors: BTreeMap<String, (u64, String)>,
    /// Tried again after a conflict.
    pub retries: u64,
}

impl OfTransaction {
    fn new() -> Self {
        let latencies = Histogram::new(DIGITS).expect("1 to 5 digits are possible");
        OfTransaction { latencies, not_begun: 0, errors: BTreeMap::new(), retries: 0 }
    }

    fn record(&mut self, latency: Duration) {
        self.latencies.record(latency.as_micros() as u64).expect("histograms that resize");
    }

    pub fn done(&self) -> u64 {
        self.latencies.len() - self.not_begun
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }
}

#[derive(Clone)]
pub struct Measured {
    /// In the order of the mix.
    pub transactions: Vec<OfTransaction>,
    /// That ended in each second.
    pub seconds: Vec<u64>,
    pub time: Duration,
}

impl Measured {
    pub fn new(transactions: usize) -> Self {
        Measured { transactions: vec![OfTransaction::new(); transactions], seconds: Vec::new(), time: Duration::ZERO }
    }

    /// A transaction ended well, `at` after the begin.
    pub fn done(&mut self, transaction: usize, latency: Duration, at: Duration) {
        self.transactions[transaction].record(latency);
        let second = at.as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
    }

    /// A transaction was due `waited` before the end, and had not begun then.
    pub fn not_begun(&mut self, transaction: usize, waited: Duration) {
        self.transactions[transaction].record(waited);
        self.transactions[transaction].not_begun += 1;
    }

    pub fn failed(&mut self, transaction: usize, code: &str, message: &str) {
        let errors = &mut self.transactions[transaction].errors;
        errors.entry(code.to_owned()).or_insert_with(|| (0, message.to_owned())).0 += 1;
    }

    pub fn add(&mut self, other: &Measured) {
        for (mine, theirs) in self.transactions.iter_mut().zip(&other.transactions) {
            mine.latencies.add(&theirs.latencies).expect("histograms that resize");
            mine.not_begun += theirs.not_begun;
            mine.retries += theirs.retries;
            for (code, (count, message)) in &theirs.errors {
                mine.errors.entry(code.clone()).or_insert_with(|| (0, message.clone())).0 += count;
            }
        }
        self.seconds.resize(self.seconds.len().max(other.seconds.len()), 0);
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(mine, theirs)| *mine += theirs);
        self.time = self.time.max(other.time);
    }

    pub fn sum(&self, of: fn(&OfTransaction) -> u64) -> u64 {
        self.transactions.iter().map(of).sum()
    }

    /// Did some fail, and none succeed?
    pub fn has_failed(&self) -> bool {
        self.sum(OfTransaction::failed) > 0 && self.sum(OfTransaction::done) == 0
    }

    pub fn all(&self) -> Histogram<u64> {
        let mut all = Histogram::new(DIGITS).expect("1 to 5 digits are possible");
        self.transactions.iter().for_each(|one| all.add(&one.latencies).expect("histograms that resize"));
        all
    }

    /// Transactions a second.
    pub fn rate(&self) -> f64 {
        self.sum(OfTransaction::done) as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_any_length_are_counted_as_they_are() {
        let mut measured = Measured::new(1);
        for seconds in [0, 1, 100] {
            measured.done(0, Duration::from_secs(seconds), Duration::from_secs(3));
        }
        let all = measured.all();
        assert_eq!((all.len(), all.min()), (3, 0));
        assert!(all.max() >= 100_000_000, "{}", all.max());
        assert_eq!(measured.seconds, [0, 0, 0, 3]);
    }
}
