//! What one program writes, others read, and clients of the disk.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use shm::Mapping;

use crate::cluster::{Cluster, PAGE, SHARD, connect};

fn put(mapping: &Mapping, offset: usize, value: u64) {
    mapping.atomic_u64(offset).expect("inside").store(value, SeqCst);
}

fn get(mapping: &Mapping, offset: usize) -> u64 {
    mapping.atomic_u64(offset).expect("inside").load(SeqCst)
}

#[test]
fn what_a_program_writes_is_read_by_programs_and_clients_at_all_nodes_and_the_other_way_round() {
    let cluster = Cluster::new(2, "memory");
    let servers = cluster.all();
    let mappings = [cluster.map(0), cluster.map(0), cluster.map(1)];
    let mut clients = [connect(&servers[0]), connect(&servers[1])];
    // Pages of both homes.
    for (turn, page) in [0, 1, 7, SHARD / PAGE, SHARD / PAGE + 3].into_iter().cycle().take(60).enumerate() {
        let (at, turn) = (page * PAGE, turn as u64 + 1);
        let writer = turn as usize % 5;
        match mappings.get(writer) {
            Some(mapping) => put(mapping, at + 8, turn),
            None => clients[writer - 3].write(at as u64 + 8, &turn.to_le_bytes()).expect("written"),
        }
        let seen: Vec<u64> = mappings.iter().map(|mapping| get(mapping, at + 8)).collect();
        assert_eq!(seen, [turn; 3], "turn {turn}: programs, page {page} written by {writer}");
        for client in &mut clients {
            let bytes = client.read(at as u64 + 8, 8).expect("read");
            assert_eq!(bytes, turn.to_le_bytes(), "turn {turn}: a client, page {page} written by {writer}");
        }
    }
}

#[test]
fn a_counter_that_threads_at_three_nodes_increment_is_exact() {
    let cluster = Cluster::new(3, "memory");
    let _servers = cluster.all();
    let mappings: Vec<Mapping> = [0, 0, 1, 2].map(|node| cluster.map(node)).into();
    let each = 2_000;
    thread::scope(|scope| {
        for mapping in &mappings {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..each {
                        mapping.atomic_u64(SHARD).expect("inside").fetch_add(1, SeqCst);
                    }
                });
            }
        }
    });
    assert_eq!(get(&mappings[0], SHARD), each * 8);
}
