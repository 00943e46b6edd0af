//! Names and attributes in trees of the host.

use crate::tree_rig::*;
use machine::Errno;
use machine::tree::{Creation, Kind, Limits, Space, TreeCall};

on_all_trees!(a_read_only_tree_is_not_changed, space_and_limits_of_the_file_system_are_reported,);

fn space_and_limits_of_the_file_system_are_reported(mut served: ServedTree) {
    let root = served.root;
    let Space { bytes, bytes_free, bytes_available, nodes, nodes_free } = served.space();
    assert!(0 < bytes_available && bytes_available <= bytes_free && bytes_free < bytes, "{bytes_free} of {bytes}");
    assert!(nodes_free <= nodes);
    let Limits { links_max, name_bytes_max, file_bytes_max, case_insensitive, .. } = served.limits(root);
    assert!(links_max >= 127 && name_bytes_max == 255 && file_bytes_max > 1 << 40 && !case_insensitive);
}

fn a_read_only_tree_is_not_changed(mut served: ServedTree) {
    let file = served.file("file");
    let mut served = served.reopen_read_only();
    let root = served.root;
    let calls = [
        create(root, "new", Creation::Unchecked, mode(0o600)),
        create(root, "file", Creation::Unchecked, mode(0o600)),
        make_directory(root, "new", 0o700),
        make_symbolic_link(root, "new", "file"),
        TreeCall::MakeSpecial { dir: root, name: "new".into(), kind: Kind::Fifo, attributes: mode(0o600) },
        remove(root, "file"),
        remove_directory(root, "file"),
        rename(root, "file", root, "new"),
        link(file, root, "new"),
        set(file, mode(0o600)),
    ];
    for call in calls {
        assert_eq!(served.ask(None, call.clone()).err(), Some(Errno::READ_ONLY), "{call:?}");
    }
    assert_eq!(served.lookup(root, "file").expect("found").0, file);
    let wanted = (libc::R_OK | libc::W_OK) as u32;
    assert_eq!(access(served.ask(None, TreeCall::Access { node: file, wanted })), Ok(libc::R_OK as u32));
    let to_write = TreeCall::Open { node: file, writable: true };
    assert_eq!(served.ask(None, to_write).err(), Some(Errno::READ_ONLY));
    assert!(!served.opened(file, false).direct.facts.writable);
}
