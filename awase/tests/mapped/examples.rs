//! The examples of the library, at two nodes at once. That of the counter in C is in [`coherent`](crate::coherent).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use testkit::server::await_that;

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
    let start = |node: usize, words: &str| {
        let arguments = arguments(&cluster, node, words);
        thread::spawn(move || {
            let mut out = Vec::new();
            queue::run(&arguments, &mut out).unwrap_or_else(|error| panic!("{error}"));
            lines(out)
        })
    };
    let words = |first: u64| (first..first + EACH).map(|word| word.to_string()).collect::<Vec<_>>();
    let takers = [0, 1].map(|node| start(node, &format!("take {EACH}")));
    let putters = [0, 1].map(|node| start(node, &format!("put {}", words(node as u64 * EACH).join(" "))));
    // A queue that loses words has takers that never end.
    let ended = |threads: [JoinHandle<Vec<String>>; 2], what: &str| {
        await_that(what, || threads.iter().all(JoinHandle::is_finished));
        threads.map(|thread| thread.join().expect("no panic"))
    };
    ended(putters, "all are put");
    let taken = ended(takers, "all are taken");
    let mut numbers: Vec<u64> = taken.iter().flatten().map(|word| word.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2 * EACH).collect::<Vec<_>>());
}

/// Until the reader has seen so many, the writer goes on.
const CHANGES_SEEN: usize = 100;

#[test]
fn a_row_of_the_table_is_read_whole_at_one_node_while_it_is_changed_at_the_other() {
    let cluster = Cluster::new(2, "memory");
    let _servers = cluster.all();
    let run = |node: usize, words: &str| {
        let mut out = Vec::new();
        table::run(&arguments(&cluster, node, words), &mut out).unwrap_or_else(|error| panic!("{error}"));
        lines(out)
    };
    run(0, "set 17 1 1 1");
    let memories = [0, 1].map(|node| cluster.map(node));
    let [writer, reader] = [0, 1].map(|node| table::Table::at(&memories[node], table::AT).expect("inside"));
    // The page is often taken from the writer when it has written a part of the row.
    let (mut seen, is_over) = (BTreeSet::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let values = (2..).take_while(|_| !is_over.load(Ordering::Relaxed));
            values.for_each(|value| writer.set(17, &[value; 3]).expect("a row"));
        });
        while seen.len() < CHANGES_SEEN {
            seen.insert(reader.get(17).expect("a row"));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(seen.iter().all(|row| *row == [row[0]; 3]), "{seen:?}");
    run(0, "set 17 4 5 6");
    assert_eq!(run(1, "get 17"), ["[4, 5, 6]"]);
    let error = table::run(&arguments(&cluster, 1, "get 4096"), &mut Vec::new()).expect_err("no such row");
    assert_eq!(error.to_string(), "there are 4096 rows");
}
