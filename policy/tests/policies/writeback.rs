//! Guarantees of write-back.

use std::collections::VecDeque;
use std::time::Duration;

use policy::unit::Instant;
use policy::writeback::{Admission, Config, DirtyFacts, WriteBack};
use proptest::prelude::*;

const TICK: Duration = Duration::from_millis(100);

/// Writers and a disk that writes what the policy returns, in ticks. The oldest blocks go first.
struct Host {
    policy: WriteBack,
    now: Instant,
    cache_blocks: u64,
    /// When blocks became dirty, and how many.
    dirty: VecDeque<(Instant, u64)>,
    oldest_written: Duration,
}

impl Host {
    fn new(cache_blocks: u64) -> Self {
        Self::with(cache_blocks, Config::default())
    }

    fn with(cache_blocks: u64, config: Config) -> Self {
        let policy = WriteBack::new(config);
        Host { policy, now: Instant::ZERO, cache_blocks, dirty: VecDeque::new(), oldest_written: Duration::ZERO }
    }

    fn facts(&self) -> DirtyFacts {
        DirtyFacts { dirty_blocks: self.dirty.iter().map(|d| d.1).sum(), cache_blocks: self.cache_blocks }
    }

    /// Blocks become dirty (unless writers must wait), then the tick. Returns blocks written.
    fn tick(&mut self, spacing: Duration, arrive: u64) -> u64 {
        if arrive > 0 && self.policy.admit(self.facts()) == Admission::Go {
            self.dirty.push_back((self.now, arrive));
        }
        self.now += spacing;
        let blocks = self.policy.on_tick(self.now, self.facts());
        let mut left = blocks;
        while left > 0 {
            let (since, count) = self.dirty.front_mut().expect("never more than are dirty");
            self.oldest_written = self.oldest_written.max(self.now.since(*since));
            let written = left.min(*count);
            *count -= written;
            left -= written;
            if *count == 0 {
                self.dirty.pop_front();
            }
        }
        blocks
    }
}

proptest! {
    #[test]
    fn constant_writers_never_build_a_spike(rate in 1u64..40_000, cache_blocks in 200_000u64..8_000_000) {
        // Writers faster than a tenth of the cache in a tick are limited by the limit, not by this.
        let rate = rate.min(cache_blocks / 50);
        let mut host = Host::new(cache_blocks);
        let writes: Vec<u64> = (0..3000).map(|_| host.tick(TICK, rate)).collect();
        let most = writes.iter().max().copied().unwrap_or(0);
        prop_assert!(most <= rate + rate / 4 + 65, "{most} in one tick, {rate} become dirty in one");
        let settled: u64 = writes[1500..].iter().sum();
        prop_assert!(settled * 10 >= rate * 1500 * 9, "only {settled} written");
    }

    #[test]
    fn everything_is_written_within_twice_the_age_after_writers_stop(
        burst in 0u64..3_000_000,
        spacing_ms in prop::collection::vec(1u64..3000, 1..20),
        cache_blocks in 1u64..4_000_000,
    ) {
        let mut host = Host::new(cache_blocks);
        host.tick(TICK, burst);
        let stopped = host.now;
        for spacing in spacing_ms.iter().cycle() {
            if host.now.since(stopped) > Duration::from_secs(57) {
                break;
            }
            host.tick(Duration::from_millis(*spacing), 0);
        }
        prop_assert_eq!(host.facts().dirty_blocks, 0);
    }

    #[test]
    fn no_block_waits_for_much_more_than_its_age(
        arrivals in prop::collection::vec((0u64..2000, 0usize..200), 1..20),
        cache_blocks in 100_000u64..2_000_000,
    ) {
        let mut host = Host::new(cache_blocks);
        for (rate, ticks) in arrivals {
            (0..ticks).for_each(|_| { host.tick(TICK, rate); });
        }
        (0..400).for_each(|_| { host.tick(TICK, 0); });
        prop_assert_eq!(host.facts().dirty_blocks, 0);
        prop_assert!(host.oldest_written <= Duration::from_secs(32), "{:?}", host.oldest_written);
    }

    #[test]
    fn writers_wait_exactly_above_the_limit(cache_blocks in 0u64..1 << 40, dirty_blocks in 0u64..1 << 40) {
        let policy = WriteBack::new(Config::default());
        let waits = policy.admit(DirtyFacts { dirty_blocks, cache_blocks }) == Admission::Wait;
        prop_assert_eq!(waits, dirty_blocks > cache_blocks * 400 / 1000);
    }

    #[test]
    fn waiting_writers_may_proceed_after_one_tick(
        cache_blocks in 3u64..1 << 30,
        excess in 1u64..1 << 20,
        smooth in any::<bool>(),
    ) {
        let mut host = Host::with(cache_blocks, Config { smooth, ..Config::default() });
        host.tick(TICK, 0);
        host.tick(TICK, cache_blocks * 400 / 1000 + excess);
        prop_assert_eq!(host.policy.admit(host.facts()), Admission::Go);
    }
}

#[test]
fn the_rate_rises_smoothly_from_the_background_to_the_limit() {
    let cache_blocks = 1_000_000;
    let mut before = 0;
    for dirty_blocks in (50_000..=400_000).step_by(1000) {
        let mut policy = WriteBack::new(Config::default());
        policy.on_tick(Instant::ZERO, DirtyFacts { dirty_blocks, cache_blocks });
        let blocks = policy.on_tick(Instant::ZERO + TICK, DirtyFacts { dirty_blocks, cache_blocks });
        assert!(blocks >= before, "{blocks} at {dirty_blocks}, {before} with fewer");
        assert!(blocks <= before + 2000 || before == 0, "jumps from {before} to {blocks} at {dirty_blocks}");
        before = blocks;
    }
    assert!(before > 20_000, "near the limit: {before}");
}

#[test]
fn few_dirty_blocks_are_written_at_once() {
    let mut host = Host::new(1_000_000);
    host.tick(TICK, 40);
    let writes = (0..400).filter(|_| host.tick(TICK, 0) > 0).count();
    assert_eq!(writes, 1);
    assert_eq!(host.facts().dirty_blocks, 0);
}

#[test]
fn the_classic_method_writes_everything_once_an_interval() {
    let mut host = Host::with(1_000_000, Config { smooth: false, ..Config::default() });
    let writes: Vec<u64> = (0..1000).map(|_| host.tick(TICK, 100)).collect();
    let storms: Vec<usize> = (0..1000).filter(|n| writes[*n] > 0).collect();
    assert_eq!(storms.len(), 3, "{storms:?}");
    assert!(storms.windows(2).all(|w| (w[1] - w[0]).abs_diff(300) <= 2), "{storms:?}");
    assert!(storms.iter().all(|n| writes[*n] >= 29_900), "all that is dirty");
}

proptest! {
    /// Jobs that write constantly and a disk that never writes: what each gets, and what is left for another one.
    #[test]
    fn jobs_that_fill_the_limit_get_equal_shares_and_leave_some_to_a_job_without_dirty_blocks(
        jobs in 1usize..12,
        cache_blocks in 10_000u64..10_000_000,
        request in 1u64..8,
    ) {
        let policy = WriteBack::new(Config::default());
        let limit = cache_blocks * u64::from(Config::default().limit_permille) / 1000;
        let facts = |own: &[u64]| DirtyFacts { dirty_blocks: own.iter().sum(), cache_blocks };
        let mut own = vec![0u64; jobs];
        // One after the other; the first begins long before the others.
        while policy.admit_job(facts(&own), own[0]) == Admission::Go {
            own[0] += request;
        }
        let alone = own[0];
        prop_assert!(alone > limit * 8 / 10 && alone <= limit * 8 / 9 + request, "{alone} of {limit}");
        own[0] = 0;
        while let Some(job) = (0..jobs).find(|job| policy.admit_job(facts(&own), own[*job]) == Admission::Go) {
            for job in job..jobs {
                if policy.admit_job(facts(&own), own[job]) == Admission::Go {
                    own[job] += request;
                }
            }
        }
        let (least, most) = (own.iter().min().copied(), own.iter().max().copied());
        prop_assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 9 * request, "{own:?}");
        prop_assert_eq!(policy.admit_job(facts(&own), 0), Admission::Go);
        prop_assert!(facts(&own).dirty_blocks <= limit);
    }
}

#[test]
fn above_the_limit_no_job_makes_more_dirty() {
    let policy = WriteBack::new(Config::default());
    let facts = DirtyFacts { dirty_blocks: 401, cache_blocks: 1000 };
    assert_eq!(policy.admit_job(facts, 0), Admission::Wait);
    assert_eq!(policy.admit_job(DirtyFacts { dirty_blocks: 400, ..facts }, 0), Admission::Go);
}
