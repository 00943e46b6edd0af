//! Guarantees of pacing a volume.

use std::collections::VecDeque;
use std::time::Duration;

use policy::pace::{Config, Pace, VolumeFacts, Written};
use policy::unit::Instant;
use proptest::prelude::*;

const TICK: Duration = Duration::from_millis(100);

/// A volume whose blocks are written in passes, in any order within one.
struct Volume {
    pace: Pace,
    now: Instant,
    old: VecDeque<(Instant, u64)>,
    young: VecDeque<(Instant, u64)>,
    waited_longest: Duration,
}

fn sum(blocks: &VecDeque<(Instant, u64)>) -> u64 {
    blocks.iter().map(|(_, count)| count).sum()
}

impl Volume {
    fn new() -> Self {
        // Without a limit: that is tested separately.
        let config = Config { blocks_at_first: u64::MAX / 4, ..Config::default() };
        let (old, young) = (VecDeque::new(), VecDeque::new());
        Volume { pace: Pace::new(config), now: Instant::ZERO, old, young, waited_longest: Duration::ZERO }
    }

    fn dirty(&self) -> u64 {
        sum(&self.old) + sum(&self.young)
    }

    /// The youngest of a pass go first: no order within it may make a block too old.
    fn write(&mut self, blocks: u64) {
        let mut left = blocks;
        while left > 0 {
            if self.old.is_empty() {
                std::mem::swap(&mut self.old, &mut self.young);
            }
            let (since, count) = self.old.back_mut().expect("never more than are dirty");
            self.waited_longest = self.waited_longest.max(self.now.since(*since));
            let written = left.min(*count);
            *count -= written;
            left -= written;
            if *count == 0 {
                self.old.pop_back();
            }
        }
    }

    fn tick(&mut self, spacing: Duration, arrive: u64) -> u64 {
        if arrive > 0 {
            self.young.push_back((self.now, arrive));
        }
        self.now += spacing;
        if self.old.is_empty() {
            std::mem::swap(&mut self.old, &mut self.young);
        }
        let since = |blocks: &VecDeque<(Instant, u64)>| blocks.front().map_or(Instant::ZERO, |(since, _)| *since);
        let facts = VolumeFacts {
            old_blocks: sum(&self.old),
            old_since: since(&self.old),
            young_blocks: sum(&self.young),
            young_since: since(&self.young),
        };
        let blocks = self.pace.on_tick(self.now, facts);
        self.write(blocks);
        blocks
    }
}

proptest! {
    #[test]
    fn no_block_waits_for_longer_than_its_age(
        arrivals in prop::collection::vec((0u64..200_000, 0usize..200, 1u64..500), 1..12),
    ) {
        let mut volume = Volume::new();
        for (rate, ticks, spacing_ms) in arrivals {
            (0..ticks).for_each(|_| { volume.tick(Duration::from_millis(spacing_ms), rate); });
        }
        (0..400).for_each(|_| { volume.tick(TICK, 0); });
        prop_assert_eq!(volume.dirty(), 0);
        prop_assert!(volume.waited_longest <= Duration::from_millis(30_600), "{:?}", volume.waited_longest);
    }

    #[test]
    fn constant_writers_make_constant_writes(rate in 1u64..40_000) {
        let mut volume = Volume::new();
        let writes: Vec<u64> = (0..3000).map(|_| volume.tick(TICK, rate)).collect();
        let most = writes.iter().max().copied().unwrap_or(0);
        prop_assert!(most <= rate + rate / 3 + 65, "{most} in one tick, {rate} become dirty in one");
        let settled: u64 = writes[1500..].iter().sum();
        prop_assert!(settled * 100 >= rate * 1500 * 98, "only {settled} written");
    }

    #[test]
    fn a_volume_has_dirty_what_its_disk_writes_in_ten_seconds(
        disk in 10u64..1_000_000,
        disturbed in prop::collection::vec(any::<bool>(), 0..30),
    ) {
        let mut pace = Pace::new(Config::default());
        // At times others use the disk, or there is nothing to write.
        for is_disturbed in disturbed {
            let written = Written { blocks: disk / 20, busy: TICK, is_all: !is_disturbed };
            pace.on_written(written);
        }
        for _ in 0..60 {
            pace.on_written(Written { blocks: disk / 10, busy: TICK, is_all: true });
        }
        let expected = (disk / 10 * 100).max(4096) as f64;
        let limit = pace.limit() as f64;
        prop_assert!((limit / expected - 1.0).abs() < 0.01, "{limit} for {expected}");
    }

    #[test]
    fn writers_at_the_limit_have_half_of_it_free_after_one_tick(limit_blocks in 4096u64..1 << 30, more in 0u64..1 << 20) {
        let mut pace = Pace::new(Config { blocks_at_first: limit_blocks, ..Config::default() });
        let old_blocks = limit_blocks + more;
        let facts =
            VolumeFacts { old_blocks, old_since: Instant::ZERO, young_blocks: 0, young_since: Instant::ZERO };
        let due = pace.on_tick(Instant::ZERO + TICK, facts);
        prop_assert!(old_blocks - due <= limit_blocks / 2 + 1);
    }
}

#[test]
fn a_burst_is_written_evenly_over_its_age() {
    let mut volume = Volume::new();
    volume.tick(TICK, 300_000);
    let writes: Vec<u64> = (0..310).map(|_| volume.tick(TICK, 0)).collect();
    assert_eq!(volume.dirty(), 0);
    assert!(writes.iter().all(|&blocks| blocks <= 1010), "{writes:?}");
}

#[test]
fn few_dirty_blocks_are_written_at_once() {
    let mut volume = Volume::new();
    volume.tick(TICK, 40);
    let writes = (0..400).filter(|_| volume.tick(TICK, 0) > 0).count();
    assert_eq!((writes, volume.dirty()), (1, 0));
}

#[test]
fn the_limit_ignores_a_disk_with_little_to_do() {
    let mut pace = Pace::new(Config::default());
    (0..10).for_each(|_| pace.on_written(Written { blocks: 10_000, busy: TICK, is_all: true }));
    let before = pace.limit();
    (0..100).for_each(|_| pace.on_written(Written { blocks: 10, busy: TICK, is_all: false }));
    assert_eq!(pace.limit(), before);
}
