//! Litmus tests: what a sequentially consistent memory never shows, on real mappings at three nodes. Each variable is in a
//! page of its own, and their homes are different nodes.

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use shm::Mapping;
use testkit::server::Server;

use crate::cluster::{Cluster, SHARD};

const ROUNDS: u64 = 400;

struct Nodes {
    _servers: Vec<Server>,
    mappings: Vec<Mapping>,
    _cluster: Cluster,
}

/// Mappings at these nodes.
fn nodes(at: &[usize]) -> Nodes {
    let cluster = Cluster::new(3, "memory");
    let servers = cluster.all();
    Nodes { _servers: servers, mappings: at.iter().map(|node| cluster.map(*node)).collect(), _cluster: cluster }
}

/// What a thread does in one round, with the variables as its mapping has them; what it has read.
type Thread = fn(u64, &[&AtomicU64; 2]) -> [u64; 2];

/// Runs the threads at once, round after round: in each, a variable goes from at most the round before to the round.
fn run(at: &[usize], threads: &[Thread], is_forbidden: impl Fn(u64, &[[u64; 2]]) -> bool) {
    let nodes = nodes(at);
    let barrier = Barrier::new(threads.len());
    let results: Vec<Vec<[u64; 2]>> = thread::scope(|scope| {
        let running: Vec<_> = threads
            .iter()
            .zip(&nodes.mappings)
            .map(|(thread, mapping)| {
                let variables = [0, SHARD].map(|at| mapping.atomic_u64(at).expect("inside"));
                let barrier = &barrier;
                scope.spawn(move || {
                    let round = |round| {
                        barrier.wait();
                        thread(round, &variables)
                    };
                    (1..=ROUNDS).map(round).collect()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("ended")).collect()
    });
    for round in 1..=ROUNDS {
        let seen: Vec<[u64; 2]> = results.iter().map(|result| result[round as usize - 1]).collect();
        assert!(!is_forbidden(round, &seen), "round {round}: {seen:?}");
    }
}

#[test]
fn store_buffering_two_writers_do_not_both_miss_the_other() {
    let threads: [Thread; 2] = [
        |round, [x, y]| {
            x.store(round, SeqCst);
            [y.load(SeqCst), 0]
        },
        |round, [x, y]| {
            y.store(round, SeqCst);
            [x.load(SeqCst), 0]
        },
    ];
    run(&[1, 2], &threads, |round, seen| seen[0][0] < round && seen[1][0] < round);
    // On one node, and at the pages' homes.
    run(&[0, 0], &threads, |round, seen| seen[0][0] < round && seen[1][0] < round);
    run(&[0, 1], &threads, |round, seen| seen[0][0] < round && seen[1][0] < round);
}

#[test]
fn message_passing_who_sees_the_flag_sees_the_data() {
    let threads: [Thread; 2] = [
        |round, [data, flag]| {
            data.store(round, SeqCst);
            flag.store(round, SeqCst);
            [0; 2]
        },
        |_, [data, flag]| {
            let seen = flag.load(SeqCst);
            [seen, data.load(SeqCst)]
        },
    ];
    for at in [[0, 1], [2, 0], [1, 1]] {
        run(&at, &threads, |_, seen| seen[1][1] < seen[1][0]);
    }
}

#[test]
fn iriw_two_readers_see_two_writes_in_one_order() {
    let threads: [Thread; 4] = [
        |round, [x, _]| {
            x.store(round, SeqCst);
            [0; 2]
        },
        |round, [_, y]| {
            y.store(round, SeqCst);
            [0; 2]
        },
        |_, [x, y]| [x.load(SeqCst), y.load(SeqCst)],
        |_, [x, y]| {
            let first = y.load(SeqCst);
            [first, x.load(SeqCst)]
        },
    ];
    for at in [[0, 1, 2, 0], [1, 2, 0, 1], [0, 0, 1, 2]] {
        run(&at, &threads, |round, seen| {
            seen[2][0] == round && seen[2][1] < round && seen[3][0] == round && seen[3][1] < round
        });
    }
}

#[test]
fn coherence_two_reads_of_one_variable_do_not_go_back() {
    let threads: [Thread; 3] = [
        |round, [x, _]| {
            x.store(2 * round, SeqCst);
            x.store(2 * round + 1, SeqCst);
            [0; 2]
        },
        |_, [x, _]| [x.load(SeqCst), x.load(SeqCst)],
        |_, [x, _]| [x.load(SeqCst), x.load(SeqCst)],
    ];
    for at in [[0, 1, 2], [2, 2, 0]] {
        run(&at, &threads, |_, seen| seen[1][1] < seen[1][0] || seen[2][1] < seen[2][0]);
    }
}
