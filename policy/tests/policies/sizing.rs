//! Guarantees of the size of the cache.

use std::time::Duration;

use policy::sizing::{Config, GroupMemory, MemoryFacts, Mode, Sizing};
use policy::unit::Instant;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SAMPLE: Duration = Duration::from_millis(50);

/// The reserve of a host or group, as documented at [`Config`], for the defaults.
fn reserve(total: u64) -> u64 {
    (total * 60 / 1000).max(512 * MIB).min(total / 4)
}

prop_compose! {
    fn facts()(total in 64 * MIB..512 * GIB, grouped in any::<bool>())(
        available in 0..=total,
        limit in 16 * MIB..2 * total,
        group in any::<bool>().prop_map(move |some| some && grouped),
        used_permille in 0u64..1100,
        total in Just(total),
    ) -> MemoryFacts {
        let used = limit / 1000 * used_permille;
        MemoryFacts { total, available, group: group.then_some(GroupMemory { limit, used }) }
    }
}

fn shortage(facts: MemoryFacts) -> u64 {
    let host = reserve(facts.total).saturating_sub(facts.available);
    let group = facts.group.map_or(0, |g| (g.used + reserve(g.limit)).saturating_sub(g.limit));
    host.max(group)
}

fn ceiling(facts: MemoryFacts) -> u64 {
    let host = facts.total - reserve(facts.total);
    facts.group.map_or(host, |g| host.min(g.limit - reserve(g.limit)))
}

proptest! {
    #[test]
    fn the_target_never_exceeds_the_reserve_and_a_shortage_is_returned_at_once(
        samples in prop::collection::vec((facts(), 0..512 * GIB, 0u64..5000), 1..40),
        fixed in prop::option::of(0..512 * GIB),
    ) {
        let mode = fixed.map_or(Mode::Dynamic, |bytes| Mode::Fixed { bytes });
        let mut sizing = Sizing::new(Config { mode, ..Config::default() });
        let mut now = Instant::ZERO;
        for (facts, cache, gap_ms) in samples {
            now += Duration::from_millis(gap_ms);
            let target = sizing.on_sample(now, facts, cache);
            prop_assert!(target <= ceiling(facts) + 1, "{target} > {}", ceiling(facts));
            if fixed.is_none() && shortage(facts) > 1 {
                let most = cache.saturating_sub(shortage(facts) - 1).max(16 * MIB);
                prop_assert!(target <= most, "{target} > {most}, shortage {}", shortage(facts));
            }
        }
    }

    #[test]
    fn with_constant_others_the_size_settles(
        total in 128 * MIB..256 * GIB,
        others_permille in 0u64..950,
        limit_permille in prop::option::of(100u64..1000),
        cache_permille in 0u64..1000,
    ) {
        let others = total / 1000 * others_permille;
        let mut cache = (total - others) / 1000 * cache_permille;
        let mut sizing = Sizing::new(Config::default());
        let mut sizes = Vec::new();
        for n in 0..1200u32 {
            let group = limit_permille.map(|p| GroupMemory { limit: total / 1000 * p, used: cache });
            let facts = MemoryFacts { total, available: (total - others).saturating_sub(cache), group };
            cache = sizing.on_sample(Instant::ZERO + SAMPLE * n, facts, cache);
            sizes.push(cache);
        }
        let last = &sizes[1000..];
        prop_assert!(last.iter().all(|s| s == &last[0]), "{:?}", &last[..20]);
        prop_assert!(sizes.is_sorted(), "it took what it had to return");
        // Free memory is used, except the reserve and a band of two steps.
        let room = (total - others).saturating_sub(reserve(total));
        let room = limit_permille.map_or(room, |p| {
            let limit = total / 1000 * p;
            room.min(limit - reserve(limit))
        });
        prop_assert!(cache + 128 * MIB + MIB >= room, "only {cache} of {room}");
    }

    #[test]
    fn a_program_that_takes_memory_fast_finds_it(
        total in 8 * GIB..128 * GIB,
        others_permille in 0u64..300,
        start in 0u32..200,
        rate_mib_s in 100u64..=4096,
    ) {
        let others = total / 1000 * others_permille;
        // It wants all memory except what the cache and the reserve retain in the end.
        let wanted = total - others - reserve(total) - 256 * MIB;
        let (mut cache, mut taken) = (0, 0);
        let mut sizing = Sizing::new(Config::default());
        let samples = start + 300 + (wanted / (rate_mib_s * MIB / 20)) as u32;
        for n in 0..samples {
            let used = others + cache + taken;
            prop_assert!(used < total, "sample {n}: nothing is available, {} over", used - total);
            let facts = MemoryFacts { total, available: total - used, group: None };
            let target = sizing.on_sample(Instant::ZERO + SAMPLE * n, facts, cache);
            // Within the sample, the program takes more before what was released is available.
            if n >= start + 200 {
                taken = (taken + rate_mib_s * MIB / 20).min(wanted);
            }
            prop_assert!(others + cache + taken < total, "sample {n}: the program found no memory");
            cache = target;
        }
        prop_assert_eq!(taken, wanted);
        prop_assert!(total - others - taken - cache >= reserve(total), "the reserve is whole again");
    }
}

#[test]
fn a_fixed_size_does_not_change() {
    let mut sizing = Sizing::new(Config { mode: Mode::Fixed { bytes: GIB }, ..Config::default() });
    for (n, available) in [8 * GIB, 0, GIB].into_iter().enumerate() {
        let facts = MemoryFacts { total: 16 * GIB, available, group: None };
        assert_eq!(sizing.on_sample(Instant::from_ns(n as u64), facts, GIB / 2), GIB);
    }
}

#[test]
fn after_shrinking_it_does_not_grow_for_a_second() {
    let mut sizing = Sizing::new(Config::default());
    let mut at_ms = |ms: u64, available, cache| {
        let facts = MemoryFacts { total: 16 * GIB, available, group: None };
        sizing.on_sample(Instant::from_ns(ms * 1_000_000), facts, cache)
    };
    let small = at_ms(0, 100 * MIB, 4 * GIB);
    assert!(small < 4 * GIB);
    assert_eq!(at_ms(500, 8 * GIB, small), small);
    assert!(at_ms(1001, 8 * GIB, small) > small);
}

#[test]
fn a_shrink_suffices_for_the_next_sample_too() {
    let total = 16 * GIB;
    let mut sizing = Sizing::new(Config::default());
    let (mut cache, mut taken) = (total - reserve(total) - 100 * MIB, 0);
    let mut sizes = Vec::new();
    for n in 0..60u32 {
        let facts = MemoryFacts { total, available: total - cache - taken, group: None };
        cache = sizing.on_sample(Instant::ZERO + SAMPLE * n, facts, cache);
        sizes.push(cache);
        taken += 100 * MIB;
    }
    assert!(sizes[59] < sizes[0]);
    assert!(sizes.windows(3).all(|w| w[1] == w[0] || w[2] == w[1]), "{sizes:?}");
}

#[test]
fn small_changes_of_others_change_nothing() {
    let total = 16 * GIB;
    let mut sizing = Sizing::new(Config::default());
    let mut cache = 0;
    let mut sizes = Vec::new();
    for n in 0..2000u32 {
        let others = GIB + MIB * u64::from(n * 7 % 31);
        let facts = MemoryFacts { total, available: total - others - cache, group: None };
        cache = sizing.on_sample(Instant::ZERO + SAMPLE * n, facts, cache);
        sizes.push(cache);
    }
    assert!(sizes[500..].iter().all(|s| *s == sizes[500]));
}

#[test]
fn an_idle_host_is_sampled_twice_a_second_and_a_small_group_as_often_as_a_busy_one() {
    let sizing = Sizing::new(Config::default());
    let full = |total: u64| MemoryFacts { total, available: reserve(total), group: None };
    assert_eq!(sizing.next_idle_sample(full(24 * GIB)), Duration::from_millis(500));
    assert_eq!(sizing.next_idle_sample(full(2 * GIB)), Duration::from_millis(500));
    let group = |limit, used| MemoryFacts { group: Some(GroupMemory { limit, used }), ..full(24 * GIB) };
    assert_eq!(sizing.next_idle_sample(group(64 * GIB, 8 * GIB)), Duration::from_millis(500));
    for facts in [group(512 * MIB, 384 * MIB), MemoryFacts { available: 100 * MIB, ..full(24 * GIB) }] {
        assert_eq!(sizing.next_idle_sample(facts), sizing.next_sample(facts));
    }
}

proptest! {
    #[test]
    fn a_cache_above_its_floor_takes_nothing_of_the_reserve(facts in facts(), held in 0..8 * GIB, more in 1..16 * MIB) {
        let config = Config::default();
        let is_available = shortage(MemoryFacts {
            available: facts.available.saturating_sub(more),
            group: facts.group.map(|group| GroupMemory { used: group.used + more, ..group }),
            ..facts
        }) == 0 && facts.available >= more;
        prop_assert_eq!(config.may_take(facts, held, more), held < config.floor_bytes || is_available);
    }
}
