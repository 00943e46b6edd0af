//! Validity of node identifiers.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::tree_rig::*;
use machine::Errno;
use machine::linux::Engine;
use machine::linux::tree::{self, Handles, OpenTreeError};
use machine::tree::TreeCall;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use testkit::failing_disk::{FailingDisk, Faults};
use testkit::skip;

on_all_trees!(
    directories_outside_the_tree_are_stale,
    a_directory_moved_out_of_the_tree_gives_no_access_outside,
    file_systems_mounted_in_the_tree_are_not_part_of_it,
    calls_on_a_closed_tree_fail,
    the_node_of_a_removed_file_is_stale_and_not_given_to_the_next,
);

fn the_node_of_a_removed_file_is_stale_and_not_given_to_the_next(mut served: ServedTree) {
    let root = served.root;
    let first = served.file("file");
    let number = served.attributes(first).expect("attributes").number;
    assert!(served.remove(root, "file").is_ok());
    let second = served.file("file");
    // The file system usually reuses the number at once, but never the identifier.
    let again = served.attributes(second).expect("attributes").number;
    assert_ne!(first, second, "both have numbers {number:?} and {again:?}");
    assert_eq!(served.attributes(first), Err(ESTALE));
    // Even while a process on the host still has it open.
    let held = std::fs::File::open(served.path("file")).expect("opened");
    assert!(served.remove(root, "file").is_ok());
    assert_eq!(served.attributes(second), Err(ESTALE));
    drop(held);
}

fn directories_outside_the_tree_are_stale(mut served: ServedTree) {
    served.make_directory("inside", 0o755);
    let outside = served.make_directory("outside", 0o755);
    let below = served.node(None, make_directory(outside, "below", 0o755)).expect("made").0;
    let whole = served.root;
    let open = open_tree(&served.path("inside"), false, None).expect("opened");
    let mut served = ServedTree { open, ..served };
    let inside = served.node(None, TreeCall::Root).expect("a root").0;
    for node in [outside, below, whole] {
        assert_eq!(served.attributes(node), Err(ESTALE));
        assert_eq!(served.lookup(node, "."), Err(ESTALE));
        assert_eq!(served.list(None, node, 0, 10, true).err(), Some(ESTALE));
        assert_eq!(served.node(None, make_directory(node, "new", 0o755)), Err(ESTALE));
        assert_eq!(served.ask(None, rename(node, "below", inside, "stolen")).err(), Some(ESTALE));
    }
    assert_eq!(served.lookup(inside, "..").expect("found").0, inside);
}

fn a_directory_moved_out_of_the_tree_gives_no_access_outside(mut served: ServedTree) {
    let inside = served.make_directory("inside", 0o755);
    let moved = served.node(None, make_directory(inside, "moved", 0o755)).expect("made").0;
    let open = open_tree(&served.path("inside"), false, None).expect("opened");
    let whole = std::mem::replace(&mut served.open, open);
    let inside = served.node(None, TreeCall::Root).expect("a root").0;
    assert_eq!(served.lookup(inside, "moved").expect("found").0, moved);
    std::fs::rename(served.path("inside/moved"), served.path("moved")).expect("moved");
    assert_eq!(served.lookup(moved, ".."), Err(ESTALE));
    // By place it is not found elsewhere. By handle it is, while it is remembered as verified.
    match served.list(None, moved, 0, 10, true) {
        Ok((entries, _)) => {
            assert!(!is_searched());
            let above = entries.iter().find(|entry| entry.name == b"..").expect("it exists");
            assert_eq!(above.node, None);
        }
        Err(errno) => assert!(is_searched() && errno == ESTALE, "{errno}"),
    }
    // When it is not remembered, it is not found at all.
    served.open = open_tree(&served.path("inside"), false, None).expect("opened");
    assert_eq!(served.attributes(moved), Err(ESTALE));
    drop(whole);
}

/// A file system in memory, mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: PathBuf) -> Option<Self> {
        mount("none", &path, "tmpfs", MountFlags::empty(), None).ok().map(|()| Mounted(path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::empty()).expect("unmounted");
    }
}

fn file_systems_mounted_in_the_tree_are_not_part_of_it(mut served: ServedTree) {
    let root = served.root;
    let below = served.make_directory("below", 0o755);
    let Some(mounted) = Mounted::at(served.path("below")) else {
        skip!("nothing can be mounted");
    };
    let other_file_system = Some(Errno(libc::EXDEV));
    assert_eq!(served.lookup(root, "below").err(), other_file_system);
    assert_eq!(served.ask(None, remove_directory(root, "below")).err(), other_file_system);
    assert_eq!(served.ask(None, rename(root, "below", root, "other")).err(), other_file_system);
    let (entries, _) = served.list(None, root, 0, 100, true).expect("listed");
    let entry = entries.iter().find(|entry| entry.name == b"below").expect("its name exists");
    assert_eq!(entry.node, None);
    drop(mounted);
    assert_eq!(served.lookup(root, "below").expect("found").0, below);
}

fn calls_on_a_closed_tree_fail(mut served: ServedTree) {
    let root = served.root;
    let closed = served.open.tree;
    let mut served = {
        assert!(served.attributes(root).is_ok());
        served.reopen()
    };
    let still_open = std::mem::replace(&mut served.open.tree, closed);
    assert_eq!(served.attributes(root), Err(Errno(libc::EBADF)));
    served.open.tree = still_open;
    assert!(served.attributes(root).is_ok());
}

#[test]
fn what_cannot_be_a_tree_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path();
    std::fs::write(path.join("file"), "").expect("written");
    let error = |path: &Path| tree::open(path, false, None, Handles::Known).map(drop).expect_err("not possible");
    assert_eq!(error(&path.join("nothing")), OpenTreeError::Missing(path.join("nothing")));
    assert_eq!(error(&path.join("file")), OpenTreeError::NotDirectory(path.join("file")));
    assert_eq!(error(Path::new("/proc/self")), OpenTreeError::NoHandles("/proc/self".into()));
}

/// The kernel gives handles for every file system in user space.
#[test]
fn handles_of_a_file_system_in_user_space_are_used_only_if_they_are_said_to_be_persistent() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path();
    let refused = Some(OpenTreeError::NoHandles(path.to_owned()));
    {
        let _disk = match FailingDisk::with_volatile_handles(path) {
            Ok(disk) => disk,
            Err(error) => skip!("nothing can be mounted by FUSE: {error}"),
        };
        assert_eq!(open_tree(path, false, None).err(), refused);
    }
    let none = Faults { fsync_permille: 0, write_permille: 0, delay_permille: 0, delay_us_max: 0 };
    let mut disk = FailingDisk::new(path, none, 1).expect("mounted");
    assert_eq!(open_tree(path, false, None).err(), refused);
    crate::tree_rig::searched(|_| {
        assert_eq!(open_tree(path, false, None).err(), refused, "without permission to use them")
    });
    crate::rig::with(Engine::Threads, |rig| {
        let served = |rig| {
            let open = tree::open(path, false, None, Handles::Trusted).expect("opened");
            ServedTree::of(rig, open, path.to_owned(), Rc::new(tempfile::tempdir().expect("a temporary directory")))
        };
        let mut first = served(rig);
        let file = first.file("file");
        let found = first.attributes(file).expect("there");
        assert!(first.opened(file, false).watch.is_none(), "it may be changed below, of which nothing is reported");
        let ServedTree { rig, open, .. } = first;
        drop(open);
        disk.mount_again().expect("mounted again");
        assert_eq!(served(rig).attributes(file).map(|again| again.number), Ok(found.number));
    });
}
