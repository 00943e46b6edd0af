//! Permissions of callers.

use libc::{EACCES, EPERM};
use machine::Errno;
use machine::tree::{Creation, Kind, Node, SetAttributes, SetTime, Time, TreeCall};
use sim::TreeConfig;

use super::rig::{TreeRig, mode, size, user};

/// A rig with a directory `dir` of user 1 and group 10, of this mode.
fn rig(dir_mode: u32) -> (TreeRig, Node) {
    let mut rig = TreeRig::new(1, TreeConfig::new());
    let root = rig.root();
    let dir = rig.make_directory(root, "dir").unwrap();
    let owned = SetAttributes { uid: Some(1), gid: Some(10), ..mode(dir_mode) };
    rig.set(dir, owned).unwrap();
    (rig, dir)
}

#[test]
fn owner_groups_and_others_have_their_own_bits() {
    let (mut rig, dir) = rig(0o777);
    rig.caller = user(1, 10, &[]);
    let file = rig.create_as(dir, "a", Creation::Guarded, mode(0o421)).unwrap();
    let mut seen_by = |uid, gid, groups: &[u32]| {
        rig.caller = user(uid, gid, groups);
        rig.access(file, 7)
    };
    assert_eq!(seen_by(1, 99, &[10]), 4, "the owner, though the group may do more");
    assert_eq!(seen_by(2, 10, &[]), 2);
    assert_eq!(seen_by(2, 99, &[98, 10]), 2);
    assert_eq!(seen_by(2, 99, &[98]), 1);
    assert_eq!(seen_by(0, 0, &[]), 7);
    rig.caller = None;
    rig.set(file, mode(0o600)).unwrap();
    rig.caller = user(0, 0, &[]);
    assert_eq!(rig.access(file, 7), 6, "root does not execute a file without any such bit");
}

#[test]
fn a_directory_is_searched_listed_and_changed_only_with_permission() {
    for (dir_mode, searched, listed, changed) in [
        (0o007, true, true, true),
        (0o001, true, false, false),
        (0o004, false, true, false),
        (0o002, false, false, false),
    ] {
        let (mut rig, dir) = rig(dir_mode);
        let file = rig.create(dir, "a").unwrap();
        rig.caller = user(5, 5, &[]);
        let denied = |allowed: bool| if allowed { None } else { Some(Errno(EACCES)) };
        assert_eq!(rig.lookup(dir, "a").err(), denied(searched), "{dir_mode:o}");
        let list = rig.list(dir, 0, 10);
        assert_eq!(list.as_ref().err().copied(), denied(listed), "{dir_mode:o}");
        if let Ok((entries, _)) = list {
            assert!(entries.iter().all(|entry| entry.node.is_some() == searched), "nodes take permission to search");
        }
        assert_eq!(rig.create(dir, "b").err(), denied(changed), "{dir_mode:o}");
        assert_eq!(rig.link(file, dir, "c").err(), denied(changed), "{dir_mode:o}");
        assert_eq!(rig.remove(dir, "a").err(), denied(changed), "{dir_mode:o}");
    }
}

#[test]
fn in_a_sticky_directory_only_owners_remove_and_rename() {
    let (mut rig, dir) = rig(0o1777);
    rig.caller = user(2, 20, &[]);
    for name in ["a", "b", "c"] {
        rig.create(dir, name).unwrap();
    }
    rig.caller = user(3, 20, &[]);
    let own = rig.create(dir, "own").unwrap();
    assert_eq!(rig.remove(dir, "a"), Err(Errno(EPERM)));
    assert_eq!(rig.rename((dir, "a"), (dir, "x")), Err(Errno(EPERM)));
    assert_eq!(rig.rename((dir, "own"), (dir, "a")), Err(Errno(EPERM)));
    assert_eq!(rig.remove(dir, "own"), Ok(own));
    for (owner, name) in [(2, "a"), (1, "b"), (0, "c")] {
        rig.caller = user(owner, 20, &[]);
        assert!(rig.remove(dir, name).is_ok(), "{owner}");
    }
}

#[test]
fn new_nodes_belong_to_the_caller_and_to_the_group_of_a_set_group_id_directory() {
    let (mut rig, dir) = rig(0o2777);
    rig.caller = user(7, 70, &[]);
    let file = rig.create(dir, "a").unwrap();
    let below = rig.make_directory(dir, "below").unwrap();
    let (file, below) = (rig.attributes(file).unwrap(), rig.attributes(below).unwrap());
    assert_eq!((file.uid, file.gid), (7, 10));
    assert_eq!((below.uid, below.gid, below.mode), (7, 10, 0o2755));
    let root = rig.root();
    assert_eq!(rig.create(root, "a"), Err(Errno(EACCES)));
}

#[test]
fn attributes_are_set_by_owners_and_owners_by_root() {
    let (mut rig, dir) = rig(0o777);
    rig.caller = user(2, 20, &[21]);
    let file = rig.create_as(dir, "a", Creation::Guarded, mode(0o4777)).unwrap();
    let owner = |uid, gid| SetAttributes { uid, gid, ..SetAttributes::default() };
    let time = Some(SetTime::To(Time { seconds: 1, nanoseconds: 0 }));
    let old = SetAttributes { modified: time, ..SetAttributes::default() };
    let now = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };

    assert_eq!(rig.set(file, owner(Some(3), None)), Err(Errno(EPERM)));
    assert_eq!(rig.set(file, owner(None, Some(22))), Err(Errno(EPERM)));
    let given = rig.set(file, owner(Some(2), Some(21))).unwrap();
    assert_eq!((given.gid, given.mode), (21, 0o777), "the set-ID bits are cleared");
    rig.set(file, old).unwrap();

    rig.caller = user(4, 40, &[]);
    assert_eq!(rig.set(file, mode(0)), Err(Errno(EPERM)));
    assert_eq!(rig.set(file, old), Err(Errno(EPERM)));
    assert!(rig.set(file, now).is_ok(), "a caller that may write may set the times to now");
    rig.caller = user(2, 20, &[]);
    rig.set(file, mode(0o444)).unwrap();
    assert!(rig.set(file, size(5)).is_ok(), "an owner without permission to write");
    rig.caller = user(4, 40, &[]);
    assert_eq!(rig.set(file, now), Err(Errno(EACCES)));
    assert_eq!(rig.set(file, size(0)), Err(Errno(EACCES)));
    rig.caller = user(0, 0, &[]);
    assert!(rig.set(file, owner(Some(3), Some(4))).is_ok());
}

#[test]
fn only_members_of_its_group_make_a_file_set_group_id() {
    let (mut rig, dir) = rig(0o2777);
    rig.caller = user(7, 70, &[]);
    let file = rig.create_as(dir, "a", Creation::Guarded, mode(0o2755)).unwrap();
    assert_eq!(rig.attributes(file).unwrap().mode, 0o755);
    rig.caller = user(7, 70, &[10]);
    assert_eq!(rig.set(file, mode(0o2755)).unwrap().mode, 0o2755);
}

#[test]
fn devices_are_made_by_root() {
    let (mut rig, dir) = rig(0o777);
    let make = |name: &str, kind| TreeCall::MakeSpecial { dir, name: name.into(), kind, attributes: mode(0o666) };
    rig.caller = user(7, 70, &[]);
    assert!(rig.call(make("fifo", Kind::Fifo)).is_ok());
    let device = Kind::CharacterDevice(Default::default());
    assert_eq!(rig.call(make("device", device)).err(), Some(Errno(EPERM)));
    rig.caller = None;
    assert!(rig.call(make("device", device)).is_ok());
}
