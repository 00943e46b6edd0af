//! Listing directories.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use machine::tree::Kind;

/// Are these promises of trees that act for callers other than the server?
pub const NEED_OTHERS: bool = false;

/// Hands the names of these promises to a macro.
#[macro_export]
macro_rules! promises_of_listing {
    ($on:ident) => {
        $on! {
            listing:
            a_directory_is_listed_completely_in_parts_of_any_size,
            entries_have_their_nodes_when_requested,
            nothing_above_the_root_is_disclosed,
            a_listing_continues_after_the_tree_was_reopened,
            unchanged_entries_are_listed_once_while_others_are_added_and_removed,
            several_listings_of_one_directory_do_not_disturb_each_other
        }
    };
}

fn names_of(entries: &[machine::tree::Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8(entry.name.clone()).expect("text")).collect()
}

pub fn a_directory_is_listed_completely_in_parts_of_any_size(mut served: impl Tree) {
    let root = served.root();
    let mut expected = BTreeSet::from([".".to_string(), "..".to_string()]);
    for k in 0..100 {
        // Names of all lengths.
        let name = format!("{k:03}{}", "n".repeat(k * 252 / 99));
        served.put(&name, b"");
        expected.insert(name);
    }
    for piece in [1, 2, 7, 50, 102, 103, 1000, usize::MAX] {
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let (entries, last) = served.list(None, root, cookie, piece, false).expect("listed");
            assert!(entries.len() <= piece && (last || !entries.is_empty()));
            seen.extend(names_of(&entries));
            cookie = entries.last().map_or(cookie, |entry| entry.cookie);
            if last {
                break;
            }
        }
        assert_eq!(seen.len(), expected.len(), "pieces of {piece}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected, "pieces of {piece}");
    }
    let empty = served.make_directory("empty", 0o755);
    let (entries, last) = served.list(None, empty, 0, 100, false).expect("listed");
    assert_eq!((entries.len(), last), (2, true));
}

pub fn entries_have_their_nodes_when_requested(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o755);
    served.put("dir/file", b"content");
    for call in [make_directory(dir, "below", 0o755), make_symbolic_link(dir, "link", "nowhere")] {
        served.node(None, call).expect("made");
    }
    let (entries, _) = served.list(None, dir, 0, 100, true).expect("listed");
    assert_eq!(entries.len(), 5);
    for (name, entry) in names_of(&entries).iter().zip(&entries) {
        let (node, attributes) = entry.node.expect("a node");
        let found = served.lookup(dir, name).expect("found");
        assert_eq!((node, attributes.number, attributes.kind), (found.0, found.1.number, found.1.kind), "{name}");
        assert_eq!(entry.number, attributes.number, "{name}");
    }
    let (without, _) = served.list(None, dir, 0, 100, false).expect("listed");
    assert!(without.iter().all(|entry| entry.node.is_none()));
    let link = entries.iter().find(|entry| entry.name == b"link").and_then(|entry| entry.node);
    assert_eq!(link.map(|(_, attributes)| attributes.kind), Some(Kind::SymbolicLink));
}

pub fn nothing_above_the_root_is_disclosed(mut served: impl Tree) {
    let root = served.root();
    let number = served.attributes(root).expect("attributes").number;
    let (entries, _) = served.list(None, root, 0, 100, true).expect("listed");
    assert_eq!(names_of(&entries).len(), 2);
    for entry in entries {
        assert_eq!((entry.number, entry.node.map(|(node, _)| node)), (number, Some(root)));
    }
}

pub fn a_listing_continues_after_the_tree_was_reopened(mut served: impl Tree) {
    let root = served.root();
    for k in 0..1000 {
        served.put(&format!("{k}"), b"");
    }
    let (first, _) = served.list(None, root, 0, 400, false).expect("listed");
    let mut served = served.reopen();
    let cookie = first.last().expect("not empty").cookie;
    let (second, last) = served.list(None, root, cookie, 1000, false).expect("listed");
    assert!(last);
    let names: BTreeSet<_> = names_of(&first).into_iter().chain(names_of(&second)).collect();
    assert_eq!((names.len(), first.len() + second.len()), (1002, 1002));
}

/// 20,000 entries, of which every second is removed meanwhile, while others are added.
pub fn unchanged_entries_are_listed_once_while_others_are_added_and_removed(mut served: impl Tree) {
    const COUNT: usize = 20_000;
    const PIECE: usize = 250;
    let root = served.root();
    for k in 0..COUNT {
        served.put(&format!("entry-{k}"), b"");
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let (mut cookie, mut passed) = (0, 0);
    loop {
        let (entries, last) = served.list(None, root, cookie, PIECE, passed % 3 == 0).expect("listed");
        for name in names_of(&entries) {
            *seen.entry(name).or_default() += 1;
        }
        if last {
            break;
        }
        cookie = entries.last().expect("not the last").cookie;
        // Of those that were listed and those that were not; and the one that the cookie belongs to.
        let listed_last = String::from_utf8(entries.last().expect("some").name.clone()).expect("text");
        let odd =
            |name: &str| name.strip_prefix("entry-").and_then(|k| k.parse().ok()).is_some_and(|k: usize| k % 2 == 1);
        if odd(&listed_last) {
            assert!(served.remove(root, &listed_last).is_ok());
        }
        for k in (1..COUNT).step_by(2).skip(passed * 100).take(100) {
            let _ = served.remove(root, &format!("entry-{k}"));
            served.put(&format!("added-{k}"), b"");
        }
        passed += 1;
    }
    assert!(passed >= COUNT / 2 / PIECE, "listed in {passed} pieces");
    for k in (0..COUNT).step_by(2) {
        assert_eq!(seen.get(&format!("entry-{k}")), Some(&1), "entry-{k}");
    }
    let more_than_once: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(more_than_once.is_empty(), "{more_than_once:?}");
}

pub fn several_listings_of_one_directory_do_not_disturb_each_other(mut served: impl Tree) {
    const LISTINGS: usize = 100;
    let root = served.root();
    for k in 0..98 {
        served.put(&format!("{k}"), b"");
    }
    let mut listings = vec![(0, BTreeSet::new()); LISTINGS];
    // More of them than directories are held open, in steps of different sizes.
    while listings.iter().any(|(_, seen)| seen.len() < 100) {
        for (k, (cookie, seen)) in listings.iter_mut().enumerate() {
            let (entries, last) = served.list(None, root, *cookie, 10 + k % 30, false).expect("listed");
            *cookie = entries.last().map_or(*cookie, |entry| entry.cookie);
            for name in names_of(&entries) {
                assert!(seen.insert(name));
            }
            assert!(!last || seen.len() == 100, "{} of 100", seen.len());
        }
    }
}
