//! What one program writes, others read, and clients of the disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use shm::Mapping;

use crate::cluster::{Cluster, PAGE, SHARD, connect};
use crate::program::Program;

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

/// Each of these writes its own word of each page, in ascending order: two programs at each node, and a client of the disk
/// at each.
#[test]
fn programs_and_clients_that_write_the_same_pages_see_each_word_go_up() {
    const PAGES: [usize; 4] = [0, 3 * PAGE, SHARD, 2 * SHARD + PAGE];
    const ROUNDS: u64 = 60;
    let cluster = Cluster::new(3, "memory");
    let servers = cluster.all();
    let programs: Vec<Mapping> = (0..6).map(|number| cluster.map(number % 3)).collect();
    let words = programs.len() + servers.len();
    let all_up = |seen: &mut [u64], now: &[u64]| {
        for (before, now) in seen.iter_mut().zip(now) {
            assert!(*before <= *now, "a word went back from {before} to {now}");
            *before = *now;
        }
    };
    thread::scope(|scope| {
        for (number, mapping) in programs.iter().enumerate() {
            scope.spawn(move || {
                let mut seen = vec![0; PAGES.len() * words];
                for round in 1..=ROUNDS {
                    PAGES.iter().for_each(|page| put(mapping, page + number * 8, round));
                    let now = PAGES.iter().flat_map(|page| (0..words).map(move |word| get(mapping, page + word * 8)));
                    all_up(&mut seen, &now.collect::<Vec<_>>());
                }
            });
        }
        for (node, server) in servers.iter().enumerate() {
            let number = programs.len() + node;
            scope.spawn(move || {
                let (mut client, mut seen) = (connect(server), vec![0; PAGES.len() * words]);
                for round in 1..=ROUNDS {
                    let mut now = Vec::new();
                    for page in PAGES {
                        client.write((page + number * 8) as u64, &round.to_le_bytes()).expect("written");
                        let bytes = client.read(page as u64, words as u32 * 8).expect("read");
                        let (all, _) = bytes.as_chunks::<8>();
                        now.extend(all.iter().map(|bytes| u64::from_le_bytes(*bytes)));
                    }
                    all_up(&mut seen, &now);
                }
            });
        }
    });
    for mapping in &programs {
        for page in PAGES {
            let last: Vec<u64> = (0..words).map(|word| get(mapping, page + word * 8)).collect();
            assert_eq!(last, vec![ROUNDS; words]);
        }
    }
}

#[test]
fn processes_at_two_nodes_count_exactly_in_rust_and_in_c() {
    let cluster = Cluster::new(2, "memory");
    let _servers = cluster.all();
    let socket = |node: usize| cluster.sandboxes[node].file("awase-data/shm");
    let mut programs: Vec<Program> =
        (0..4).map(|number| Program::start(&socket(number % 2), "increment 1000 0")).collect();
    let counted = match c_example(&cluster.sandboxes[0].file("counter")) {
        Some(counter) => {
            let output = Command::new(counter).arg(socket(1)).args(["s", "1000"]).output().expect("run");
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.ends_with("of 33554432 bytes, the server ended 0 times, flush: 0\n"), "{text}");
            1000
        }
        None => 0,
    };
    assert!(programs.iter_mut().all(|program| program.wait().success()));
    assert_eq!(get(&cluster.map(0), 0), 4000 + counted);
}

/// The example in C, linked with the library as it was built for this test.
fn c_example(to: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm");
    let library = std::env::current_exe().expect("a path").with_file_name("libawase_shm.a");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(to)
        .arg(source.join("examples/c/counter.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(to.to_owned())
        }
        Err(error) => {
            testkit::skip::note(&format!("no C compiler: {error}"));
            None
        }
    }
}
