//! Three nodes, each in a network namespace of its own, with an etcd in a fourth: they are killed, stopped and cut off,
//! while NBD clients and programs that have mapped the disk read and write the same blocks at all of them. What everybody
//! saw must be linearizable, nothing that was flushed is lost, and everybody goes on.

mod cluster;
mod faults;
mod load;
mod network;

use testkit::rounds::{Rounds, is_long};
use testkit::skip;

#[test]
fn nodes_that_are_killed_stopped_and_cut_off_show_nothing_old_and_lose_nothing_that_was_flushed() {
    if let Some(reason) = network::lacks() {
        skip!("{reason}");
    }
    for seed in Rounds::new("nodes_that_are_killed_stopped_and_cut_off", 1) {
        faults::all(seed);
    }
}

/// In a round of the test below.
const KILLS: usize = 25;

#[test]
fn nodes_that_are_killed_again_and_again_lose_nothing_that_was_flushed() {
    if !is_long() {
        println!("only with AWASE_OUTSIDE_SECONDS, as in make test-long");
        return;
    }
    if let Some(reason) = network::lacks() {
        skip!("{reason}");
    }
    let mut kills = 0;
    for seed in Rounds::new("nodes_that_are_killed_again_and_again", 1) {
        faults::kills(seed, KILLS);
        kills += KILLS;
        println!("{kills} kills, nothing lost");
    }
}
