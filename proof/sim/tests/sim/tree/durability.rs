//! What of a tree survives a power cut: what must, and what may.

use machine::Errno;
use machine::tree::{Node, OpenNode, TreeCall};
use policy::unit::{Instant, Stability};
use sim::{DiskConfig, DiskFaults, OpClass, TreeConfig};

use super::rig::{TreeRig, mode, size};
use crate::rig::{stamped, stamps_of};

fn rig(seed: u64) -> TreeRig {
    let disk = DiskConfig { align: 4096, ..DiskConfig::new(1 << 20) };
    TreeRig::new(seed, TreeConfig { disk, ..TreeConfig::new() })
}

/// The result of `show` after a power cut, for each of many seeds.
fn after_power_cut<T>(before: impl Fn(&mut TreeRig), show: impl Fn(&mut TreeRig) -> T) -> Vec<T> {
    let run = |seed| {
        let mut rig = rig(seed);
        before(&mut rig);
        rig.power_cut();
        show(&mut rig)
    };
    (0..200).map(run).collect()
}

fn count<T: PartialEq>(found: &[T], wanted: impl Into<T>) -> usize {
    let wanted = wanted.into();
    found.iter().filter(|found| **found == wanted).count()
}

fn durable_directory(rig: &mut TreeRig, name: &str) -> Node {
    let root = rig.root();
    let dir = rig.make_directory(root, name).unwrap();
    rig.sync(&[dir, root]).unwrap();
    dir
}

/// Makes a file with 8 sectors of stamp 1, durable.
fn durable_file(rig: &mut TreeRig, name: &str) -> Node {
    let root = rig.root();
    let file = rig.create(root, name).unwrap();
    let open = rig.open(file).unwrap();
    rig.write(open.direct.file, 0, stamped(8, 1)).unwrap();
    rig.sync(&[file, root]).unwrap();
    file
}

#[test]
fn names_survive_after_a_sync_of_their_directory_and_may_or_may_not_before() {
    let create = |rig: &mut TreeRig| {
        let root = rig.root();
        rig.create(root, "a").unwrap();
        rig.sync(&[root]).unwrap();
        rig.create(root, "b").unwrap();
    };
    let found = after_power_cut(create, |rig| rig.names("/").concat());
    assert!(count(&found, "a") > 20 && count(&found, "ab") > 20);
    assert_eq!(count(&found, "a") + count(&found, "ab"), found.len());
}

#[test]
fn a_sync_of_the_file_does_not_make_its_name_durable() {
    let create = |rig: &mut TreeRig| {
        let root = rig.root();
        let file = rig.create(root, "a").unwrap();
        let dir = rig.make_directory(root, "dir").unwrap();
        rig.create(dir, "b").unwrap();
        rig.sync(&[file, dir]).unwrap();
    };
    let found = after_power_cut(create, |rig| rig.names("/").concat());
    assert!(count(&found, "") > 20);
    let below = after_power_cut(create, |rig| (rig.names("/").contains(&"dir".into()), rig.names("/dir").concat()));
    assert!(below.iter().all(|(exists, names)| *names == if *exists { "b" } else { "" }));
}

#[test]
fn of_the_changes_of_one_directory_a_prefix_survives() {
    let change = |rig: &mut TreeRig| {
        let root = rig.root();
        rig.create(root, "a").unwrap();
        rig.create(root, "b").unwrap();
        rig.rename((root, "a"), (root, "c")).unwrap();
        rig.remove(root, "b").unwrap();
    };
    let found = after_power_cut(change, |rig| rig.names("/").concat());
    let prefixes = ["", "a", "ab", "bc", "c"];
    assert!(prefixes.iter().all(|prefix| count(&found, *prefix) > 3));
    assert_eq!(prefixes.iter().map(|prefix| count(&found, *prefix)).sum::<usize>(), found.len());
}

#[test]
fn different_directories_lose_their_changes_independently() {
    let create = |rig: &mut TreeRig| {
        for dir in ["d", "e"] {
            let dir = durable_directory(rig, dir);
            rig.create(dir, "a").unwrap();
        }
    };
    let found = after_power_cut(create, |rig| rig.names("/d").len() * 2 + rig.names("/e").len());
    assert!((0..4usize).all(|outcome| count(&found, outcome) > 5));
}

fn rename_between(rig: &mut TreeRig) -> (Node, Node) {
    let (from, to) = (durable_directory(rig, "from"), durable_directory(rig, "to"));
    rig.create(from, "a").unwrap();
    rig.sync(&[from]).unwrap();
    rig.rename((from, "a"), (to, "b")).unwrap();
    (from, to)
}

#[test]
fn a_rename_between_directories_survives_in_both_or_in_none() {
    let show = |rig: &mut TreeRig| (rig.names("/from").concat(), rig.names("/to").concat());
    let found = after_power_cut(
        |rig| {
            rename_between(rig);
        },
        show,
    );
    let (none, both) = (("a".to_owned(), String::new()), (String::new(), "b".to_owned()));
    assert!(count(&found, none.clone()) > 20 && count(&found, both.clone()) > 20);
    assert_eq!(count(&found, none) + count(&found, both), found.len());
}

#[test]
fn a_rename_between_directories_is_durable_after_a_sync_of_either() {
    for which in 0..2 {
        let rename = |rig: &mut TreeRig| {
            let dirs = rename_between(rig);
            rig.sync(&[[dirs.0, dirs.1][which]]).unwrap();
        };
        let found = after_power_cut(rename, |rig| rig.names("/from").concat() + &rig.names("/to").concat());
        assert_eq!(count(&found, "b"), found.len());
    }
}

#[test]
fn no_file_that_always_had_a_name_is_lost() {
    let shuffle = |rig: &mut TreeRig| {
        let root = rig.root();
        let file = durable_file(rig, "a");
        let dir = rig.make_directory(root, "new").unwrap();
        let below = rig.make_directory(dir, "below").unwrap();
        rig.link(file, below, "b").unwrap();
        rig.remove(root, "a").unwrap();
        rig.rename((below, "b"), (dir, "c")).unwrap();
        rig.remove_directory(dir, "below").unwrap();
        if rig.world.seed().is_multiple_of(2) {
            rig.sync(&[root]).unwrap();
        }
    };
    let places = ["/a", "/new/below/b", "/new/c"];
    let found = after_power_cut(shuffle, |rig| places.map(|place| rig.content(place) == Some(stamped(8, 1))));
    assert!(found.iter().all(|found| found.contains(&true)), "{found:?}");
    assert!((0..3).all(|place| found.iter().any(|found| found[place])), "each place is possible");
}

#[test]
fn a_removal_is_durable_after_a_sync_and_undone_or_not_before() {
    let remove = |synced: bool| {
        move |rig: &mut TreeRig| {
            let file = durable_file(rig, "a");
            let root = rig.root();
            rig.remove(root, "a").unwrap();
            if synced {
                rig.sync(&[root]).unwrap();
            }
            assert_eq!(rig.attributes(file), Err(Errno(libc::ESTALE)));
        }
    };
    let found = after_power_cut(remove(false), |rig| rig.content("/a"));
    assert!(count(&found, None) > 20 && count(&found, Some(stamped(8, 1))) > 20);
    assert_eq!(count(&after_power_cut(remove(true), |rig| rig.content("/a")), None), 200);
}

#[test]
fn a_node_is_the_same_after_a_power_cut_and_stale_if_it_never_had_a_durable_entry() {
    let mut stale = 0;
    for seed in 0..50 {
        let mut rig = rig(seed);
        let root = rig.root();
        let old = durable_file(&mut rig, "old");
        let new = rig.create(root, "new").unwrap();
        rig.power_cut();
        assert_eq!(rig.lookup(root, "old"), Ok(old));
        match rig.lookup(root, "new") {
            Ok(node) => assert_eq!(node, new),
            Err(_) => {
                stale += 1;
                assert_eq!(rig.attributes(new), Err(Errno(libc::ESTALE)));
                assert_ne!(rig.create(root, "other"), Ok(new), "and is not reused");
            }
        }
    }
    assert!(stale > 5);
}

#[test]
fn attributes_survive_after_a_sync_of_their_node_and_later_ones_may() {
    let set = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        for each in [0o600, 0o640, 0o660] {
            rig.set(file, mode(each)).unwrap();
            if each == 0o600 {
                rig.sync(&[file]).unwrap();
            }
        }
    };
    let found = after_power_cut(set, |rig| rig.world.tree_attributes(rig.tree, "/a").unwrap().mode);
    assert!([0o600u32, 0o640, 0o660].iter().all(|mode| count(&found, *mode) > 10));
    assert_eq!(count(&found, 0o644u32), 0);
}

#[test]
fn a_new_file_that_was_not_synced_itself_may_come_back_empty() {
    let create = |rig: &mut TreeRig| {
        let root = rig.root();
        let file = rig.create(root, "a").unwrap();
        let open = rig.open(file).unwrap();
        rig.write(open.direct.file, 0, stamped(8, 1)).unwrap();
        rig.set(file, mode(0o600)).unwrap();
        rig.sync(&[root]).unwrap();
    };
    let show =
        |rig: &mut TreeRig| (rig.content("/a").unwrap(), rig.world.tree_attributes(rig.tree, "/a").unwrap().mode);
    let found = after_power_cut(create, show);
    assert!(found.iter().any(|(content, _)| content.is_empty()));
    assert!(found.iter().any(|(content, _)| *content == vec![0; 4096]));
    assert!(found.iter().any(|(content, _)| *content == stamped(8, 1)));
    assert!(found.iter().any(|(_, mode)| *mode == 0o644) && found.iter().any(|(_, mode)| *mode == 0o600));
}

#[test]
fn content_and_size_survive_after_a_flush_but_attributes_need_a_sync() {
    let write = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        rig.set(file, mode(0o600)).unwrap();
        rig.write(open.direct.file, 4096, stamped(8, 2)).unwrap();
        rig.set(file, size(6144)).unwrap();
        rig.flush(open.direct.file).unwrap();
    };
    let show =
        |rig: &mut TreeRig| (rig.content("/a").unwrap(), rig.world.tree_attributes(rig.tree, "/a").unwrap().mode);
    let found = after_power_cut(write, show);
    assert!(found.iter().all(|(content, _)| *content == [stamped(8, 1), stamped(4, 2)].concat()));
    assert!(found.iter().any(|(_, mode)| *mode == 0o644));
}

#[test]
fn a_stable_write_survives_with_its_size_but_without_the_writes_around_it() {
    let write = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        rig.set(file, size(8192)).unwrap();
        rig.flush(open.direct.file).unwrap();
        rig.write(open.direct.file, 4096, stamped(8, 2)).unwrap();
        rig.write_stable(open.direct.file, 8192, stamped(8, 3)).unwrap();
        rig.write(open.direct.file, 12288, stamped(8, 4)).unwrap();
    };
    let found = after_power_cut(write, |rig| stamps_of(&rig.content("/a").unwrap()));
    assert!(found.iter().all(|stamps| stamps[16..24] == [Some(3); 8] && stamps[..8] == [Some(1); 8]));
    assert!(found.iter().any(|stamps| stamps[8..16] == [Some(0); 8]));
    assert!(found.iter().any(|stamps| stamps.len() == 24) && found.iter().any(|stamps| stamps.len() == 32));
}

#[test]
fn a_stable_write_survives_only_within_the_durable_size_if_the_file_has_grown_since() {
    let write = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        let buffered = open.buffered.as_ref().unwrap().file;
        rig.write(buffered, 8192, stamped(8, 2)).unwrap();
        rig.write_stable(buffered, 3072, stamped(4, 3)).unwrap();
    };
    let found = after_power_cut(write, |rig| stamps_of(&rig.content("/a").unwrap()));
    assert!(found.iter().all(|stamps| stamps[..8] == [[Some(1); 6].as_slice(), &[Some(3); 2]].concat()));
    assert!(found.iter().any(|stamps| stamps.len() == 8), "cut off at the size that was durable");
    assert!(found.iter().any(|stamps| stamps.len() == 24));
}

#[test]
fn truncated_content_never_returns_in_a_file_that_grew_again() {
    let regrow = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        rig.set(file, size(1024)).unwrap();
        rig.write(open.direct.file, 4096, stamped(8, 2)).unwrap();
    };
    let found = after_power_cut(regrow, |rig| stamps_of(&rig.content("/a").unwrap()));
    for stamps in &found {
        match stamps.len() {
            2 => assert_eq!(*stamps, [Some(1); 2]),
            8 => assert_eq!(*stamps, [Some(1); 8], "the truncation was lost, and all after it"),
            _ => {
                assert_eq!(stamps[..8], [[Some(1); 2].as_slice(), &[Some(0); 6]].concat());
                assert!(stamps[8..].iter().all(|stamp| matches!(stamp, Some(0 | 2))));
            }
        }
    }
    for len in [2, 8, 16] {
        assert!(found.iter().any(|stamps| stamps.len() == len), "{len} sectors");
    }
}

#[test]
fn unflushed_writes_are_torn_between_sectors_but_never_within() {
    let write = |rig: &mut TreeRig| {
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        rig.write(open.direct.file, 0, stamped(8, 2)).unwrap();
    };
    let found = after_power_cut(write, |rig| stamps_of(&rig.content("/a").unwrap()));
    assert!(found.iter().any(|stamps| stamps.contains(&Some(1)) && stamps.contains(&Some(2))));
    assert!(found.iter().flatten().all(|stamp| matches!(stamp, Some(1 | 2))));
}

/// Starts a call and lets a little time pass, so that it is in flight when the power fails.
fn in_flight(rig: &mut TreeRig, call: TreeCall) {
    rig.run();
    rig.start(call);
    rig.side.run_slice();
    let soon = Instant::from_ns(rig.world.now().ns() + 1_000);
    rig.world.step_until(soon);
}

#[test]
fn calls_in_flight_may_or_may_not_be_done() {
    let create = |rig: &mut TreeRig| {
        let root = rig.root();
        let how = machine::tree::Creation::Guarded;
        in_flight(rig, TreeCall::Create { dir: root, name: b"a".to_vec(), how, attributes: mode(0) });
        assert_eq!(rig.names("/"), [""; 0]);
    };
    let found = after_power_cut(create, |rig| rig.names("/").len());
    assert!(count(&found, 0usize) > 20 && count(&found, 1usize) > 5);
    let killed = (0..100).filter(|&seed| {
        let mut rig = rig(seed);
        create(&mut rig);
        rig.kill();
        rig.names("/").len() == 1
    });
    assert!((20..80).contains(&killed.count()));
}

#[test]
fn a_sync_does_not_cover_what_was_not_complete_when_it_started() {
    let concurrently = |rig: &mut TreeRig| {
        let root = rig.root();
        let file = durable_file(rig, "a");
        let open = rig.open(file).unwrap();
        rig.start(TreeCall::Sync { nodes: vec![root, file] });
        rig.side.write(open.direct.file, 0, stamped(8, 2), Stability::Unstable);
        rig.start(TreeCall::SetAttributes { node: file, attributes: mode(0o600), guard: None });
        let how = machine::tree::Creation::Guarded;
        rig.start(TreeCall::Create { dir: root, name: b"b".to_vec(), how, attributes: mode(0) });
        rig.run();
        assert_eq!(rig.names("/"), ["a", "b"]);
    };
    let show = |rig: &mut TreeRig| {
        let mode = rig.world.tree_attributes(rig.tree, "/a").unwrap().mode;
        (rig.names("/").len(), rig.content("/a").unwrap() == stamped(8, 2), mode)
    };
    let found = after_power_cut(concurrently, show);
    assert!(found.iter().any(|found| found.0 == 1));
    assert!(found.iter().any(|found| !found.1));
    assert!(found.iter().any(|found| found.2 == 0o644));
}

#[test]
fn after_a_kill_completed_changes_remain() {
    for seed in 0..50 {
        let mut rig = rig(seed);
        let root = rig.root();
        let file = rig.create(root, "a").unwrap();
        let open = rig.open(file).unwrap();
        rig.write(open.direct.file, 0, stamped(16, 1)).unwrap();
        rig.kill();
        assert_eq!(rig.content("/a").unwrap(), stamped(16, 1), "seed {seed}");
    }
}

#[test]
fn what_a_failed_flush_or_sync_covered_may_be_lost_whatever_succeeds_later() {
    for class in [OpClass::Flush, OpClass::Sync] {
        let fail = |rig: &mut TreeRig| {
            let file = durable_file(rig, "a");
            let open = rig.open(file).unwrap();
            rig.write(open.direct.file, 0, stamped(8, 2)).unwrap();
            rig.world.fail_next_in_tree(rig.tree, class, 1, Errno::IO);
            match class {
                OpClass::Flush => assert_eq!(rig.flush(open.direct.file), Err(Errno::IO)),
                _ => assert_eq!(rig.sync(&[file]), Err(Errno::IO)),
            }
            rig.write(open.direct.file, 4096, stamped(8, 3)).unwrap();
            rig.sync(&[file]).unwrap();
        };
        let found = after_power_cut(fail, |rig| stamps_of(&rig.content("/a").unwrap()));
        assert!(found.iter().all(|stamps| stamps[8..] == [Some(3); 8]));
        assert!(found.iter().any(|stamps| stamps[..8] == [Some(1); 8]));
        assert!(found.iter().any(|stamps| stamps[..8] == [Some(2); 8]));
    }
}

#[test]
fn what_a_failed_sync_loses_of_another_file_by_its_journal_is_told_by_that_files_next_flush() {
    let mut told = 0;
    for seed in 0..100 {
        let mut rig = TreeRig::new(seed, TreeConfig { journal: true, ..TreeConfig::new() });
        let (root, file) = (rig.root(), durable_file(&mut rig, "a"));
        let open = rig.open(file).unwrap();
        rig.write(open.direct.file, 0, stamped(8, 2)).unwrap();
        rig.world.fail_next_in_tree(rig.tree, OpClass::Sync, 1, Errno::IO);
        assert_eq!(rig.sync(&[root]), Err(Errno::IO));
        let flushed = rig.flush(open.direct.file);
        rig.power_cut();
        let is_there = rig.content("/a") == Some(stamped(8, 2));
        assert!(is_there || flushed == Err(Errno::IO), "seed {seed}");
        told += usize::from(!is_there);
    }
    assert!((5..95).contains(&told), "{told}");
}

/// A buffered write whose write-back fails, and what is told of that through each of two descriptors.
fn told_of_a_failed_write_back(rig: &mut TreeRig, tell: impl Fn(&mut TreeRig, &OpenNode) -> Result<(), Errno>) {
    let file = durable_file(rig, "a");
    let (open, other) = (rig.open(file).unwrap(), rig.open(file).unwrap());
    let buffered = open.buffered.as_ref().expect("it is writable").file;
    rig.world.fail_next_in_tree(rig.tree, OpClass::Background, 1, Errno::IO);
    rig.write(buffered, 0, stamped(8, 2)).unwrap();
    assert_eq!(tell(rig, &open), Err(Errno::IO));
    assert_eq!(tell(rig, &open), Ok(()), "it is told once");
    assert_eq!(rig.sync(&[file]), Ok(()), "to nobody who comes after");
    assert_eq!(rig.flush(other.direct.file), Err(Errno::IO), "but to each who was there");
    rig.write(buffered, 4096, stamped(8, 3)).unwrap();
    assert_eq!(rig.flush(open.direct.file), Ok(0));
}

#[test]
fn what_the_host_could_not_write_back_is_lost_and_told_of_once_through_each_descriptor() {
    let by_flush = |rig: &mut TreeRig, open: &OpenNode| rig.flush(open.direct.file).map(drop);
    let by_write_back = |rig: &mut TreeRig, open: &OpenNode| {
        let file = open.direct.file;
        let token = rig.side.write_back(file);
        rig.run();
        rig.side.take(token).0.map(drop)
    };
    let lost = |tell: &dyn Fn(&mut TreeRig, &OpenNode) -> Result<(), Errno>| {
        let fail = |rig: &mut TreeRig| told_of_a_failed_write_back(rig, tell);
        let found = after_power_cut(fail, |rig| stamps_of(&rig.content("/a").unwrap()));
        assert!(found.iter().all(|stamps| stamps[8..] == [Some(3); 8] && stamps[..8] == [Some(1); 8]));
    };
    lost(&by_flush);
    lost(&by_write_back);
}

#[test]
fn a_failed_write_back_of_which_nobody_was_told_fails_the_next_sync() {
    let mut rig = rig(1);
    let file = durable_file(&mut rig, "a");
    let open = rig.open(file).unwrap();
    rig.world.fail_next_in_tree(rig.tree, OpClass::Background, 1, Errno::NO_SPACE);
    rig.write(open.buffered.as_ref().expect("it is writable").file, 0, stamped(8, 2)).unwrap();
    assert_eq!(rig.sync(&[file]), Err(Errno::NO_SPACE));
    assert_eq!(rig.sync(&[file]), Ok(()));
}

#[test]
fn a_tree_configured_to_lie_about_syncs_loses_what_they_covered() {
    let create = |rig: &mut TreeRig| {
        rig.world.set_tree_faults(rig.tree, DiskFaults { flush_lie_permille: 1000, ..DiskFaults::default() });
        let root = rig.root();
        rig.create(root, "a").unwrap();
        rig.sync(&[root]).unwrap();
    };
    assert!(count(&after_power_cut(create, |rig| rig.names("/").len()), 0usize) > 20);
}

#[test]
fn the_reported_durable_state_is_what_a_power_cut_may_leave() {
    let mut rig = rig(1);
    let root = rig.root();
    let file = durable_file(&mut rig, "a");
    let open = rig.open(file).unwrap();
    rig.write(open.direct.file, 0, stamped(16, 2)).unwrap();
    rig.rename((root, "a"), (root, "b")).unwrap();
    assert_eq!(rig.world.tree_durable_names(rig.tree, "/").unwrap(), ["a"]);
    assert_eq!(rig.world.tree_durable_content(rig.tree, "/a").unwrap(), stamped(8, 1));
    assert_eq!(rig.world.tree_durable_content(rig.tree, "/b"), None);
    rig.world.sync_tree(rig.tree);
    assert_eq!(rig.world.tree_durable_content(rig.tree, "/b").unwrap(), stamped(16, 2));
    rig.power_cut();
    assert_eq!((rig.names("/"), rig.content("/b").unwrap()), (vec!["b".to_owned()], stamped(16, 2)));
}
