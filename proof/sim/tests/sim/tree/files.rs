//! Open files of a tree: reads, writes, and how they end.

use libc::{EFBIG, EISDIR};
use machine::tree::Node;
use machine::{Errno, FoundRuns};
use policy::unit::{ByteOffset, ByteRange};
use sim::{DiskConfig, DiskFaults, OpClass, TreeConfig};

use super::rig::{TreeRig, size};
use crate::rig::stamped;

fn config() -> TreeConfig {
    TreeConfig { disk: DiskConfig { align: 4096, ..DiskConfig::new(1 << 20) }, ..TreeConfig::new() }
}

fn rig(seed: u64) -> (TreeRig, Node) {
    let mut rig = TreeRig::new(seed, config());
    let root = rig.root();
    let file = rig.create(root, "a").unwrap();
    (rig, file)
}

#[test]
fn a_write_beyond_the_end_extends_the_file_with_zeroes_between() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    assert_eq!((open.direct.facts.size, open.direct.facts.align, open.direct.facts.direct), (0, 4096, true));
    assert_eq!(rig.write(open.direct.file, 8192, stamped(8, 1)), Ok(4096));
    assert_eq!(rig.attributes(node).unwrap().size, 12288);
    let expected = [vec![0; 8192], stamped(8, 1)].concat();
    assert_eq!(rig.content("/a").unwrap(), expected);
    let (outcome, bytes) = rig.read(open.direct.file, 4096, 16384);
    assert_eq!((outcome, &bytes[..8192]), (Ok(8192), &expected[4096..]));
    assert_eq!(rig.read(open.direct.file, 12288, 4096).0, Ok(0));
}

#[test]
fn direct_transfers_are_aligned_and_buffered_ones_arbitrary() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    let (direct, buffered) = (open.direct.file, open.buffered.as_ref().unwrap().file);
    assert_eq!(rig.write(direct, 100, stamped(8, 1)), Err(Errno::INVALID));
    assert_eq!(rig.write(direct, 0, vec![1; 100]), Err(Errno::INVALID));
    assert_eq!(rig.read(direct, 0, 100).0, Err(Errno::INVALID));
    assert_eq!(rig.write(buffered, 5, b"abc".to_vec()), Ok(3));
    let (outcome, bytes) = rig.read(direct, 0, 4096);
    assert_eq!((outcome, &bytes[..8]), (Ok(8), b"\0\0\0\0\0abc".as_slice()), "a read ends at the end");
}

#[test]
fn a_truncated_file_reads_as_zeroes_when_it_grows_again() {
    for cut in [0, 1, 511, 512, 700, 4096, 5000] {
        let (mut rig, node) = rig(cut);
        let open = rig.open(node).unwrap();
        rig.write(open.direct.file, 0, vec![7; 8192]).unwrap();
        assert_eq!(rig.set(node, size(cut)).unwrap().size, cut);
        assert_eq!(rig.content("/a").unwrap(), vec![7; cut as usize]);
        rig.set(node, size(8192)).unwrap();
        let expected = [vec![7; cut as usize], vec![0; 8192 - cut as usize]].concat();
        assert_eq!(rig.read(open.direct.file, 0, 8192), (Ok(8192), expected), "cut at {cut}");
    }
}

#[test]
fn zeroing_discarding_and_finding_data_stay_within_the_file() {
    let (mut rig, node) = rig(1);
    let file = rig.open(node).unwrap().direct;
    rig.write(file.file, 0, stamped(24, 1)).unwrap();
    assert_eq!(rig.perform(|side| side.discard(file.file, 0, 4096)).0, Ok(0));
    assert_eq!(rig.perform(|side| side.zero(file.file, 8192, 65536, false)).0, Ok(0));
    let attributes = rig.attributes(node).unwrap();
    assert_eq!((attributes.size, attributes.used), (12288, 8192));
    assert_eq!(rig.content("/a").unwrap(), [vec![0; 4096], stamped(8, 1), vec![0; 4096]].concat());
    let runs = FoundRuns::default();
    let beyond = ByteRange::new(0, 65536);
    assert_eq!(rig.perform(|side| side.find_data(file.file, beyond, 9, &runs)).0, Ok(65536));
    assert_eq!(*runs.lock(), [ByteRange::new(4096, 8192)]);
    let beyond = ByteRange::new(16384, 4096);
    assert_eq!(rig.perform(|side| side.find_data(file.file, beyond, 9, &runs)).0, Ok(20480));
    assert_eq!(*runs.lock(), []);
}

#[test]
fn sizes_are_limited_and_so_is_the_space_of_all_files() {
    let (mut rig, node) = rig(1);
    let root = rig.root();
    let other = rig.create(root, "b").unwrap();
    let (file, other_file) = (rig.open(node).unwrap().direct, rig.open(other).unwrap().direct);
    rig.world.limit_tree_space(rig.tree, Some(16384));
    assert_eq!(rig.write(file.file, 0, stamped(16, 1)), Ok(8192));
    assert_eq!(rig.write(other_file.file, 0, stamped(24, 1)), Ok(8192), "what fits");
    assert_eq!(rig.write(other_file.file, 8192, stamped(8, 1)), Err(Errno::NO_SPACE));
    assert_eq!(rig.attributes(other).unwrap().size, 8192);
    assert_eq!(rig.write(file.file, 0, stamped(16, 2)), Ok(8192), "overwriting takes no space");
    rig.set(node, size(4096)).unwrap();
    assert_eq!(rig.write(other_file.file, 8192, stamped(8, 1)), Ok(4096));
    assert_eq!(rig.write(file.file, 1 << 43, stamped(8, 1)), Err(Errno(EFBIG)));
}

#[test]
fn a_removed_file_is_usable_until_it_is_closed_and_then_frees_its_space() {
    let (mut rig, node) = rig(1);
    let root = rig.root();
    rig.world.limit_tree_space(rig.tree, Some(8192));
    let open = rig.open(node).unwrap();
    rig.write(open.direct.file, 0, stamped(16, 1)).unwrap();
    rig.remove(root, "a").unwrap();
    rig.sync(&[root]).unwrap();
    assert_eq!(rig.read(open.direct.file, 0, 8192), (Ok(8192), stamped(16, 1)));
    assert_eq!(rig.write(open.direct.file, 0, stamped(8, 2)), Ok(4096));
    assert_eq!(rig.open(node).err(), Some(Errno(libc::ESTALE)));
    let other = rig.create(root, "b").unwrap();
    let other = rig.open(other).unwrap().direct;
    assert_eq!(rig.write(other.file, 0, stamped(8, 1)), Err(Errno::NO_SPACE));
    drop(open);
    rig.sync(&[root]).unwrap();
    assert_eq!(rig.write(other.file, 0, stamped(8, 1)), Ok(4096));
}

#[test]
#[should_panic(expected = "a closed file is used")]
fn a_closed_file_must_not_be_used() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    let file = open.direct.file;
    assert_eq!(rig.read(file, 0, 4096).0, Ok(0));
    drop(open);
    let _ = rig.read(file, 0, 4096);
}

#[test]
#[should_panic(expected = "a closed file is used")]
fn a_file_must_not_be_closed_before_what_was_asked_of_it_has_ended() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    rig.side.read(open.direct.file, 0, 4096);
    rig.side.enter(machine::Park::No);
    drop(open);
    rig.run();
}

#[test]
#[should_panic(expected = "a closed file is used")]
fn no_file_of_a_host_is_open_after_its_death() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    rig.kill();
    let _ = rig.read(open.direct.file, 0, 4096);
}

#[test]
fn a_tree_stays_open_when_its_host_dies() {
    let (mut rig, node) = rig(1);
    rig.kill();
    assert!(rig.open(node).is_ok(), "the tree itself stays open");
    let root = rig.root();
    assert_eq!(rig.open(root).err(), Some(Errno(EISDIR)));
}

#[test]
fn files_of_a_read_only_tree_are_read() {
    let (mut rig, _) = rig(1);
    let read_only = rig.world.add_tree(rig.host, TreeConfig { read_only: true, ..config() });
    rig.tree = read_only;
    rig.open = rig.world.open_tree(read_only);
    let root = rig.root();
    let mut open = |writable| rig.call(machine::tree::TreeCall::Open { node: root, writable }).err();
    assert_eq!(open(false), Some(Errno(EISDIR)));
    assert_eq!(open(true), Some(Errno::READ_ONLY));
    assert_eq!(rig.create(root, "a"), Err(Errno::READ_ONLY));
}

#[test]
fn a_write_updates_the_times_of_its_file() {
    let (mut rig, node) = rig(1);
    let open = rig.open(node).unwrap();
    let before = rig.attributes(node).unwrap();
    rig.write(open.direct.file, 0, stamped(8, 1)).unwrap();
    let after = rig.attributes(node).unwrap();
    assert!(after.modified > before.modified && after.changed == after.modified);
    rig.read(open.direct.file, 0, 4096).0.unwrap();
    assert_eq!(rig.attributes(node).unwrap(), after);
}

#[test]
fn only_the_next_operations_of_a_class_fail() {
    let (mut rig, node) = rig(1);
    let file = rig.open(node).unwrap().direct.clone();
    for class in [OpClass::Read, OpClass::Write, OpClass::Flush] {
        rig.world.fail_next_in_tree(rig.tree, class, 1, Errno::TIMED_OUT);
    }
    for expected in [Err(Errno::TIMED_OUT), Ok(0)] {
        assert_eq!(rig.write(file.file, 0, stamped(8, 1)), expected.map(|_| 4096));
        assert_eq!(rig.read(file.file, 0, 4096).0, expected.map(|_| 4096));
        assert_eq!(rig.flush(file.file), expected);
    }
}

#[test]
fn a_failed_write_may_have_changed_content_but_never_the_size() {
    let mut torn = 0;
    for seed in 0..50 {
        let (mut rig, node) = rig(seed);
        let file = rig.open(node).unwrap().direct;
        rig.write(file.file, 0, stamped(8, 1)).unwrap();
        rig.world.fail_next_in_tree(rig.tree, OpClass::Write, 1, Errno::IO);
        assert_eq!(rig.write(file.file, 0, stamped(16, 2)), Err(Errno::IO));
        let content = rig.content("/a").unwrap();
        assert_eq!(content.len(), 4096, "seed {seed}");
        torn += usize::from(content != stamped(8, 1));
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn short_writes_write_the_length_that_they_report() {
    let (mut rig, node) = rig(1);
    let file = rig.open(node).unwrap().direct;
    let faults = DiskFaults { short_write_permille: 1000, ..DiskFaults::default() };
    rig.world.set_tree_faults(rig.tree, faults);
    let len = rig.write(file.file, 0, stamped(64, 1)).unwrap();
    assert!(len < 64 * 512 && len % 4096 == 0);
    assert_eq!(rig.content("/a").unwrap(), stamped(len as usize / 512, 1));
}

#[test]
fn changes_by_others_are_reported_late_or_when_they_are_asked_for() {
    let (mut rig, node) = rig(1);
    let root = rig.root();
    let other = rig.create(root, "other").unwrap();
    let watch = rig.open(node).unwrap().watch.expect("the host reports them");
    let watch_other = rig.open(other).unwrap().watch.expect("the host reports them");
    let change = |rig: &TreeRig| rig.world.write_tree(rig.tree, "/a", ByteOffset(0), b"abc");
    change(&rig);
    change(&rig);
    assert_eq!(watch.changes(), 0);
    rig.run();
    assert_eq!(watch.changes(), 1, "both in one");
    for round in 2..300 {
        change(&rig);
        (watch.take)();
        assert_eq!(watch.changes(), round);
    }
    assert!((1..20).contains(&watch_other.changes()), "now and then all are said to have changed");
}
