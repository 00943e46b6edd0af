//! What callers may do.

use super::*;
use machine::tree::{DeviceNumber, Kind, SetTime, Time};

/// Are these promises of trees that act for callers other than the server?
pub const NEED_OTHERS: bool = true;

/// Hands the names of these promises to a macro.
#[macro_export]
macro_rules! promises_of_permissions {
    ($on:ident) => {
        $on! {
            permissions:
            new_nodes_belong_to_their_caller,
            a_caller_without_permission_changes_nothing_in_a_directory,
            a_caller_without_permission_neither_lists_nor_searches_a_directory,
            all_supplementary_groups_count,
            in_a_sticky_directory_only_owners_remove,
            access_returns_the_permissions_of_the_caller,
            attributes_are_changed_by_owners_only,
            who_may_write_sets_any_time_to_now_and_empties_the_file,
            what_is_refused_leaves_the_content,
            what_a_mode_gives_to_those_who_run_a_file_is_dropped_and_the_rest_of_it_stays,
            an_owner_truncates_its_file_whatever_the_mode,
            new_nodes_in_a_set_group_id_directory_have_its_group,
            only_root_gets_the_owner_that_it_requests,
            owner_groups_and_others_have_their_own_bits,
            only_members_of_its_group_make_a_file_set_group_id
        }
    };
}

fn alice() -> Caller {
    caller(5001, 6001, &[])
}

fn bob() -> Caller {
    caller(5002, 6002, &[])
}

fn a_file(dir: Node, name: &str) -> TreeCall {
    create(dir, name, Creation::Guarded, mode(0o644))
}

pub fn new_nodes_belong_to_their_caller(mut served: impl Tree) {
    let root = served.root();
    let alice = alice();
    let special = TreeCall::MakeSpecial { dir: root, name: "fifo".into(), kind: Kind::Fifo, attributes: mode(0o600) };
    let exclusive = create(root, "exclusive", Creation::Exclusive { verifier: [9; 8] }, mode(0));
    let calls = [
        a_file(root, "file"),
        exclusive.clone(),
        make_directory(root, "directory", 0o700),
        make_symbolic_link(root, "link", "file"),
        special,
    ];
    for call in calls {
        let (_, attributes) = served.node(Some(&alice), call.clone()).expect("made");
        assert_eq!((attributes.uid, attributes.gid), (5001, 6001), "{call:?}");
    }
    assert!(served.node(Some(&alice), exclusive).is_ok());
    let (_, attributes) = served.node(None, a_file(root, "server")).expect("made");
    assert_eq!(attributes.uid, 0);
    let root_user = caller(0, 7, &[]);
    let (_, attributes) = served.node(Some(&root_user), a_file(root, "root")).expect("made");
    assert_eq!((attributes.uid, attributes.gid), (0, 7));
}

pub fn a_caller_without_permission_changes_nothing_in_a_directory(mut served: impl Tree) {
    let root = served.root();
    let dir = served.make_directory("dir", 0o755);
    let file = served.node(None, a_file(dir, "file")).expect("made").0;
    assert!(served.node(None, make_directory(dir, "empty", 0o755)).is_ok());
    let mine = served.node(Some(&alice()), a_file(root, "mine")).expect("made").0;
    let special = TreeCall::MakeSpecial { dir, name: "new".into(), kind: Kind::Fifo, attributes: mode(0o600) };
    let calls = [
        a_file(dir, "new"),
        create(dir, "new", Creation::Unchecked, mode(0o600)),
        create(dir, "new", Creation::Exclusive { verifier: [1; 8] }, mode(0o600)),
        make_directory(dir, "new", 0o700),
        make_symbolic_link(dir, "new", "x"),
        special,
        remove(dir, "file"),
        remove_directory(dir, "empty"),
        rename(dir, "file", root, "stolen"),
        rename(root, "mine", dir, "new"),
        link(mine, dir, "new"),
    ];
    for call in calls {
        assert_eq!(served.ask(Some(&alice()), call.clone()).err(), Some(EACCES), "{call:?}");
    }
    let (entries, _) = served.list(None, dir, 0, 10, false).expect("listed");
    assert_eq!(entries.len(), 4);
    // An existing file is taken by a caller that may search the directory; truncating it takes more.
    let taken = served.node(Some(&alice()), create(dir, "file", Creation::Unchecked, mode(0o600)));
    assert_eq!(taken.expect("taken").0, file);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(served.node(Some(&alice()), create(dir, "file", Creation::Unchecked, cut)), Err(EACCES));
    let device = Kind::BlockDevice(DeviceNumber { major: 8, minor: 0 });
    let device = TreeCall::MakeSpecial { dir: root, name: "sda".into(), kind: device, attributes: mode(0o666) };
    assert_eq!(served.node(Some(&alice()), device), Err(EPERM));
}

pub fn a_caller_without_permission_neither_lists_nor_searches_a_directory(mut served: impl Tree) {
    let closed = served.make_directory("closed", 0o700);
    let only_read = served.make_directory("only-read", 0o744);
    let only_search = served.make_directory("only-search", 0o711);
    let only_write = served.make_directory("only-write", 0o722);
    for dir in [closed, only_read, only_search, only_write] {
        assert!(served.node(None, a_file(dir, "file")).is_ok());
    }
    let alice = alice();
    for name in ["file", ".", "..", "nothing"] {
        for dir in [closed, only_read, only_write] {
            assert_eq!(served.node(Some(&alice), lookup(dir, name)), Err(EACCES), "{name}");
        }
    }
    assert!(served.node(Some(&alice), lookup(only_search, "file")).is_ok());
    assert_eq!(served.node(Some(&alice), a_file(only_write, "new")), Err(EACCES));
    for dir in [closed, only_search, only_write] {
        assert_eq!(served.list(Some(&alice), dir, 0, 10, false).err(), Some(EACCES));
    }
    // Names without their nodes.
    let (entries, last) = served.list(Some(&alice), only_read, 0, 10, true).expect("listed");
    assert_eq!((entries.len(), last), (3, true));
    assert!(entries.iter().all(|entry| entry.node.is_none()));
    let (entries, _) = served.list(None, only_read, 0, 10, true).expect("listed");
    assert!(entries.iter().all(|entry| entry.node.is_some()));
}

pub fn all_supplementary_groups_count(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o770);
    let group = SetAttributes { gid: Some(7777), ..SetAttributes::default() };
    assert!(served.ask(None, set(dir, group)).is_ok());
    let many: Vec<u32> = (7762..=7777).collect();
    assert_eq!(served.node(Some(&caller(5001, 6001, &many[..15])), a_file(dir, "a")), Err(EACCES));
    assert!(served.node(Some(&caller(5001, 6001, &many)), a_file(dir, "b")).is_ok());
    assert!(served.node(Some(&caller(5001, 7777, &[])), a_file(dir, "c")).is_ok());
    // Nothing of one caller is left for the next.
    for _ in 0..100 {
        assert_eq!(served.node(Some(&alice()), lookup(dir, "b")), Err(EACCES));
    }
}

pub fn in_a_sticky_directory_only_owners_remove(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o1777);
    for (name, who) in [("a", alice()), ("b", bob())] {
        assert!(served.node(Some(&who), a_file(dir, name)).is_ok());
    }
    let alice = alice();
    assert_eq!(served.node(Some(&alice), remove(dir, "b")), Err(EPERM));
    assert_eq!(served.ask(Some(&alice), rename(dir, "b", dir, "c")).err(), Some(EPERM));
    assert_eq!(served.ask(Some(&alice), rename(dir, "a", dir, "b")).err(), Some(EPERM));
    assert!(served.node(Some(&alice), remove(dir, "a")).is_ok());
    assert!(served.node(None, remove(dir, "b")).is_ok());
    // The owner of the directory, too.
    assert!(served.node(Some(&bob()), a_file(dir, "c")).is_ok());
    assert!(served.ask(None, set(dir, SetAttributes { uid: Some(5001), ..SetAttributes::default() })).is_ok());
    assert!(served.node(Some(&alice), remove(dir, "c")).is_ok());
}

pub fn access_returns_the_permissions_of_the_caller(mut served: impl Tree) {
    let root = served.root();
    let (read, write, execute) = (libc::R_OK as u32, libc::W_OK as u32, libc::X_OK as u32);
    let all = read | write | execute;
    let node = served.node(Some(&alice()), create(root, "file", Creation::Guarded, mode(0o640))).expect("made").0;
    let mut may = |who: Option<&Caller>, wanted| access(served.ask(who, TreeCall::Access { node, wanted }));
    assert_eq!(may(Some(&alice()), all), Ok(read | write));
    assert_eq!(may(Some(&alice()), execute), Ok(0));
    assert_eq!(may(Some(&alice()), write), Ok(write));
    assert_eq!(may(Some(&caller(5003, 6001, &[])), all), Ok(read));
    assert_eq!(may(Some(&caller(5003, 6003, &[1, 6001, 2])), all), Ok(read));
    assert_eq!(may(Some(&bob()), all), Ok(0));
    assert_eq!(may(None, all), Ok(read | write));
    assert_eq!(may(Some(&caller(0, 0, &[])), all), Ok(read | write));
    assert_eq!(may(None, 0), Ok(0));
}

pub fn attributes_are_changed_by_owners_only(mut served: impl Tree) {
    let root = served.root();
    let node = served.node(Some(&alice()), create(root, "file", Creation::Guarded, mode(0o4666))).expect("made").0;
    let none = SetAttributes::default();
    let time = SetTime::To(Time { seconds: 5, nanoseconds: 0 });
    let chosen = SetAttributes { modified: Some(time), ..none };
    let now = SetAttributes { modified: Some(SetTime::Now), accessed: Some(SetTime::Now), ..none };
    assert_eq!(served.ask(Some(&bob()), set(node, mode(0o777))).err(), Some(EPERM));
    assert_eq!(served.ask(Some(&bob()), set(node, chosen)).err(), Some(EPERM));
    // A caller that may write may set the times to now.
    assert!(served.ask(Some(&bob()), set(node, now)).is_ok());
    assert!(served.ask(Some(&alice()), set(node, chosen)).is_ok());
    let away = SetAttributes { uid: Some(5002), ..none };
    assert_eq!(served.ask(Some(&alice()), set(node, away)).err(), Some(EPERM));
    let foreign = SetAttributes { gid: Some(6002), ..none };
    assert_eq!(served.ask(Some(&alice()), set(node, foreign)).err(), Some(EPERM));
    let of_hers = caller(5001, 6001, &[6002]);
    let reported = attributes_in(served.ask(Some(&of_hers), set(node, foreign))).expect("set");
    // A set-user-ID bit is cleared when the group changes.
    assert_eq!((reported.gid, reported.mode), (6002, 0o666));
    assert_eq!(attributes_in(served.ask(None, set(node, away))).expect("set").uid, 5002);
    let closed = served.node(Some(&alice()), create(root, "closed", Creation::Guarded, mode(0o600))).expect("made").0;
    assert_eq!(served.ask(Some(&bob()), set(closed, now)).err(), Some(EACCES));
}

pub fn who_may_write_sets_any_time_to_now_and_empties_the_file(mut served: impl Tree) {
    served.put("file", b"abc");
    let node = served.lookup(served.root(), "file").expect("there").0;
    let (none, now, past) = (SetAttributes::default(), Some(SetTime::Now), Time { seconds: 5, nanoseconds: 0 });
    let old = SetAttributes { accessed: Some(SetTime::To(past)), modified: Some(SetTime::To(past)), ..mode(0o664) };
    assert!(served.ask(None, set(node, SetAttributes { gid: Some(7777), ..old })).is_ok());
    let member = caller(5002, 6002, &[7777]);
    let accessed = attributes_in(served.ask(Some(&member), set(node, SetAttributes { accessed: now, ..none })));
    let accessed = accessed.expect("set");
    assert!(accessed.accessed > past && accessed.modified == past);
    assert!(served.ask(None, set(node, old)).is_ok());
    let modified = attributes_in(served.ask(Some(&member), set(node, SetAttributes { modified: now, ..none })));
    let modified = modified.expect("set");
    assert!(modified.modified > past && modified.accessed == past);
    assert!(served.ask(None, set(node, old)).is_ok());
    // As opening it to write it anew does.
    let emptied = served.ask(Some(&member), set(node, SetAttributes { size: Some(0), modified: now, ..none }));
    let emptied = attributes_in(emptied).expect("set");
    assert!(emptied.size == 0 && emptied.modified > past && emptied.accessed == past);
    for one in [SetAttributes { accessed: now, ..none }, SetAttributes { modified: now, ..none }] {
        assert_eq!(served.ask(Some(&alice()), set(node, one)).err(), Some(EACCES), "{one:?}");
    }
}

pub fn what_a_mode_gives_to_those_who_run_a_file_is_dropped_and_the_rest_of_it_stays(mut served: impl Tree) {
    let drops = SetAttributes { drops_set_id: true, ..SetAttributes::default() };
    served.put("file", b"abc");
    let node = served.lookup(served.root(), "file").expect("there").0;
    for (before, after) in [(0o4755, 0o755), (0o6711, 0o711), (0o2644, 0o2644), (0o640, 0o640)] {
        for who in [Some(alice()), None] {
            let all = SetAttributes { uid: Some(5001), gid: Some(6001), ..mode(before) };
            assert!(served.ask(None, set(node, all)).is_ok());
            if before != after {
                assert_eq!(served.ask(Some(&bob()), set(node, drops)).err(), Some(EPERM), "{before:o}");
            }
            let told = attributes_in(served.ask(who.as_ref(), set(node, drops))).expect("set");
            assert_eq!((told.mode, told.uid, told.gid), (after, 5001, 6001), "{before:o}");
        }
    }
}

pub fn what_is_refused_leaves_the_content(mut served: impl Tree) {
    served.put("file", b"abc");
    let node = served.lookup(served.root(), "file").expect("there").0;
    assert!(served.ask(None, set(node, SetAttributes { uid: Some(5001), gid: Some(6001), ..mode(0o666) })).is_ok());
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let time = |nanoseconds| Some(SetTime::To(Time { seconds: 5, nanoseconds }));
    for (who, attributes, error) in [
        (bob(), SetAttributes { mode: Some(0o777), ..cut }, EPERM),
        (bob(), SetAttributes { modified: time(0), ..cut }, EPERM),
        (bob(), SetAttributes { uid: Some(5002), ..cut }, EPERM),
        (bob(), SetAttributes { gid: Some(6002), ..cut }, EPERM),
        (alice(), SetAttributes { uid: Some(5002), ..cut }, EPERM),
        (alice(), SetAttributes { gid: Some(6002), ..cut }, EPERM),
        (alice(), SetAttributes { accessed: time(1_000_000_000), ..cut }, Errno::INVALID),
        (alice(), SetAttributes { uid: Some(u32::MAX), ..cut }, Errno::INVALID),
    ] {
        assert_eq!(served.ask(Some(&who), set(node, attributes)).err(), Some(error), "{attributes:?}");
        assert_eq!(served.attributes(node).expect("there").size, 3, "{attributes:?}");
    }
    let hers = SetAttributes { gid: Some(6002), modified: time(0), ..cut };
    assert!(
        served.ask(Some(&caller(5001, 6001, &[6002])), set(node, SetAttributes { mode: Some(0o600), ..hers })).is_ok()
    );
}

pub fn an_owner_truncates_its_file_whatever_the_mode(mut served: impl Tree) {
    let root = served.root();
    let node = served.node(Some(&alice()), create(root, "file", Creation::Guarded, mode(0o444))).expect("made").0;
    let size = SetAttributes { size: Some(100), ..SetAttributes::default() };
    assert_eq!(attributes_in(served.ask(Some(&alice()), set(node, size))).expect("set").size, 100);
    assert_eq!(served.ask(Some(&bob()), set(node, size)).err(), Some(EACCES));
    let group = caller(5003, 6001, &[]);
    assert_eq!(served.ask(Some(&group), set(node, size)).err(), Some(EACCES));
}

pub fn new_nodes_in_a_set_group_id_directory_have_its_group(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o2777);
    let group = SetAttributes { gid: Some(7777), ..mode(0o2777) };
    assert!(served.ask(None, set(dir, group)).is_ok());
    let file = served.node(Some(&alice()), a_file(dir, "file")).expect("made").1;
    assert_eq!((file.uid, file.gid), (5001, 7777));
    let below = served.node(Some(&alice()), make_directory(dir, "below", 0o755)).expect("made").1;
    assert_eq!((below.gid, below.mode), (7777, 0o2755));
}

pub fn only_root_gets_the_owner_that_it_requests(mut served: impl Tree) {
    let root = served.root();
    let asked = SetAttributes { uid: Some(5002), gid: Some(6002), ..mode(0o4755) };
    let made = served.node(Some(&alice()), create(root, "a", Creation::Guarded, asked)).expect("made").1;
    assert_eq!((made.uid, made.gid, made.mode), (5001, 6001, 0o4755));
    let made = served.node(Some(&caller(0, 0, &[])), create(root, "b", Creation::Guarded, asked)).expect("made").1;
    assert_eq!((made.uid, made.gid, made.mode), (5002, 6002, 0o4755));
}

pub fn owner_groups_and_others_have_their_own_bits(mut served: impl Tree) {
    let (root, wanted) = (served.root(), 7);
    let node = served.node(Some(&alice()), create(root, "file", Creation::Guarded, mode(0o421))).expect("made").0;
    let mut seen_by = |uid, gid, groups: &[u32]| {
        access(served.ask(Some(&caller(uid, gid, groups)), TreeCall::Access { node, wanted })).expect("an answer")
    };
    assert_eq!(seen_by(5001, 99, &[6001]), 4, "the owner, though the group may do more");
    assert_eq!(seen_by(5002, 6001, &[]), 2);
    assert_eq!(seen_by(5002, 99, &[98, 6001]), 2);
    assert_eq!(seen_by(5002, 99, &[98]), 1);
    assert_eq!(seen_by(0, 0, &[]), 7);
    assert!(served.ask(None, set(node, mode(0o600))).is_ok());
    let by_root = access(served.ask(Some(&caller(0, 0, &[])), TreeCall::Access { node, wanted }));
    assert_eq!(by_root, Ok(6), "root does not execute a file without any such bit");
}

pub fn only_members_of_its_group_make_a_file_set_group_id(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o2777);
    assert!(served.ask(None, set(dir, SetAttributes { gid: Some(7777), ..mode(0o2777) })).is_ok());
    let made = served.node(Some(&alice()), create(dir, "a", Creation::Guarded, mode(0o2755))).expect("made");
    assert_eq!(made.1.mode, 0o755);
    let member = caller(5001, 6001, &[7777]);
    assert_eq!(attributes_in(served.ask(Some(&member), set(made.0, mode(0o2755)))).expect("set").mode, 0o2755);
}
