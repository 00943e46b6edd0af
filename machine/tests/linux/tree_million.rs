//! A very large directory of the host.

use machine::linux::Engine;

use crate::rig::{self, Rig};
use crate::tree_rig::*;

/// With many seeds there is time for a million.
fn entries() -> usize {
    if std::env::var_os("AWASE_SEEDS").is_some() { 1_000_000 } else { 20_000 }
}

#[test]
fn every_entry_of_a_very_large_directory_is_listed_once_in_bounded_batches() {
    rig::with(Engine::Threads, list);
}

fn list(rig: Rig) {
    let Some(mut served) = ServedTree::new(rig) else { return };
    let (count, batch) = (entries(), 512);
    let dir = served.make_directory("large", 0o755);
    for number in 0..count {
        std::fs::File::create(served.path(&format!("large/{number:07}"))).expect("made");
    }
    let mut seen = vec![false; count];
    let mut cookie = 0;
    loop {
        let (entries, last) = served.list(None, dir, cookie, batch, false).expect("listed");
        // Memory holds no more than one batch, however large the directory.
        assert!(entries.len() <= batch && (last || !entries.is_empty()));
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            let number: usize = String::from_utf8(entry.name).expect("text").parse().expect("a number");
            assert!(!std::mem::replace(&mut seen[number], true), "{number} is listed twice");
        }
        if last {
            break;
        }
    }
    assert!(seen.iter().all(|seen| *seen), "an entry is missing");
}
