//! The host decides what callers may do in its trees.

use crate::rig::Rig;
use crate::tree_rig::*;
use machine::linux::tree::{self, OpenTreeError};
use machine::tree::{Caller, Creation, DeviceNumber, Kind, Node, SetAttributes, SetTime, Time, TreeCall};
use machine::{Completion, Errno};
use testkit::skip::note;

on_all_trees!(
    new_nodes_belong_to_their_caller,
    a_caller_without_permission_changes_nothing_in_a_directory,
    a_caller_without_permission_neither_lists_nor_searches_a_directory,
    all_supplementary_groups_count,
    in_a_sticky_directory_only_owners_remove,
    access_returns_the_permissions_of_the_caller,
    attributes_are_changed_by_owners_only,
    an_owner_truncates_its_file_whatever_the_mode,
    new_nodes_in_a_set_group_id_directory_have_its_group,
    only_root_gets_the_owner_that_it_requests,
    invalid_users_are_refused_and_never_become_root,
    concurrent_callers_do_not_get_each_others_identity,
);

fn alice() -> Caller {
    caller(5001, 6001, &[])
}

fn bob() -> Caller {
    caller(5002, 6002, &[])
}

fn a_file(dir: Node, name: &str) -> TreeCall {
    create(dir, name, Creation::Guarded, mode(0o644))
}

fn new_nodes_belong_to_their_caller(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
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

fn a_caller_without_permission_changes_nothing_in_a_directory(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
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

fn a_caller_without_permission_neither_lists_nor_searches_a_directory(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let closed = served.make_directory("closed", 0o700);
    let only_read = served.make_directory("only-read", 0o744);
    let only_search = served.make_directory("only-search", 0o711);
    for dir in [closed, only_read, only_search] {
        assert!(served.node(None, a_file(dir, "file")).is_ok());
    }
    let alice = alice();
    for name in ["file", ".", "..", "nothing"] {
        for dir in [closed, only_read] {
            assert_eq!(served.node(Some(&alice), lookup(dir, name)), Err(EACCES), "{name}");
        }
    }
    assert!(served.node(Some(&alice), lookup(only_search, "file")).is_ok());
    for dir in [closed, only_search] {
        assert_eq!(served.list(Some(&alice), dir, 0, 10, false).err(), Some(EACCES));
    }
    // Names without their nodes.
    let (entries, last) = served.list(Some(&alice), only_read, 0, 10, true).expect("listed");
    assert_eq!((entries.len(), last), (3, true));
    assert!(entries.iter().all(|entry| entry.node.is_none()));
    let (entries, _) = served.list(None, only_read, 0, 10, true).expect("listed");
    assert!(entries.iter().all(|entry| entry.node.is_some()));
}

fn all_supplementary_groups_count(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
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

fn in_a_sticky_directory_only_owners_remove(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
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
}

fn access_returns_the_permissions_of_the_caller(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
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

fn attributes_are_changed_by_owners_only(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
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

fn an_owner_truncates_its_file_whatever_the_mode(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
    let node = served.node(Some(&alice()), create(root, "file", Creation::Guarded, mode(0o444))).expect("made").0;
    let size = SetAttributes { size: Some(100), ..SetAttributes::default() };
    assert_eq!(attributes_in(served.ask(Some(&alice()), set(node, size))).expect("set").size, 100);
    assert_eq!(served.ask(Some(&bob()), set(node, size)).err(), Some(EACCES));
    let group = caller(5003, 6001, &[]);
    assert_eq!(served.ask(Some(&group), set(node, size)).err(), Some(EACCES));
}

fn new_nodes_in_a_set_group_id_directory_have_its_group(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let dir = served.make_directory("dir", 0o2777);
    let group = SetAttributes { gid: Some(7777), ..mode(0o2777) };
    assert!(served.ask(None, set(dir, group)).is_ok());
    let file = served.node(Some(&alice()), a_file(dir, "file")).expect("made").1;
    assert_eq!((file.uid, file.gid), (5001, 7777));
    let below = served.node(Some(&alice()), make_directory(dir, "below", 0o755)).expect("made").1;
    assert_eq!((below.gid, below.mode), (7777, 0o2755));
}

fn only_root_gets_the_owner_that_it_requests(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
    let asked = SetAttributes { uid: Some(5002), gid: Some(6002), ..mode(0o4755) };
    let made = served.node(Some(&alice()), create(root, "a", Creation::Guarded, asked)).expect("made").1;
    assert_eq!((made.uid, made.gid, made.mode), (5001, 6001, 0o4755));
    let made = served.node(Some(&caller(0, 0, &[])), create(root, "b", Creation::Guarded, asked)).expect("made").1;
    assert_eq!((made.uid, made.gid, made.mode), (5002, 6002, 0o4755));
}

fn invalid_users_are_refused_and_never_become_root(rig: Rig) {
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
    let never = u32::MAX;
    for who in [caller(never, 1, &[]), caller(1, never, &[]), caller(1, 1, &[never]), caller(never, never, &[])] {
        assert_eq!(served.node(Some(&who), a_file(root, "file")), Err(EPERM), "{who:?}");
    }
    assert_eq!(served.lookup(root, "file"), Err(ENOENT));
    // The threads have their own identity again.
    let closed = served.make_directory("closed", 0);
    for k in 0..32 {
        assert!(served.node(None, a_file(closed, &format!("{k}"))).is_ok());
    }
}

fn concurrent_callers_do_not_get_each_others_identity(rig: Rig) {
    const CALLERS: u32 = 50;
    const FILES: u32 = 20;
    let Some(mut served) = ServedTree::as_root(rig) else { return };
    let root = served.root;
    let closed = served.make_directory("closed", 0o700);
    let mut expected = Vec::new();
    for k in 0..CALLERS * FILES {
        let who = caller(10_000 + k % CALLERS, 20_000 + k % CALLERS, &[30_000 + k]);
        let (token, reply) = served.start(Some(&who), a_file(root, &format!("{k}")));
        expected.push((token, reply, Ok((who.uid, who.gid))));
        let (token, reply) = served.start(Some(&who), a_file(closed, &format!("{k}")));
        expected.push((token, reply, Err(EACCES)));
        let (token, reply) = served.start(None, a_file(closed, &format!("server-{k}")));
        expected.push((token, reply, Ok((0, 0))));
    }
    for (token, reply, owner) in expected {
        let result: Result<u64, Errno> = served.rig.wait(token);
        let reply = reply.lock().take();
        let made = result.and_then(|_| node_in(Ok(reply.expect("an answer"))));
        assert_eq!(made.map(|(_, attributes)| (attributes.uid, attributes.gid)), owner);
    }
    let left: &[Completion] = &served.rig.done;
    assert!(left.is_empty());
}

#[test]
fn a_root_that_may_not_act_for_others_opens_no_tree() {
    const SETGID: u32 = 6;
    const SETUID: u32 = 7;
    for capability in [SETGID, SETUID] {
        let opened = std::thread::spawn(move || {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let before = tree::open(directory.path(), true, None).is_ok();
            let tried = before && drop_capability(capability);
            tried.then(|| tree::open(directory.path(), true, None).map(drop))
        });
        match opened.join().expect("no panic") {
            None => note("takes root"),
            Some(result) => assert!(matches!(result, Err(OpenTreeError::NoOtherUsers(_))), "{result:?}"),
        }
    }
}
