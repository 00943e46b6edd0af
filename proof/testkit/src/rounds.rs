//! How long open-ended tests go on: `AWASE_OUTSIDE_SECONDS` each (a few by default), from seeds that begin at
//! `AWASE_OUTSIDE_SEED` (1 by default).

use std::time::{Duration, Instant};

const SECONDS: u64 = 3;

/// How long each open-ended test goes on.
pub fn duration() -> Duration {
    Duration::from_secs(number("AWASE_OUTSIDE_SECONDS").unwrap_or(SECONDS))
}

/// Is this the long form of the tests, in which the time decides how much is done?
pub fn is_long() -> bool {
    duration() > Duration::from_secs(4 * SECONDS)
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

/// The seeds of a simulated test: `AWASE_SEED` alone if set, else `AWASE_SEEDS` of them or `few`. None of them begins
/// later than `AWASE_SEED_SECONDS` after the first.
pub fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let range = match number("AWASE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AWASE_SEEDS").unwrap_or(few),
    };
    let (start, most) = (Instant::now(), number("AWASE_SEED_SECONDS").map(Duration::from_secs));
    range.take_while(move |seed| {
        let is_over = most.is_some_and(|most| start.elapsed() >= most);
        if is_over {
            println!("{seed} seeds in {:.0?}", start.elapsed());
        }
        !is_over
    })
}

/// Runs `test` with each seed; a failure prints the seed and how to see it again.
pub fn for_seeds(name: &str, few: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(few) {
        if let Err(panic) = std::panic::catch_unwind(|| test(seed)) {
            eprintln!("failed with seed {seed}; again: AWASE_SEED={seed} cargo test {name}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Seeds, one for each round, until the time is over; at least as many as were asked for.
pub struct Rounds {
    name: &'static str,
    least: u64,
    start: Instant,
    seed: u64,
    done: u64,
}

impl Rounds {
    /// Of a test that is called `name`, `least` or more.
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
