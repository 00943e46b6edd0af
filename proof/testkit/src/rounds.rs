//! Duration and seeds of tests: open-ended tests run for `AWASE_OUTSIDE_SECONDS` each (a few by default), with seeds from
//! `AWASE_OUTSIDE_SEED` (1 by default).

use std::time::{Duration, Instant};

const SECONDS: u64 = 3;

/// Duration of each open-ended test.
pub fn duration() -> Duration {
    Duration::from_secs(number("AWASE_OUTSIDE_SECONDS").unwrap_or(SECONDS))
}

/// True in the long form of the tests, in which time bounds the work.
pub fn is_long() -> bool {
    duration() > Duration::from_secs(4 * SECONDS)
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

/// The seeds of a simulated test; a failure prints the seed and the command that replays it.
pub struct Seeds {
    left: std::ops::Range<u64>,
    name: String,
    now: Option<u64>,
    start: Instant,
    limit: Option<Duration>,
}

/// `AWASE_SEED` alone if set, else the first `AWASE_SEEDS` or `few`. No seed is started later than `AWASE_SEED_SECONDS`
/// after the first.
pub fn seeds(few: u64) -> Seeds {
    let left = match number("AWASE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AWASE_SEEDS").unwrap_or(few),
    };
    let limit = number("AWASE_SEED_SECONDS").map(Duration::from_secs);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    Seeds { left, name, now: None, start: Instant::now(), limit }
}

impl Seeds {
    /// Whether so many have been tried.
    pub fn have_been(&self, count: u64) -> bool {
        self.now.is_some_and(|now| now + 1 >= count) && number("AWASE_SEED").is_none()
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let next = self.left.next()?;
        if self.limit.is_some_and(|limit| self.start.elapsed() >= limit) {
            println!("{next} seeds in {:.0?}", self.start.elapsed());
            return None;
        }
        self.now = Some(next);
        self.now
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.now.filter(|_| std::thread::panicking()) {
            eprintln!("failed with seed {seed}; again: AWASE_SEED={seed} cargo test {}", self.name);
        }
    }
}

/// Runs `test`, which is known as `name`, with each seed.
pub fn for_seeds(name: &str, few: u64, test: impl Fn(u64)) {
    let mut seeds = seeds(few);
    name.clone_into(&mut seeds.name);
    seeds.for_each(test);
}

/// Seeds, one for each round: at least `least`, and then until the time is over.
pub struct Rounds {
    name: &'static str,
    least: u64,
    start: Instant,
    seed: u64,
    done: u64,
}

impl Rounds {
    pub fn new(name: &'static str, least: u64) -> Rounds {
        Rounds { name, least, start: Instant::now(), seed: number("AWASE_OUTSIDE_SEED").unwrap_or(1), done: 0 }
    }
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.done >= self.least && self.start.elapsed() >= duration() {
            println!("{}: {} rounds in {:.0?}", self.name, self.done, self.start.elapsed());
            return None;
        }
        self.done += 1;
        Some(self.seed + self.done - 1)
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.seed + self.done - 1;
            eprintln!("{}: failed in round {}; again: AWASE_OUTSIDE_SEED={seed}", self.name, self.done);
        }
    }
}
