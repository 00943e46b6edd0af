//! The examples of the library, at two nodes at once. That of the counter in C is in [`coherent`](crate::coherent).

use std::thread;

use crate::cluster::Cluster;

#[path = "../../../shm/examples/queue.rs"]
#[expect(dead_code, reason = "its main")]
mod queue;

#[path = "../../../shm/examples/table.rs"]
#[expect(dead_code, reason = "its main")]
mod table;

/// The arguments of an example at a node.
fn arguments(cluster: &Cluster, node: usize, words: &str) -> Vec<String> {
    let socket = cluster.sandboxes[node].file("awase-data/shm").display().to_string();
    [socket.as_str(), "s"].into_iter().chain(words.split(' ')).map(str::to_owned).collect()
}

fn lines(out: Vec<u8>) -> Vec<String> {
    String::from_utf8(out).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn each_word_that_is_put_into_the_queue_at_two_nodes_is_taken_once() {
    // More than it has places.
    const EACH: u64 = 300;
    let cluster = Cluster::new(2, "memory");
    let _servers = cluster.all();
    let run = |node: usize, words: &str| {
        let mut out = Vec::new();
        queue::run(&arguments(&cluster, node, words), &mut out).unwrap_or_else(|error| panic!("{error}"));
        lines(out)
    };
    let words = |first: u64| (first..first + EACH).map(|word| word.to_string()).collect::<Vec<_>>();
    let taken: Vec<Vec<String>> = thread::scope(|scope| {
        let takers = [0, 1].map(|node| scope.spawn(move || run(node, &format!("take {EACH}"))));
        for node in [0, 1] {
            scope.spawn(move || run(node, &format!("put {}", words(node as u64 * EACH).join(" "))));
        }
        takers.map(|taker| taker.join().expect("taken")).into()
    });
    let mut numbers: Vec<u64> = taken.iter().flatten().map(|word| word.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2 * EACH).collect::<Vec<_>>());
}

#[test]
fn a_row_of_the_table_is_read_whole_at_one_node_while_it_is_changed_at_the_other() {
    let cluster = Cluster::new(2, "memory");
    let _servers = cluster.all();
    let run = |node: usize, words: &str| {
        let mut out = Vec::new();
        table::run(&arguments(&cluster, node, words), &mut out).unwrap_or_else(|error| panic!("{error}"));
        lines(out)
    };
    run(0, "set 17 0 0 0");
    thread::scope(|scope| {
        let writer = scope.spawn(|| (1..=40).for_each(|value| _ = run(0, &format!("set 17 {value} {value} {value}"))));
        while !writer.is_finished() {
            let seen = run(1, "get 17").concat();
            let values: Vec<&str> = seen.trim_matches(['[', ']']).split(", ").collect();
            assert!(values.len() == 3 && values.iter().all(|value| *value == values[0]), "{seen}");
        }
    });
    assert_eq!(run(1, "get 17"), ["[40, 40, 40]"]);
    let error = table::run(&arguments(&cluster, 1, "get 4096"), &mut Vec::new()).expect_err("no such row");
    assert_eq!(error.to_string(), "there are 4096 rows");
}
