//! Litmus tests on real mappings at three nodes: what threads see is what sequential consistency allows. Each variable is in
//! a page of its own, and their homes are different nodes.

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use shm::Mapping;
use testkit::litmus::{ALL, Access, Litmus, Outcome, VARIABLES};

use crate::cluster::{Cluster, SHARD};

const ROUNDS: u64 = 150;

/// Values of a round: its 0 is the first of them.
const VALUES: u64 = 16;

/// The nodes of the threads: each at another one, in pairs, and all at one.
const PLACES: [[usize; 4]; 3] = [[0, 1, 2, 0], [1, 1, 2, 2], [2, 2, 2, 2]];

/// A thread, and all others with it, round after round. Returns what it has read in each, and the variables at the end of
/// those in which it is the first.
fn rounds(test: &Litmus, number: usize, mapping: &Mapping, barrier: &Barrier) -> Vec<(Vec<u64>, [u64; VARIABLES])> {
    let variables = [0, SHARD].map(|at| mapping.atomic_u64(at).expect("inside"));
    let round = |round| {
        let (first, leads) = (round * VALUES, round % test.threads.len() as u64 == number as u64);
        if leads {
            variables.iter().for_each(|variable| variable.store(first, SeqCst));
        }
        barrier.wait();
        let read = test.threads[number].iter().filter_map(|access| perform(*access, variables, first)).collect();
        barrier.wait();
        let last = if leads { variables.map(|variable| variable.load(SeqCst).wrapping_sub(first)) } else { [0; _] };
        barrier.wait();
        (read, last)
    };
    (1..=ROUNDS).map(round).collect()
}

fn perform(access: Access, variables: [&AtomicU64; VARIABLES], first: u64) -> Option<u64> {
    let variable = variables[access.variable()];
    let read = match access {
        Access::Load(_) => variable.load(SeqCst),
        Access::Store(_, value) => {
            variable.store(first + value, SeqCst);
            return None;
        }
        Access::Add(_, value) => variable.fetch_add(value, SeqCst),
    };
    // What is older than this round is none of its values.
    Some(read.wrapping_sub(first))
}

#[test]
fn programs_at_three_nodes_see_what_sequential_consistency_allows() {
    let cluster = Cluster::new(3, "memory");
    let _servers = cluster.all();
    for test in &ALL {
        let allowed = test.outcomes();
        for places in PLACES {
            let mappings: Vec<Mapping> = places[..test.threads.len()].iter().map(|node| cluster.map(*node)).collect();
            let barrier = Barrier::new(mappings.len());
            let threads = thread::scope(|scope| {
                let barrier = &barrier;
                let start = |(number, mapping)| scope.spawn(move || rounds(test, number, mapping, barrier));
                let running: Vec<_> = mappings.iter().enumerate().map(start).collect();
                running.into_iter().map(|thread| thread.join().expect("ended")).collect::<Vec<_>>()
            });
            for round in 0..ROUNDS as usize {
                let leader = (round + 1) % threads.len();
                let read = threads.iter().map(|rounds| rounds[round].0.clone()).collect();
                let outcome = Outcome { read, last: threads[leader][round].1 };
                assert!(allowed.contains(&outcome), "{} at {places:?}: {outcome:?}", test.name);
            }
        }
    }
}
