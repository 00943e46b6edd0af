//! Guarantees of read-ahead.

use std::collections::HashSet;

use policy::readahead::{Config, Mode, ReadAhead};
use policy::unit::BlockNo;
use proptest::prelude::*;

fn adaptive(blocks_max: u64) -> ReadAhead {
    ReadAhead::new(Config { mode: Mode::Adaptive { blocks_max }, ..Config::default() })
}

#[test]
fn the_window_of_a_steady_reader_doubles_up_to_its_maximum() {
    let mut policy = adaptive(512);
    let fetches: Vec<u64> =
        (0..4000).filter_map(|block| policy.on_read(BlockNo(block).run(1))).map(|f| f.len()).collect();
    let doubles = fetches.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(512));
    assert!(doubles && fetches.last() == Some(&512), "{fetches:?}");
}

proptest! {
    #[test]
    fn random_reads_fetch_almost_nothing(
        places in prop::collection::vec(0u64..4_000_000, 2000),
        len in 1u64..5,
    ) {
        let mut policy = adaptive(512);
        let fetched: u64 = places.iter().filter_map(|p| policy.on_read(BlockNo(*p).run(len))).map(|f| f.len()).sum();
        prop_assert!(fetched <= 2000 * len / 50, "{fetched} blocks for {} reads", places.len());
    }

    #[test]
    fn a_sequential_stream_is_fetched_once_and_ahead_of_its_reader(
        start in 0u64..1 << 40,
        len in 1u64..64,
        blocks_max in 1u64..1024,
        reads in 20u64..400,
    ) {
        let mut policy = adaptive(blocks_max);
        let start = BlockNo(start);
        let mut fetched_to = start;
        let mut misses = 0;
        for n in 0..reads {
            let read = (start + n * len).run(len);
            misses += u64::from(read.end > fetched_to);
            if let Some(fetch) = policy.on_read(read) {
                prop_assert!(fetch.start >= fetched_to && fetch.start >= read.end, "{fetch:?} again");
                prop_assert!(fetch.len() <= blocks_max, "{fetch:?} is too much");
                prop_assert!(fetch.end <= read.end + 2 * blocks_max, "{fetch:?} is too far ahead of {read:?}");
                fetched_to = fetch.end;
            }
        }
        if blocks_max >= 2 * len {
            prop_assert_eq!(misses, 2, "all but the first two reads find their blocks fetched");
        }
    }

    #[test]
    fn reordered_reads_are_still_one_stream(
        keys in prop::collection::vec(0u64..32, 500),
        len in 1u64..33,
    ) {
        // Each read may be overtaken by those up to 31 behind it.
        let mut order: Vec<u64> = (0..500).collect();
        order.sort_by_key(|n| n + keys[*n as usize]);
        let mut policy = adaptive(512);
        let mut fetched = HashSet::new();
        for n in order {
            if let Some(fetch) = policy.on_read(BlockNo(n * len).run(len)) {
                for block in fetch.iter() {
                    prop_assert!(fetched.insert(block), "{block:?} again");
                }
            }
        }
        let useful = fetched.iter().filter(|b| **b < BlockNo(500 * len)).count() as u64;
        prop_assert!(useful >= 500 * len * 8 / 10, "only {useful} of {}", 500 * len);
    }

    #[test]
    fn as_many_streams_as_configured_are_found(
        streams in 1usize..=16,
        order in prop::collection::vec(any::<u16>(), 0..2000),
        random in prop::collection::vec(0u64..1 << 20, 2000),
    ) {
        let mut policy = adaptive(128);
        let mut at = vec![0u64; streams];
        let mut fetched_to = vec![0u64; streams];
        let base = |s: usize| BlockNo((s as u64 + 1) << 32);
        // Three rounds in order, then any order, with one random read between each.
        let rounds = (0..3 * streams).map(|n| n % streams);
        for (n, s) in rounds.chain(order.iter().map(|o| *o as usize % streams)).enumerate() {
            let read = (base(s) + at[s]).run(1);
            at[s] += 1;
            if let Some(fetch) = policy.on_read(read) {
                fetched_to[s] = fetch.end - base(s);
            }
            if n >= 3 * streams {
                policy.on_read(BlockNo(random[n % random.len()] << 11).run(1));
            }
        }
        for s in 0..streams {
            prop_assert!(fetched_to[s] > at[s], "stream {s} read to {}, fetched to {}", at[s], fetched_to[s]);
        }
    }

    #[test]
    fn fixed_read_ahead_stays_a_fixed_distance_ahead(blocks in 1u64..64, len in 1u64..16) {
        let config = Config { mode: Mode::Fixed { blocks }, ..Config::default() };
        let mut policy = ReadAhead::new(config);
        let mut fetched_to = BlockNo(0);
        for n in 0..200 {
            let read = BlockNo(n * len).run(len);
            if let Some(fetch) = policy.on_read(read) {
                prop_assert!(fetch.start >= fetched_to);
                fetched_to = fetch.end;
            }
            prop_assert!(n == 0 || fetched_to == read.end + blocks);
        }
    }

    #[test]
    fn any_reads_keep_the_window_bounded(
        reads in prop::collection::vec((0u64..2000, 0u64..300), 1..500),
        blocks_max in 0u64..256,
    ) {
        let mut policy = adaptive(blocks_max);
        for (start, len) in reads {
            if let Some(fetch) = policy.on_read(BlockNo(start).run(len)) {
                prop_assert!(fetch.start < fetch.end && fetch.len() <= blocks_max);
            }
        }
    }
}

#[test]
fn the_first_access_and_backward_reads_fetch_nothing() {
    let mut policy = adaptive(512);
    assert_eq!(policy.on_read(BlockNo(0).run(8)), None);
    for n in (0..1000u64).rev() {
        assert_eq!(policy.on_read(BlockNo(100_000 + n).run(1)), None, "at {n}");
    }
}

#[test]
fn strided_reads_fetch_almost_nothing() {
    let mut policy = adaptive(512);
    let fetches = (0..2000u64).filter(|n| policy.on_read(BlockNo(n * 16).run(1)).is_some()).count();
    assert!(fetches <= 20, "{fetches}");
}

#[test]
fn a_stream_that_becomes_strided_is_no_longer_fetched() {
    let mut policy = adaptive(64);
    assert!((0..1000u64).filter(|n| policy.on_read(BlockNo(*n).run(1)).is_some()).count() >= 10);
    let strides = (0..500u64).map(|n| 1000 + 16 * n);
    let fetches: Vec<u64> = strides.filter(|n| policy.on_read(BlockNo(*n).run(1)).is_some()).collect();
    assert!(fetches.iter().all(|n| *n < 2500), "still after 1500 blocks: {fetches:?}");
}

#[test]
fn short_streams_do_not_displace_the_ones_in_use() {
    let mut policy = adaptive(64);
    let mut fetched = 0;
    for n in 0..1000u64 {
        let long = [0, 1, 2].map(|s| policy.on_read(BlockNo((s << 40) + n).run(1)));
        fetched += long.into_iter().flatten().map(|f| f.len()).sum::<u64>();
        // The long ones enter the table first.
        for m in 0..if n < 5 { 0 } else { 3 } {
            policy.on_read(BlockNo((n << 20) + (1 << 50) + m).run(1));
        }
    }
    // A stream that was displaced starts again with a small window, and fetches blocks twice.
    assert!((3 * 998..3 * 1130).contains(&fetched), "{fetched}");
}

#[test]
fn off_fetches_nothing() {
    let mut policy = ReadAhead::new(Config { mode: Mode::Off, ..Config::default() });
    assert!((0..100u64).all(|n| policy.on_read(BlockNo(n).run(1)).is_none()));
}
