//! Names and attributes.

use super::*;
use machine::tree::{DeviceNumber, Kind, SetTime, Time};

/// Are these promises of trees that act for callers other than the server?
pub const NEED_OTHERS: bool = false;

/// Hands the names of these promises to a macro.
#[macro_export]
macro_rules! promises_of_names {
    ($on:ident) => {
        $on! {
            names:
            the_root_is_a_directory_and_its_own_parent,
            new_nodes_have_their_name_and_the_requested_mode,
            every_kind_of_node_is_made_and_reported,
            invalid_names_are_refused_by_every_call,
            missing_names_and_parents_that_are_not_directories_are_errors,
            symbolic_links_are_never_followed,
            a_renamed_node_stays_the_same_and_the_replaced_one_is_reported,
            renaming_between_two_names_of_one_node_changes_nothing,
            invalid_renames_are_refused,
            a_directory_gets_another_parent_only_from_who_may_write_to_it,
            a_node_with_two_names_outlives_the_first,
            a_directory_is_removed_only_when_empty_and_only_as_a_directory,
            an_unchecked_creation_takes_an_existing_file,
            a_repeated_exclusive_creation_takes_only_its_own_file,
            attributes_are_set_and_returned,
            a_node_that_cannot_get_its_attributes_is_not_made,
            a_guard_refuses_callers_that_missed_a_change,
            setting_a_size_is_for_regular_files
        }
    };
}

fn renamed(reply: Result<TreeReply, Errno>) -> Result<(machine::tree::Node, Option<machine::tree::Node>), Errno> {
    match reply? {
        TreeReply::Renamed(moved, replaced) => Ok((moved, replaced)),
        _ => panic!("not renamed"),
    }
}

pub fn the_root_is_a_directory_and_its_own_parent(mut served: impl Tree) {
    let root = served.root();
    let attributes = served.attributes(root).expect("attributes");
    assert_eq!((attributes.kind, attributes.mode), (Kind::Directory, 0o777));
    assert_eq!(served.lookup(root, "..").expect("found").0, root);
    assert_eq!(served.lookup(root, ".").expect("found").0, root);
    let below = served.make_directory("below", 0o755);
    assert_eq!(served.lookup(below, "..").expect("found").0, root);
    assert_eq!(served.lookup(below, ".").expect("found").0, below);
}

pub fn new_nodes_have_their_name_and_the_requested_mode(mut served: impl Tree) {
    let root = served.root();
    // The process has a mask that would clear bits of these.
    for (name, permissions) in [("a", 0o666), ("b", 0o777), ("c", 0), ("d", 0o4755)] {
        let made = served.node(None, create(root, name, Creation::Guarded, mode(permissions))).expect("created");
        assert_eq!((made.1.kind, made.1.mode, made.1.size, made.1.links), (Kind::File, permissions, 0, 1));
        assert_eq!(served.lookup(root, name), Ok(made));
        assert!(served.exists(name));
    }
    let without = create(root, "e", Creation::Guarded, SetAttributes::default());
    assert_eq!(served.node(None, without).expect("created").1.mode, 0);
    for (name, permissions) in [("f", 0o777), ("g", 0o2775)] {
        let made = served.node(None, make_directory(root, name, permissions)).expect("made");
        assert_eq!((made.1.kind, made.1.mode), (Kind::Directory, permissions));
    }
    let size = SetAttributes { size: Some(12345), ..mode(0o400) };
    let made = served.node(None, create(root, "h", Creation::Unchecked, size)).expect("created");
    assert_eq!((made.1.size, made.1.mode), (12345, 0o400));
}

pub fn every_kind_of_node_is_made_and_reported(mut served: impl Tree) {
    if !served.acts_for_others() {
        return;
    }
    let root = served.root();
    let device = DeviceNumber { major: 300, minor: 70_000 };
    for kind in [Kind::Fifo, Kind::Socket, Kind::BlockDevice(device), Kind::CharacterDevice(device)] {
        let name = format!("{kind:?}").into_bytes();
        let call = TreeCall::MakeSpecial { dir: root, name, kind, attributes: mode(0o622) };
        let made = served.node(None, call).expect("made");
        assert_eq!((made.1.kind, made.1.mode), (kind, 0o622));
        assert_eq!(served.attributes(made.0), Ok(made.1));
        assert_eq!(served.ask(None, TreeCall::Open { node: made.0, writable: true }).err(), Some(Errno::INVALID));
    }
    for kind in [Kind::File, Kind::Directory, Kind::SymbolicLink] {
        let call = TreeCall::MakeSpecial { dir: root, name: "no".into(), kind, attributes: mode(0o622) };
        assert_eq!(served.node(None, call), Err(Errno::INVALID));
    }
    let target = "x".repeat(3000);
    let made = served.node(None, make_symbolic_link(root, "link", &target)).expect("made");
    assert_eq!((made.1.kind, made.1.size, made.1.mode), (Kind::SymbolicLink, 3000, 0o777));
    let Ok(TreeReply::Bytes(reported)) = served.ask(None, TreeCall::ReadLink { node: made.0 }) else {
        panic!("no target");
    };
    assert_eq!(reported, target.as_bytes());
    assert_eq!(served.ask(None, TreeCall::ReadLink { node: root }).err(), Some(Errno::INVALID));
    let long = make_symbolic_link(root, "long", &"x".repeat(4096));
    assert_eq!(served.node(None, long), Err(Errno(libc::ENAMETOOLONG)));
}

pub fn invalid_names_are_refused_by_every_call(mut served: impl Tree) {
    let root = served.root();
    let file = served.file("file");
    let long = "n".repeat(256);
    let expected =
        [("", Errno::INVALID), (".", Errno::INVALID), ("..", Errno::INVALID), ("a/b", Errno::INVALID)].into_iter();
    for (name, errno) in expected.chain([("a\0b", Errno::INVALID), (long.as_str(), Errno(libc::ENAMETOOLONG))]) {
        let special = TreeCall::MakeSpecial { dir: root, name: name.into(), kind: Kind::Fifo, attributes: mode(0o600) };
        let calls = [
            create(root, name, Creation::Unchecked, mode(0o600)),
            make_directory(root, name, 0o700),
            make_symbolic_link(root, name, "file"),
            special,
            remove(root, name),
            remove_directory(root, name),
            rename(root, name, root, "other"),
            rename(root, "file", root, name),
            link(file, root, name),
        ];
        for call in calls {
            assert_eq!(served.ask(None, call.clone()).err(), Some(errno), "{call:?}");
        }
        if name != "." && name != ".." {
            assert_eq!(served.lookup(root, name), Err(errno));
        }
    }
    let longest = "n".repeat(255);
    served.file(&longest);
    assert!(served.lookup(root, &longest).is_ok());
}

pub fn missing_names_and_parents_that_are_not_directories_are_errors(mut served: impl Tree) {
    let root = served.root();
    let file = served.file("file");
    assert_eq!(served.lookup(root, "nothing"), Err(ENOENT));
    assert_eq!(served.lookup(file, "name"), Err(ENOTDIR));
    assert_eq!(served.lookup(file, ".."), Err(ENOTDIR));
    assert_eq!(served.remove(root, "nothing"), Err(ENOENT));
    assert_eq!(served.ask(None, remove_directory(root, "nothing")).err(), Some(ENOENT));
    assert_eq!(served.ask(None, rename(root, "nothing", root, "name")).err(), Some(ENOENT));
    assert_eq!(served.node(None, create(file, "name", Creation::Guarded, mode(0o600))), Err(ENOTDIR));
    assert_eq!(served.list(None, file, 0, 10, false).err(), Some(ENOTDIR));
    assert_eq!(served.node(None, make_directory(root, "file", 0o700)), Err(EEXIST));
    assert_eq!(served.node(None, make_symbolic_link(root, "file", "x")), Err(EEXIST));
    assert_eq!(served.ask(None, link(file, root, "file")).err(), Some(EEXIST));
}

pub fn symbolic_links_are_never_followed(mut served: impl Tree) {
    let root = served.root();
    let directory = served.make_directory("directory", 0o755);
    let target = served.file("target");
    let to_directory = served.node(None, make_symbolic_link(root, "to-directory", "directory")).expect("made").0;
    let to_target = served.node(None, make_symbolic_link(root, "to-target", "target")).expect("made").0;
    assert_eq!(served.lookup(to_directory, "name"), Err(ENOTDIR));
    assert_eq!(served.lookup(root, "to-target").expect("found").0, to_target);
    // The existing node is the link, not its target.
    for how in [Creation::Unchecked, Creation::Guarded, Creation::Exclusive { verifier: [1; 8] }] {
        assert_eq!(served.node(None, create(root, "to-target", how, mode(0o600))), Err(EEXIST));
    }
    let before = served.attributes(target).expect("attributes");
    let times = SetTime::To(Time { seconds: 77, nanoseconds: 0 });
    let attributes = SetAttributes { modified: Some(times), accessed: Some(times), ..mode(0o600) };
    let after = attributes_in(served.ask(None, set(to_target, attributes))).expect("set");
    assert_eq!((after.kind, after.modified.seconds), (Kind::SymbolicLink, 77));
    // A second name for the link links to the link.
    assert_eq!(attributes_in(served.ask(None, link(to_target, root, "again"))).expect("linked").links, 2);
    assert_eq!(served.attributes(target), Ok(before));
    assert_eq!(served.ask(None, TreeCall::Open { node: to_target, writable: true }).err(), Some(Errno::INVALID));
    let removed = served.remove(root, "to-directory").expect("removed");
    assert_eq!(removed.0, to_directory);
    assert!(served.attributes(directory).is_ok());
}

pub fn a_renamed_node_stays_the_same_and_the_replaced_one_is_reported(mut served: impl Tree) {
    let root = served.root();
    let directory = served.make_directory("directory", 0o755);
    let (one, other) = (served.file("one"), served.file("other"));
    assert_eq!(renamed(served.ask(None, rename(root, "one", directory, "new"))), Ok((one, None)));
    assert_eq!(served.lookup(directory, "new").expect("found").0, one);
    assert_eq!(served.lookup(root, "one"), Err(ENOENT));
    assert_eq!(renamed(served.ask(None, rename(directory, "new", root, "other"))), Ok((one, Some(other))));
    assert_eq!(served.lookup(root, "other").expect("found").0, one);
    assert_eq!(served.attributes(other), Err(ESTALE));
    // A directory, onto an empty one that was listed in part.
    let empty = served.make_directory("empty", 0o755);
    assert!(served.list(None, empty, 0, 1, false).is_ok());
    assert_eq!(renamed(served.ask(None, rename(root, "directory", root, "empty"))), Ok((directory, Some(empty))));
    assert_eq!(served.lookup(directory, "..").expect("found").0, root);
    assert_eq!(served.lookup(empty, "x"), Err(ESTALE));
}

pub fn renaming_between_two_names_of_one_node_changes_nothing(mut served: impl Tree) {
    let root = served.root();
    let node = served.file("one");
    assert!(served.ask(None, link(node, root, "two")).is_ok());
    assert_eq!(renamed(served.ask(None, rename(root, "one", root, "two"))), Ok((node, None)));
    assert_eq!(served.lookup(root, "one").expect("found").1.links, 2);
}

pub fn invalid_renames_are_refused(mut served: impl Tree) {
    let root = served.root();
    let (outer, inner) = (served.make_directory("outer", 0o755), served.make_directory("inner", 0o755));
    served.file("file");
    assert!(served.ask(None, rename(root, "inner", outer, "inner")).is_ok());
    let mut refused = |from, to_dir, to| renamed(served.ask(None, rename(root, from, to_dir, to))).err();
    assert_eq!(refused("outer", inner, "x"), Some(Errno::INVALID));
    assert_eq!(refused("outer", root, "file"), Some(ENOTDIR));
    assert_eq!(refused("file", root, "outer"), Some(EISDIR));
    assert!(served.ask(None, make_directory(root, "third", 0o755)).is_ok());
    let not_empty = renamed(served.ask(None, rename(root, "third", root, "outer"))).err();
    assert_eq!(not_empty, Some(Errno(libc::ENOTEMPTY)));
}

pub fn a_directory_gets_another_parent_only_from_who_may_write_to_it(mut served: impl Tree) {
    let (from, to) = (served.make_directory("from", 0o777), served.make_directory("to", 0o777));
    let stranger = caller(5001, 6001, &[]);
    for (name, permissions) in [("closed", 0o755), ("open", 0o777)] {
        served.node(None, make_directory(from, name, permissions)).expect("made");
    }
    served.node(None, create(from, "file", Creation::Guarded, mode(0o644))).expect("made");
    assert_eq!(served.ask(Some(&stranger), rename(from, "closed", to, "closed")).err(), Some(EACCES));
    for (name, to) in [("closed", from), ("open", to), ("file", to)] {
        let moved = renamed(served.ask(Some(&stranger), rename(from, name, to, &format!("new-{name}"))));
        assert!(moved.is_ok(), "{name}: {moved:?}");
    }
}

pub fn a_node_with_two_names_outlives_the_first(mut served: impl Tree) {
    let root = served.root();
    let node = served.file("one");
    assert_eq!(attributes_in(served.ask(None, link(node, root, "two"))).expect("linked").links, 2);
    let removed = served.remove(root, "one").expect("removed");
    assert_eq!((removed.0, removed.1.links), (node, 1));
    assert_eq!(served.lookup(root, "two").expect("found").0, node);
    let removed = served.remove(root, "two").expect("removed");
    assert_eq!((removed.0, removed.1.links), (node, 0));
    assert_eq!(served.attributes(node), Err(ESTALE));
    assert_eq!(served.ask(None, link(node, root, "three")).err(), Some(ESTALE));
    assert_eq!(served.ask(None, TreeCall::Open { node, writable: true }).err(), Some(ESTALE));
}

pub fn a_directory_is_removed_only_when_empty_and_only_as_a_directory(mut served: impl Tree) {
    let root = served.root();
    let directory = served.make_directory("directory", 0o755);
    served.file("file");
    let inside = create(directory, "inside", Creation::Guarded, mode(0o600));
    assert!(served.node(None, inside.clone()).is_ok());
    assert_eq!(served.remove(root, "directory"), Err(EISDIR));
    assert_eq!(served.ask(None, remove_directory(root, "file")).err(), Some(ENOTDIR));
    assert_eq!(served.ask(None, remove_directory(root, "directory")).err(), Some(Errno(libc::ENOTEMPTY)));
    assert!(served.remove(directory, "inside").is_ok());
    // Listed in part: what is held for the rest must not keep it alive.
    assert!(served.list(None, directory, 0, 1, false).is_ok());
    assert_eq!(done_in(served.ask(None, remove_directory(root, "directory"))), Ok(()));
    assert_eq!(served.attributes(directory), Err(ESTALE));
    assert_eq!(served.lookup(directory, "inside"), Err(ESTALE));
    assert_eq!(served.node(None, inside), Err(ESTALE));
    assert_eq!(served.list(None, directory, 0, 1, false).err(), Some(ESTALE));
}

pub fn an_unchecked_creation_takes_an_existing_file(mut served: impl Tree) {
    let root = served.root();
    let node = served.file("file");
    served.put("file", &[1; 1000]);
    let taken = served.node(None, create(root, "file", Creation::Unchecked, mode(0o777))).expect("taken");
    assert_eq!((taken.0, taken.1.size, taken.1.mode), (node, 1000, 0o644));
    let cut = SetAttributes { size: Some(0), ..mode(0o777) };
    let taken = served.node(None, create(root, "file", Creation::Unchecked, cut)).expect("taken");
    assert_eq!((taken.0, taken.1.size, taken.1.mode), (node, 0, 0o644));
    assert_eq!(served.node(None, create(root, "file", Creation::Guarded, mode(0o777))), Err(EEXIST));
    served.make_directory("directory", 0o755);
    assert_eq!(served.node(None, create(root, "directory", Creation::Unchecked, mode(0o777))), Err(EISDIR));
    assert_eq!(served.node(None, create(root, "directory", Creation::Guarded, mode(0o777))), Err(EEXIST));
}

pub fn a_repeated_exclusive_creation_takes_only_its_own_file(mut served: impl Tree) {
    let root = served.root();
    let exclusive = |name: &str, verifier| create(root, name, Creation::Exclusive { verifier }, mode(0o777));
    let verifier = [0xfe, 2, 3, 4, 0xff, 6, 7, 8];
    let made = served.node(None, exclusive("file", verifier)).expect("created");
    // No attributes are set: that happens when the verifier has served its purpose.
    assert_eq!((made.1.mode, made.1.size), (0, 0));
    assert_eq!(served.node(None, exclusive("file", verifier)), Ok(made));
    let mut served = served.reopen();
    assert_eq!(served.node(None, exclusive("file", verifier)), Ok(made));
    for place in 0..8 {
        let mut other = verifier;
        other[place] ^= 1;
        assert_eq!(served.node(None, exclusive("file", other)), Err(EEXIST));
    }
    served.file("ordinary");
    assert_eq!(served.node(None, exclusive("ordinary", verifier)), Err(EEXIST));
    // Setting the times, as a client does next, ends it.
    let now = SetAttributes { accessed: Some(SetTime::Now), modified: Some(SetTime::Now), ..mode(0o644) };
    assert!(served.ask(None, set(made.0, now)).is_ok());
    assert_eq!(served.node(None, exclusive("file", verifier)), Err(EEXIST));
}

pub fn attributes_are_set_and_returned(mut served: impl Tree) {
    if !served.acts_for_others() {
        return;
    }
    let node = served.file("file");
    let at = |seconds, nanoseconds| Time { seconds, nanoseconds };
    let all = SetAttributes {
        mode: Some(0o6751),
        uid: Some(12345),
        gid: Some(70_000),
        size: Some(5_000_000_000),
        accessed: Some(SetTime::To(at(1_000_000_000, 1))),
        modified: Some(SetTime::To(at(2_000_000_000, 999_999_999))),
        drops_set_id: false,
    };
    let reported = attributes_in(served.ask(None, set(node, all))).expect("set");
    assert_eq!((reported.mode, reported.uid, reported.gid, reported.size), (0o6751, 12345, 70_000, 5_000_000_000));
    assert_eq!((reported.accessed, reported.modified), (at(1_000_000_000, 1), at(2_000_000_000, 999_999_999)));
    assert_eq!(served.attributes(node), Ok(reported));
    // Others are unchanged.
    let now = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };
    let reported = attributes_in(served.ask(None, set(node, now))).expect("set");
    assert_eq!(
        (reported.mode, reported.uid, reported.size, reported.accessed),
        (0o6751, 12345, 5_000_000_000, at(1_000_000_000, 1))
    );
    assert_eq!(reported.modified.seconds, reported.changed.seconds);
    let wrong = [
        SetAttributes { uid: Some(u32::MAX), ..SetAttributes::default() },
        SetAttributes { modified: Some(SetTime::To(at(0, 1_000_000_000))), ..SetAttributes::default() },
    ];
    for wrong in wrong {
        assert_eq!(served.ask(None, set(node, wrong)).err(), Some(Errno::INVALID));
    }
    let huge = SetAttributes { size: Some(u64::MAX), ..SetAttributes::default() };
    assert_eq!(served.ask(None, set(node, huge)).err(), Some(Errno(libc::EFBIG)));
}

pub fn a_node_that_cannot_get_its_attributes_is_not_made(mut served: impl Tree) {
    let dir = served.make_directory("dir", 0o755);
    let wrong = SetTime::To(Time { seconds: 0, nanoseconds: 1_000_000_000 });
    let attributes = SetAttributes { modified: Some(wrong), ..mode(0o600) };
    let huge = SetAttributes { size: Some(u64::MAX >> 1), ..mode(0o600) };
    let calls = [
        create(dir, "a", Creation::Guarded, attributes),
        create(dir, "b", Creation::Unchecked, huge),
        TreeCall::MakeDirectory { dir, name: "c".into(), attributes },
        TreeCall::MakeSpecial { dir, name: "d".into(), kind: Kind::Fifo, attributes },
        TreeCall::MakeSymbolicLink { dir, name: "e".into(), target: "x".into(), attributes },
        TreeCall::MakeDirectory { dir, name: "f".into(), attributes: SetAttributes { size: Some(0), ..mode(0o700) } },
    ];
    for call in calls {
        assert!(served.ask(None, call.clone()).is_err(), "{call:?}");
    }
    let (entries, _) = served.list(None, dir, 0, 10, false).expect("listed");
    assert_eq!(entries.len(), 2, "{entries:?}");
}

pub fn a_guard_refuses_callers_that_missed_a_change(mut served: impl Tree) {
    let node = served.file("file");
    let seen = served.attributes(node).expect("attributes").changed;
    let wrong = Time { seconds: seen.seconds - 1, ..seen };
    let guarded = |guard| TreeCall::SetAttributes { node, attributes: mode(0o600), guard: Some(guard) };
    assert!(matches!(served.ask(None, guarded(wrong)), Ok(TreeReply::GuardFailed)));
    assert_eq!(served.attributes(node).expect("attributes").mode, 0o644);
    assert_eq!(attributes_in(served.ask(None, guarded(seen))).expect("set").mode, 0o600);
}

pub fn setting_a_size_is_for_regular_files(mut served: impl Tree) {
    let root = served.root();
    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(served.ask(None, set(root, size)).err(), Some(EISDIR));
    let fifo = TreeCall::MakeSpecial { dir: root, name: "fifo".into(), kind: Kind::Fifo, attributes: mode(0o600) };
    let fifo = served.node(None, fifo).expect("made").0;
    assert_eq!(served.ask(None, set(fifo, size)).err(), Some(Errno::INVALID));
}
