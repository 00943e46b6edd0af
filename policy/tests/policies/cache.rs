//! Guarantees of the replacement policy.

use std::collections::{HashMap, VecDeque};

use policy::cache::{Algorithm, Replacement, Slot};
use proptest::prelude::*;

/// The paper's algorithm with plain lists: O(n), without a ghost, since no key is inserted twice.
#[derive(Default)]
struct Naive {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    hits: HashMap<u32, u8>,
}

impl Naive {
    fn evict(&mut self, capacity: usize) -> Option<u32> {
        loop {
            let resident = self.small.len() + self.main.len();
            if self.small.len() > capacity.min(resident) / 10 {
                let slot = self.small.pop_back()?;
                if self.hits[&slot] > 1 {
                    self.hits.insert(slot, 0);
                    self.main.push_front(slot);
                } else {
                    return Some(slot);
                }
            } else {
                let slot = self.main.pop_back()?;
                let hits = self.hits[&slot];
                if hits == 0 {
                    return Some(slot);
                }
                self.hits.insert(slot, hits - 1);
                self.main.push_front(slot);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Insert,
    Hit(usize),
    Remove(usize),
    Evict,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => Just(Act::Insert),
        6 => any::<usize>().prop_map(Act::Hit),
        1 => any::<usize>().prop_map(Act::Remove),
        2 => Just(Act::Evict),
    ];
    prop::collection::vec(act, 1..600)
}

/// Plays the acts and returns each victim; at most `capacity` slots hold a block.
fn play(
    acts: &[Act],
    capacity: usize,
    mut insert: impl FnMut(u32, u64),
    mut hit: impl FnMut(u32),
    mut remove: impl FnMut(u32),
    mut evict: impl FnMut() -> Option<u32>,
) -> Vec<Option<u32>> {
    let mut free: Vec<u32> = (0..capacity as u32).collect();
    let mut resident: Vec<u32> = Vec::new();
    let mut victims = Vec::new();
    for (key, act) in acts.iter().enumerate() {
        if matches!(act, Act::Evict) || matches!(act, Act::Insert) && free.is_empty() {
            let victim = evict();
            resident.retain(|s| Some(*s) != victim);
            free.extend(victim);
            victims.push(victim);
        }
        match act {
            Act::Insert => {
                let slot = free.pop().expect("a slot was evicted");
                resident.push(slot);
                insert(slot, key as u64);
            }
            Act::Hit(n) if !resident.is_empty() => hit(resident[n % resident.len()]),
            Act::Remove(n) if !resident.is_empty() => {
                let slot = resident.swap_remove(n % resident.len());
                free.push(slot);
                remove(slot);
            }
            _ => {}
        }
    }
    victims
}

/// What the policy evicts.
fn victims_of(algorithm: Algorithm, acts: &[Act], capacity: usize) -> Vec<Option<u32>> {
    let policy = std::cell::RefCell::new(Replacement::new(algorithm));
    play(
        acts,
        capacity,
        |slot, key| policy.borrow_mut().on_insert(Slot(slot), key, capacity),
        |slot| policy.borrow_mut().on_hit(Slot(slot)),
        |slot| policy.borrow_mut().on_remove(Slot(slot)),
        || policy.borrow_mut().evict(|_| true).map(|s| s.0),
    )
}

proptest! {
    #[test]
    fn s3_fifo_evicts_what_the_paper_s_lists_evict(acts in acts(), capacity in 1usize..60) {
        let victims = victims_of(Algorithm::S3Fifo, &acts, capacity);
        let naive = std::cell::RefCell::new(Naive::default());
        let known = std::cell::Cell::new(0);
        let expected = play(
            &acts,
            capacity,
            |slot, _| {
                naive.borrow_mut().small.push_front(slot);
                naive.borrow_mut().hits.insert(slot, 0);
                known.set(capacity);
            },
            |slot| {
                let mut naive = naive.borrow_mut();
                let hits = naive.hits[&slot];
                naive.hits.insert(slot, (hits + 1).min(3));
            },
            |slot| {
                naive.borrow_mut().small.retain(|s| *s != slot);
                naive.borrow_mut().main.retain(|s| *s != slot);
            },
            || naive.borrow_mut().evict(known.get()),
        );
        prop_assert_eq!(victims, expected);
    }

    #[test]
    fn lru_evicts_what_was_used_longest_ago(acts in acts(), capacity in 1usize..60) {
        let victims = victims_of(Algorithm::Lru, &acts, capacity);
        let order = std::cell::RefCell::new(VecDeque::new());
        let touch = |slot| {
            order.borrow_mut().retain(|s| *s != slot);
            order.borrow_mut().push_front(slot);
        };
        let expected = play(
            &acts,
            capacity,
            |slot, _| touch(slot),
            touch,
            |slot| order.borrow_mut().retain(|s| *s != slot),
            || order.borrow_mut().pop_back(),
        );
        prop_assert_eq!(victims, expected);
    }

    #[test]
    fn every_slot_is_evicted_once_and_a_refused_one_stays(
        slots in 1u32..300,
        hits in prop::collection::vec(any::<u32>(), 0..600),
        pinned_one_in in 2u32..9,
        kind in prop_oneof![Just(Algorithm::S3Fifo), Just(Algorithm::Lru)],
    ) {
        let mut policy = Replacement::new(kind);
        for slot in 0..slots {
            policy.on_insert(Slot(slot), slot.into(), slots as usize);
        }
        for hit in hits {
            policy.on_hit(Slot(hit % slots));
        }
        let pinned = |slot: Slot| slot.0.is_multiple_of(pinned_one_in);
        let mut gone = std::collections::BTreeSet::new();
        // Refusals may end a call early; the next one continues.
        for _ in 0..20 {
            while let Some(slot) = policy.evict(|s| !pinned(s)) {
                prop_assert!(!pinned(slot));
                prop_assert!(gone.insert(slot), "evicted twice");
            }
        }
        let pinned_count = (0..slots).filter(|s| pinned(Slot(*s))).count();
        prop_assert_eq!(policy.len(), slots as usize - gone.len());
        prop_assert_eq!(policy.len(), pinned_count);
        while policy.evict(|_| true).is_some() {}
        prop_assert!(policy.is_empty());
    }

    #[test]
    fn a_victim_is_found_in_bounded_steps_however_many_blocks_are_held(
        slots in 1u32..3000,
        hits in prop::collection::vec(any::<u32>(), 0..200),
        held_permille in 0u32..=1000,
        salt in any::<u64>(),
        kind in prop_oneof![Just(Algorithm::S3Fifo), Just(Algorithm::Lru)],
    ) {
        let mut policy = Replacement::new(kind);
        let is_held = |slot: u32| split_mix(u64::from(slot) ^ salt) % 1000 < u64::from(held_permille);
        for slot in 0..slots {
            policy.on_insert(Slot(slot), slot.into(), slots as usize);
            if is_held(slot) {
                policy.on_hold(Slot(slot));
            }
        }
        for hit in hits {
            policy.on_hit(Slot(hit % slots));
        }
        let mut gone = std::collections::BTreeSet::new();
        for _ in 0..(0..slots).filter(|&slot| !is_held(slot)).count() {
            let before = policy.steps();
            let slot = policy.evict(|_| true);
            prop_assert!(policy.steps() - before <= 130);
            prop_assert!(slot.is_some_and(|slot| !is_held(slot.0) && gone.insert(slot)), "{:?}", slot);
        }
        prop_assert_eq!(policy.evict(|_| true), None);
        prop_assert_eq!(policy.len(), slots as usize - gone.len());
        // Released slots are evicted, each once; some were removed meanwhile.
        let held: Vec<u32> = (0..slots).filter(|&slot| is_held(slot)).collect();
        for (n, &slot) in held.iter().enumerate() {
            if n % 3 == 0 { policy.on_remove(Slot(slot)) } else { policy.on_release(Slot(slot)) }
        }
        let rest = std::iter::from_fn(|| policy.evict(|_| true)).collect::<std::collections::BTreeSet<_>>().len();
        prop_assert_eq!(rest, held.len() - held.len().div_ceil(3));
        prop_assert!(policy.is_empty());
    }

    #[test]
    fn changing_the_algorithm_loses_no_slot(slots in 1u32..200, changes in prop::collection::vec(any::<bool>(), 1..40)) {
        let mut policy = Replacement::new(Algorithm::S3Fifo);
        for (n, lru) in changes.iter().enumerate() {
            policy.set_algorithm(if *lru { Algorithm::Lru } else { Algorithm::S3Fifo });
            for slot in (0..slots).filter(|s| *s as usize % changes.len() == n) {
                policy.on_insert(Slot(slot), slot.into(), slots as usize);
                policy.on_hit(Slot(slot / 2));
            }
        }
        let evicted = std::iter::from_fn(|| policy.evict(|_| true)).count();
        prop_assert_eq!(evicted, slots as usize);
    }
}

/// Share of a hot set of `hot` blocks that survives a scan of twice the cache, in thousandths.
fn left_after_scan(kind: Algorithm, capacity: u32, hot: u32) -> u32 {
    let mut policy = Replacement::new(kind);
    let mut free: Vec<u32> = (0..capacity).collect();
    let mut slot_of = HashMap::new();
    let mut insert = |policy: &mut Replacement, slot_of: &mut HashMap<u32, u64>, key: u64| {
        let slot = free.pop().unwrap_or_else(|| policy.evict(|_| true).expect("nothing is pinned").0);
        slot_of.insert(slot, key);
        policy.on_insert(Slot(slot), key, capacity as usize);
        slot
    };
    let hot_slots: Vec<u32> = (0..hot).map(|key| insert(&mut policy, &mut slot_of, key.into())).collect();
    for _ in 0..3 {
        hot_slots.iter().for_each(|slot| policy.on_hit(Slot(*slot)));
    }
    for key in 0..2 * u64::from(capacity) {
        insert(&mut policy, &mut slot_of, 1_000_000_000 + key);
    }
    slot_of.values().filter(|key| **key < hot.into()).count() as u32 * 1000 / hot
}

#[test]
fn a_scan_of_twice_the_cache_leaves_the_hot_set() {
    for capacity in [200, 1_000, 50_000] {
        for hot in [capacity / 10, capacity / 2, capacity * 8 / 10] {
            let left = left_after_scan(Algorithm::S3Fifo, capacity, hot);
            assert!(left >= 950, "{left} per mille left of {hot} hot blocks in {capacity}");
        }
        assert_eq!(left_after_scan(Algorithm::Lru, capacity, capacity / 2), 0, "what the switch turns off");
    }
}

#[test]
fn a_block_inserted_again_soon_enters_the_main_queue() {
    let capacity = 1000;
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    for key in 0..1000u32 {
        policy.on_insert(Slot(key), key.into(), capacity);
    }
    let mut slot = Slot(0);
    for key in 1000..1400u64 {
        slot = policy.evict(|_| true).expect("nothing is pinned");
        policy.on_insert(slot, key, capacity);
    }
    assert!(!policy.is_hot(slot), "a new block is on probation");
    // Blocks 0 to 399 were evicted; a full bucket may have forgotten a few.
    let known = (0..400u64)
        .filter(|key| {
            let slot = policy.evict(|_| true).expect("nothing is pinned");
            policy.on_insert(slot, *key, capacity);
            policy.is_hot(slot)
        })
        .count();
    assert!(known >= 380, "only {known} of 400 were known");
    let strange = (0..400u64)
        .filter(|key| {
            let slot = policy.evict(|_| true).expect("nothing is pinned");
            policy.on_insert(slot, 1_000_000 + key, capacity);
            policy.is_hot(slot)
        })
        .count();
    assert!(strange <= 2, "{strange} of 400 new blocks were taken for known ones");
}

fn split_mix(key: u64) -> u64 {
    let z = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn a_block_evicted_long_ago_is_on_probation_again() {
    let capacity = 1000;
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    let mut insert = |key: u64| {
        let slot = if key < 1000 { Slot(key as u32) } else { policy.evict(|_| true).expect("nothing is pinned") };
        // Hashed, since consecutive keys would spread over the ghost more evenly than real ones.
        policy.on_insert(slot, split_mix(key % 2200), capacity);
        policy.is_hot(slot)
    };
    (0..2200).for_each(|key| assert!(!insert(key)));
    // The first was evicted 1200 evictions ago.
    let known = (2200..2400).filter(|key| insert(*key)).count();
    assert_eq!(known, 0);
}

#[test]
fn a_held_block_stays_as_hot_as_it_was() {
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    for slot in 0..100 {
        policy.on_insert(Slot(slot), slot.into(), 100);
        (0..3).for_each(|_| policy.on_hit(Slot(slot)));
    }
    // The next call promotes it to the main queue.
    let cold = policy.evict(|_| true).expect("nothing is held");
    policy.on_insert(cold, 1000, 100);
    let hot = (0..100).map(Slot).find(|&slot| slot != cold).expect("a hundred");
    policy.on_hold(hot);
    policy.on_hold(cold);
    assert!(policy.is_hot(hot) && !policy.is_hot(cold));
    policy.on_release(hot);
    policy.on_release(cold);
    assert!(policy.is_hot(hot) && !policy.is_hot(cold));
}

#[test]
fn clean_blocks_are_found_behind_a_small_queue_of_pinned_ones() {
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    for slot in 0..1000 {
        policy.on_insert(Slot(slot), slot.into(), 1000);
        policy.on_hit(Slot(slot));
        policy.on_hit(Slot(slot));
    }
    for slot in 1000..1400 {
        policy.on_insert(Slot(slot), slot.into(), 1400);
    }
    let pinned = |slot: Slot| slot.0 >= 1000;
    for _ in 0..500 {
        let victim = policy.evict(|slot| !pinned(slot)).expect("a thousand are not");
        assert!(!pinned(victim));
    }
}

/// The most steps of one call, and the mean for each operation, in a cache of `slots`.
fn cost(slots: u32) -> (u64, f64) {
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    for slot in 0..slots {
        policy.on_insert(Slot(slot), slot.into(), slots as usize);
        (0..3).for_each(|_| policy.on_hit(Slot(slot)));
    }
    let (mut worst, mut operations, begin) = (0, 0, policy.steps());
    for key in 0..20_000u64 {
        let before = policy.steps();
        let slot = policy.evict(|slot| slot.0 % 7 != 0);
        worst = worst.max(policy.steps() - before);
        let before = policy.steps();
        if let Some(slot) = slot {
            policy.on_insert(slot, u64::from(slots) + key, slots as usize);
        }
        policy.on_hit(Slot((key * 7919 % u64::from(slots)) as u32));
        policy.on_remove(Slot(u32::MAX - 1));
        assert!(policy.steps() - before <= 3);
        operations += 4;
    }
    (worst, (policy.steps() - begin) as f64 / f64::from(operations))
}

#[test]
fn steps_do_not_grow_with_the_number_of_slots() {
    let (worst_small, mean_small) = cost(1_000);
    let (worst_large, mean_large) = cost(1_000_000);
    assert!(worst_small <= 200 && worst_large <= 200, "worst call: {worst_small}, {worst_large}");
    // In the large cache the hits of a million slots are not used up within the test: at most the bound of a call.
    assert!(mean_small <= 60.0 && mean_large <= 60.0, "mean: {mean_small}, {mean_large}");
}

#[test]
fn a_search_among_pinned_slots_ends_after_few_refusals() {
    for kind in [Algorithm::S3Fifo, Algorithm::Lru] {
        let mut policy = Replacement::new(kind);
        for slot in 0..100_000 {
            policy.on_insert(Slot(slot), slot.into(), 100_000);
        }
        let mut asked = 0;
        let victim = policy.evict(|_| {
            asked += 1;
            false
        });
        assert_eq!(victim, None);
        assert!(asked <= 64, "asked {asked} times");
        assert_eq!(policy.len(), 100_000);
    }
}

#[test]
fn bookkeeping_is_at_most_twenty_bytes_a_slot_and_a_segment() {
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    for slot in 0..300_000u32 {
        policy.on_insert(Slot(slot), slot.into(), slot as usize + 1);
        if slot % 997 == 996 {
            // Evicted blocks are remembered for a while, which takes memory too.
            let victim = policy.evict(|_| true).expect("nothing is pinned");
            policy.on_insert(victim, slot.into(), slot as usize + 1);
            let most = (slot as usize + 1 + 256) * 20 + slot as usize / 16 + 512;
            assert!(policy.bookkeeping_bytes() <= most, "{} at {slot}", policy.bookkeeping_bytes());
        }
    }
}
