//! Names, links and attributes, according to RFC 1813 and POSIX.

use libc::{EEXIST, EMLINK, ESTALE};
use machine::Errno;
use machine::tree::{Creation, Node, SetAttributes, SetTime, TreeCall};
use sim::{OpClass, TreeConfig};

use super::rig::{TreeRig, mode, size, user};

fn rig() -> TreeRig {
    TreeRig::new(1, TreeConfig::new())
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
fn attributes_are_set_all_or_none() {
    let mut rig = rig();
    let root = rig.root();
    let file = rig.create(root, "a").unwrap();
    let created = rig.attributes(file).unwrap();
    let owned = SetAttributes { uid: Some(3), modified: Some(SetTime::Now), ..SetAttributes::default() };
    let before = rig.set(file, owned).unwrap();
    assert!(before.changed > created.changed && before.modified == before.changed);
    rig.caller = user(3, 9, &[]);
    let half_allowed = SetAttributes { uid: Some(0), size: Some(1), ..SetAttributes::default() };
    assert_eq!(rig.set(file, half_allowed), Err(Errno(libc::EPERM)));
    assert_eq!(rig.attributes(file), Ok(before));
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
