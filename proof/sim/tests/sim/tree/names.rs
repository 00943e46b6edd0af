//! Names, links and attributes, according to RFC 1813 and POSIX.

use libc::{EEXIST, EINVAL, EISDIR, EMLINK, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, ESTALE};
use machine::Errno;
use machine::tree::{Creation, DeviceNumber, Kind, Node, SetAttributes, SetTime, Time, TreeCall, TreeReply};
use sim::{OpClass, TreeConfig};

use super::rig::{TreeRig, mode, size, user};

fn rig() -> TreeRig {
    TreeRig::new(1, TreeConfig::new())
}

#[test]
fn a_new_node_is_found_by_name_and_stays_the_same_when_renamed() {
    let mut rig = rig();
    let root = rig.root();
    let dir = rig.make_directory(root, "dir").unwrap();
    let file = rig.create(root, "a").unwrap();
    assert_eq!(rig.lookup(root, "a"), Ok(file));
    assert_eq!(rig.rename((root, "a"), (dir, "b")), Ok((file, None)));
    assert_eq!(rig.lookup(root, "a"), Err(Errno(ENOENT)));
    assert_eq!(rig.lookup(dir, "b"), Ok(file));
    assert_eq!((rig.lookup(dir, "."), rig.lookup(dir, ".."), rig.lookup(root, "..")), (Ok(dir), Ok(root), Ok(root)));
}

#[test]
fn a_node_without_a_name_is_stale_and_its_identifier_is_never_reused() {
    let mut rig = rig();
    let root = rig.root();
    let mut seen: Vec<Node> = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..20 {
        let file = rig.create(root, "a").unwrap();
        assert!(!seen.contains(&file));
        seen.push(file);
        numbers.push(rig.attributes(file).unwrap().number);
        assert_eq!(rig.remove(root, "a"), Ok(file));
        assert_eq!(rig.attributes(file), Err(Errno(ESTALE)));
        rig.sync(&[root]).unwrap();
    }
    numbers.dedup();
    assert_eq!(numbers.len(), 1, "numbers are reused");
}

#[test]
fn links_are_counted_for_files_and_directories() {
    let mut rig = rig();
    let root = rig.root();
    let file = rig.create(root, "a").unwrap();
    assert_eq!(rig.link(file, root, "b").unwrap().links, 2);
    rig.remove(root, "a").unwrap();
    assert_eq!(rig.attributes(file).unwrap().links, 1);
    let dir = rig.make_directory(root, "dir").unwrap();
    rig.make_directory(dir, "below").unwrap();
    assert_eq!((rig.attributes(root).unwrap().links, rig.attributes(dir).unwrap().links), (3, 3));
    rig.rename((dir, "below"), (root, "moved")).unwrap();
    assert_eq!((rig.attributes(root).unwrap().links, rig.attributes(dir).unwrap().links), (4, 2));
    rig.rename((root, "moved"), (root, "dir")).unwrap();
    assert_eq!(rig.attributes(root).unwrap().links, 3);
    assert_eq!(rig.attributes(dir), Err(Errno(ESTALE)));
    assert_eq!(rig.link(root, root, "r"), Err(Errno(libc::EPERM)));
}

#[test]
fn creation_treats_existing_nodes_as_requested() {
    let mut rig = rig();
    let root = rig.root();
    let file = rig.create_as(root, "a", Creation::Guarded, size(10)).unwrap();
    assert_eq!(rig.create_as(root, "a", Creation::Guarded, mode(0)), Err(Errno(EEXIST)));
    assert_eq!(rig.create_as(root, "a", Creation::Unchecked, mode(0o7)), Ok(file));
    let attributes = rig.attributes(file).unwrap();
    assert_eq!((attributes.size, attributes.mode), (10, 0), "taken as it is");
    assert_eq!(rig.create_as(root, "a", Creation::Unchecked, size(3)), Ok(file));
    assert_eq!(rig.attributes(file).unwrap().size, 3);
    rig.make_directory(root, "dir").unwrap();
    assert_eq!(rig.create_as(root, "dir", Creation::Unchecked, mode(0)), Err(Errno(EISDIR)));
}

#[test]
fn a_repeated_exclusive_creation_succeeds_only_with_its_verifier_even_after_a_power_cut() {
    let mut rig = rig();
    let root = rig.root();
    let exclusive = |byte| Creation::Exclusive { verifier: [byte; 8] };
    let file = rig.create_as(root, "a", exclusive(7), mode(0o777)).unwrap();
    assert_eq!(rig.create_as(root, "a", exclusive(7), mode(0)), Ok(file));
    assert_eq!(rig.create_as(root, "a", exclusive(8), mode(0)), Err(Errno(EEXIST)));
    rig.sync(&[file, root]).unwrap();
    rig.power_cut();
    assert_eq!(rig.create_as(root, "a", exclusive(7), mode(0)), Ok(file));
    assert_eq!(rig.create_as(root, "a", exclusive(8), mode(0)), Err(Errno(EEXIST)));
}

#[test]
fn directories_are_removed_only_when_empty() {
    let mut rig = rig();
    let root = rig.root();
    let dir = rig.make_directory(root, "dir").unwrap();
    rig.create(dir, "a").unwrap();
    assert_eq!(rig.remove_directory(root, "dir"), Err(Errno(ENOTEMPTY)));
    assert_eq!(rig.remove(root, "dir"), Err(Errno(EISDIR)));
    assert_eq!(rig.remove_directory(dir, "a"), Err(Errno(ENOTDIR)));
    rig.remove(dir, "a").unwrap();
    assert_eq!(rig.remove_directory(root, "dir"), Ok(()));
    assert_eq!(rig.create(dir, "b"), Err(Errno(ESTALE)));
}

#[test]
fn invalid_renames_are_refused() {
    let mut rig = rig();
    let root = rig.root();
    let dir = rig.make_directory(root, "dir").unwrap();
    let below = rig.make_directory(dir, "below").unwrap();
    let file = rig.create(root, "file").unwrap();
    assert_eq!(rig.rename((root, "dir"), (below, "x")), Err(Errno(EINVAL)));
    assert_eq!(rig.rename((dir, "below"), (root, "dir")), Err(Errno(ENOTEMPTY)));
    assert_eq!(rig.rename((root, "dir"), (root, "file")), Err(Errno(ENOTDIR)));
    assert_eq!(rig.rename((root, "file"), (root, "dir")), Err(Errno(EISDIR)));
    rig.link(file, root, "other").unwrap();
    assert_eq!(rig.rename((root, "file"), (root, "other")), Ok((file, None)));
    assert_eq!(rig.names("/"), ["dir", "file", "other"], "two names of one node stay");
    let second = rig.create(root, "second").unwrap();
    assert_eq!(rig.rename((root, "file"), (root, "second")), Ok((file, Some(second))));
    assert_eq!(rig.lookup(root, "second"), Ok(file));
}

#[test]
fn invalid_names_are_refused() {
    let mut rig = rig();
    let root = rig.root();
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(rig.create(root, name), Err(Errno(EINVAL)), "{name:?}");
    }
    assert_eq!(rig.create(root, &"x".repeat(256)), Err(Errno(ENAMETOOLONG)));
    assert!(rig.create(root, &"x".repeat(255)).is_ok());
}

#[test]
fn listings_continue_after_a_cookie_while_other_entries_change() {
    let mut rig = rig();
    let root = rig.root();
    for i in 0..30 {
        rig.create(root, &format!("f{i}")).unwrap();
    }
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let (entries, last) = rig.list(root, cookie, 4).unwrap();
        assert!(!entries.is_empty() && entries.len() <= 4);
        seen.extend(entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()));
        cookie = entries.last().unwrap().cookie;
        if last {
            break;
        }
        if seen.len() == 8 {
            // An entry that was listed, one that was not, and a new one.
            let names = [seen[5].clone(), "f29".into()];
            for name in &names {
                rig.remove(root, name).unwrap();
            }
            rig.create(root, "new").unwrap();
        }
    }
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), seen.len(), "nothing twice");
    assert!(!seen.contains(&"f29".into()));
    assert!((0..29).all(|i| seen.contains(&format!("f{i}"))));
    assert!(seen.contains(&".".into()) && seen.contains(&"..".into()));
}

#[test]
fn links_and_special_files_have_the_kind_requested() {
    let mut rig = rig();
    let root = rig.root();
    let make = TreeCall::MakeSymbolicLink {
        dir: root,
        name: b"link".to_vec(),
        target: b"../some/where".to_vec(),
        attributes: SetAttributes::default(),
    };
    let TreeReply::Node(link, attributes) = rig.call(make).unwrap() else { panic!("no node") };
    assert_eq!((attributes.kind, attributes.size, attributes.mode), (Kind::SymbolicLink, 13, 0o777));
    let TreeReply::Bytes(target) = rig.call(TreeCall::ReadLink { node: link }).unwrap() else { panic!("no bytes") };
    assert_eq!(target, b"../some/where");
    let device = Kind::BlockDevice(DeviceNumber { major: 8, minor: 1 });
    for (name, kind) in [("fifo", Kind::Fifo), ("socket", Kind::Socket), ("device", device)] {
        let call = |attributes| TreeCall::MakeSpecial { dir: root, name: name.into(), kind, attributes };
        let TreeReply::Node(node, attributes) = rig.call(call(mode(0o600))).unwrap() else { panic!("no node") };
        assert_eq!((attributes.kind, attributes.mode), (kind, 0o600));
        assert_eq!(rig.open(node).err(), Some(Errno(EINVAL)));
    }
}

#[test]
fn attributes_are_set_all_or_none_and_only_without_a_concurrent_change() {
    let mut rig = rig();
    let root = rig.root();
    let file = rig.create(root, "a").unwrap();
    let time = Time { seconds: 5, nanoseconds: 6 };
    let before = rig.attributes(file).unwrap();
    let attributes = SetAttributes {
        mode: Some(0o4711),
        uid: Some(3),
        gid: Some(4),
        size: Some(100),
        accessed: Some(SetTime::To(time)),
        modified: Some(SetTime::Now),
    };
    let after = rig.set(file, attributes).unwrap();
    assert_eq!((after.mode, after.uid, after.gid, after.size), (0o4711, 3, 4, 100));
    assert_eq!((after.accessed, after.modified), (time, after.changed));
    assert!(after.changed > before.changed);
    let late = TreeCall::SetAttributes { node: file, attributes: mode(0), guard: Some(before.changed) };
    assert!(matches!(rig.call(late), Ok(TreeReply::GuardFailed)));
    rig.caller = user(3, 9, &[]);
    let half_allowed = SetAttributes { uid: Some(0), size: Some(1), ..SetAttributes::default() };
    assert_eq!(rig.set(file, half_allowed), Err(Errno(libc::EPERM)));
    assert_eq!(rig.attributes(file), Ok(after));
}

#[test]
fn changes_update_the_times_of_the_directory() {
    let mut rig = rig();
    let root = rig.root();
    let before = rig.attributes(root).unwrap();
    rig.create(root, "a").unwrap();
    let after = rig.attributes(root).unwrap();
    assert!(after.modified > before.modified && after.changed == after.modified);
}

#[test]
fn limits_are_enforced() {
    let config = TreeConfig { nodes_max: 4, links_max: 3, file_bytes_max: 1 << 20, ..TreeConfig::new() };
    let mut rig = TreeRig::new(1, config);
    let root = rig.root();
    let file = rig.create_as(root, "a", Creation::Guarded, size(1 << 20)).unwrap();
    assert_eq!(rig.set(file, size((1 << 20) + 1)), Err(Errno(libc::EFBIG)));
    rig.link(file, root, "b").unwrap();
    rig.link(file, root, "c").unwrap();
    assert_eq!(rig.link(file, root, "d"), Err(Errno(EMLINK)));
    rig.make_directory(root, "dir").unwrap();
    assert_eq!(rig.make_directory(root, "dir2"), Err(Errno(EMLINK)));
    rig.create(root, "e").unwrap();
    assert_eq!(rig.create(root, "f"), Err(Errno::NO_SPACE));
    rig.remove(root, "e").unwrap();
    rig.sync(&[root]).unwrap();
    assert!(rig.create(root, "f").is_ok());
}

#[test]
fn a_read_only_tree_changes_nothing() {
    let mut rig = TreeRig::new(1, TreeConfig { read_only: true, ..TreeConfig::new() });
    let root = rig.root();
    assert_eq!(rig.create(root, "a"), Err(Errno::READ_ONLY));
    assert_eq!(rig.set(root, mode(0)), Err(Errno::READ_ONLY));
    assert_eq!(rig.access(root, 7), 5);
}

#[test]
fn only_the_next_calls_of_a_class_fail_and_they_change_nothing() {
    let mut rig = rig();
    let root = rig.root();
    rig.world.fail_next_in_tree(rig.tree, OpClass::Call, 1, Errno::IO);
    rig.world.fail_next_in_tree(rig.tree, OpClass::Sync, 1, Errno::NO_SPACE);
    assert_eq!(rig.create(root, "a"), Err(Errno::IO));
    assert_eq!(rig.names("/"), [""; 0]);
    assert_eq!(rig.sync(&[root]), Err(Errno::NO_SPACE));
    assert_eq!(rig.sync(&[root]), Ok(()));
    assert!(rig.create(root, "a").is_ok());
    let (counters, _) = rig.world.tree_counters(rig.tree);
    assert_eq!((counters.calls, counters.syncs), (3, 2));
}

#[test]
fn a_test_can_change_the_tree_from_outside() {
    let mut rig = rig();
    let root = rig.root();
    let call = TreeCall::Create { dir: root, name: b"a".to_vec(), how: Creation::Guarded, attributes: mode(0o600) };
    assert!(rig.world.call_tree(rig.tree, user(5, 5, &[]).as_ref(), &call).is_err());
    rig.world.call_tree(rig.tree, None, &call).unwrap();
    let file = rig.lookup(root, "a").unwrap();
    assert_eq!(rig.world.tree_node(rig.tree, "/a"), Some(file));
    assert_eq!(rig.world.tree_attributes(rig.tree, "a"), rig.attributes(file).ok());
    rig.world.write_tree(rig.tree, "/a", policy::unit::ByteOffset(3), b"abc");
    assert_eq!(rig.content("/a").unwrap(), b"\0\0\0abc");
}
