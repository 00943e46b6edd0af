//! Guarantees of membership, under any clocks within the bound, delays, losses, stops and crashes.

mod homes;
mod registered;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::rounds::for_seeds;
use world::{Flaw, LEASE, SHARDS, World};

const LEASE_NS: u64 = LEASE.as_nanos() as u64;

/// Half a minute of disturbance.
fn chaos(world: &mut World) -> Result<(), String> {
    for _ in 0..120 {
        world.run(world.now + 250_000_000)?;
        world.disturb()?;
    }
    Ok(())
}

#[test]
fn never_two_nodes_answer_as_the_home_of_a_shard_and_none_after_its_lease() {
    for_seeds("-p awase-policy --test policies membership", 200, |seed| {
        let mut world = World::new(seed, 2 + (seed % 4) as usize, None);
        chaos(&mut world).unwrap_or_else(|found| panic!("{found}"));
    });
}

/// The same, and the arbiter forgets.
fn forgetful_chaos(world: &mut World) -> Result<(), String> {
    for _ in 0..120 {
        world.run(world.now + 250_000_000)?;
        world.disturb()?;
        world.disturb_arbiter();
    }
    Ok(())
}

#[test]
fn never_two_nodes_answer_in_two_lives_of_an_arbiter_that_loses_its_data_or_is_put_back() {
    let ends = AtomicUsize::new(0);
    for_seeds("-p awase-policy --test policies membership", 400, |seed| {
        let nodes = 2 + (seed % 4) as usize;
        let mut world = World::new(seed, nodes, None);
        forgetful_chaos(&mut world).unwrap_or_else(|found| panic!("{found}"));
        ends.fetch_add(world.ends, Ordering::Relaxed);
        world.is_calm = true;
        world.run(world.now + 10 * LEASE_NS).unwrap_or_else(|found| panic!("{found}"));
        assert!(!world.homes().contains(&None), "{:?}", world.homes());
    });
    println!("nodes have found {ends:?} times that it went back");
}

#[test]
fn nodes_that_start_together_wait_for_one_lease_and_one_that_joins_others_for_none() {
    for_seeds("-p awase-policy --test policies membership", 50, |seed| {
        let mut world = World::new(seed, 4, None);
        world.is_calm = true;
        world.kill(3);
        let began = world.now;
        world.run(began + LEASE_NS - LEASE_NS / 100).expect("no two homes");
        assert_eq!(world.registrations, 0, "others may serve");
        world.run(began + LEASE_NS + LEASE_NS / 10).expect("no two homes");
        assert_eq!(world.registrations, 3, "they waited at the same time");
        world.restart(3);
        world.run(world.now + LEASE_NS / 10).expect("no two homes");
        assert_eq!(world.registrations, 4, "it knows that they are members");
    });
}

#[test]
fn when_all_is_well_again_every_shard_has_a_home_and_all_nodes_have_as_many() {
    for_seeds("-p awase-policy --test policies membership", 100, |seed| {
        let nodes = 2 + (seed % 3) as usize;
        let mut world = World::new(seed, nodes, None);
        chaos(&mut world).unwrap_or_else(|found| panic!("{found}"));
        world.is_calm = true;
        world.run(world.now + 8 * LEASE_NS).unwrap_or_else(|found| panic!("{found}"));
        let homes = world.homes();
        for index in 0..nodes {
            let shards = homes.iter().filter(|home| **home == Some(index)).count();
            assert!(shards.abs_diff(usize::from(SHARDS) / nodes) <= 1, "node {index} has {shards}: {homes:?}");
        }
        assert!(!homes.contains(&None), "{homes:?}");
    });
}

#[test]
fn after_a_death_the_others_go_on_within_two_leases() {
    for_seeds("-p awase-policy --test policies membership", 200, |seed| {
        let mut world = World::new(seed, 3, None);
        world.is_calm = true;
        world.run(world.now + 4 * LEASE_NS + seed * 7_000_000).expect("no two homes");
        assert!(!world.homes().contains(&None), "{:?}", world.homes());
        world.kill(1);
        world.run(world.now + 2 * LEASE_NS).expect("no two homes");
        assert!(world.homes().iter().all(|home| [Some(0), Some(2)].contains(home)), "{:?}", world.homes());
    });
}

#[test]
fn a_node_stopped_for_longer_than_its_lease_registers_again_and_one_stopped_briefly_does_not() {
    for_seeds("-p awase-policy --test policies membership", 50, |seed| {
        let mut world = World::new(seed, 2, None);
        world.is_calm = true;
        world.run(world.now + 4 * LEASE_NS).expect("no two homes");
        let before = world.nodes[0].membership.address();
        assert!(before.is_some());
        world.stop(0, LEASE_NS / 2);
        world.run(world.now + LEASE_NS).expect("no two homes");
        assert_eq!(world.nodes[0].membership.address(), before);
        world.stop(0, 2 * LEASE_NS);
        world.run(world.now + 6 * LEASE_NS).expect("no two homes");
        assert!(world.nodes[0].membership.address() > before);
        assert_eq!(world.registrations, 3);
        assert!(!world.homes().contains(&None), "{:?}", world.homes());
    });
}

/// Do the seeds find what is broken?
fn finds(flaw: Flaw) {
    finds_in(chaos, 0..200, flaw);
}

fn finds_in(chaos: impl Fn(&mut World) -> Result<(), String>, mut seeds: Range<u64>, flaw: Flaw) {
    let found = seeds.find_map(|seed| {
        let mut world = World::new(seed, 2 + (seed % 4) as usize, Some(flaw));
        chaos(&mut world).err().map(|found| (seed, found))
    });
    let (seed, found) = found.unwrap_or_else(|| panic!("{flaw:?} is not found"));
    println!("{flaw:?}: seed {seed}: {found}");
}

#[test]
fn a_lease_used_to_its_end_is_found() {
    finds(Flaw::MarginRemoved);
}

#[test]
fn a_lease_counted_from_the_reply_is_found() {
    finds(Flaw::CountedFromReply);
}

#[test]
fn a_home_given_up_before_its_last_answer_has_left_is_found() {
    finds(Flaw::ReleasedAtOnce);
}

#[test]
fn a_map_that_replaces_one_its_proposer_has_not_seen_is_found() {
    finds(Flaw::VersionIgnored);
}

#[test]
fn a_registration_that_replaces_another_is_found() {
    finds(Flaw::KeyReplaced);
}

#[test]
fn an_arbiter_that_went_back_and_is_followed_is_found() {
    finds_in(forgetful_chaos, 0..200, Flaw::RevisionIgnored);
}

#[test]
fn a_first_node_that_does_not_wait_is_found() {
    finds_in(forgetful_chaos, 0..200, Flaw::NotAlone);
}

#[test]
fn a_map_of_an_earlier_life_of_the_arbiter_is_found() {
    // It takes two maps of one version.
    finds_in(forgetful_chaos, 900..1100, Flaw::ProposerIgnored);
}
