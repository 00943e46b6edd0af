//! Validity of node identifiers.

use super::*;
use machine::tree::NODE_BYTES_MAX;

/// Are these promises of trees that act for callers other than the server?
pub const NEED_OTHERS: bool = false;

/// Hands the names of these promises to a macro.
#[macro_export]
macro_rules! promises_of_handles {
    ($on:ident) => {
        $on! {
            handles:
            nodes_stay_the_same_when_the_tree_is_opened_anew,
            unknown_identifiers_are_stale
        }
    };
}

pub fn nodes_stay_the_same_when_the_tree_is_opened_anew(mut served: impl Tree) {
    let root = served.root();
    let file = served.file("file");
    let outer = served.make_directory("outer", 0o755);
    let inner = served.node(None, make_directory(outer, "inner", 0o755)).expect("made").0;
    let mut served = served.reopen();
    assert_eq!(served.root(), root);
    // The deepest first: its parents are not known yet.
    assert_eq!(served.lookup(inner, "..").expect("found").0, outer);
    assert_eq!(served.lookup(root, "file").expect("found").0, file);
    assert!(served.attributes(file).is_ok());
}

pub fn unknown_identifiers_are_stale(mut served: impl Tree) {
    let root = served.root();
    let file = served.file("file");
    let mut other_generation = file.as_bytes().to_vec();
    *other_generation.last_mut().expect("not empty") ^= 1;
    let mut other_kind = file.as_bytes().to_vec();
    other_kind[0] ^= 0xff;
    let shorter = &file.as_bytes()[..file.as_bytes().len() - 1];
    for bytes in
        [&[][..], &[0], &[1], &[0xff; NODE_BYTES_MAX], &[0; NODE_BYTES_MAX], &other_generation, &other_kind, shorter]
    {
        let node = Node::new(bytes).expect("not too long");
        assert_eq!(served.attributes(node), Err(ESTALE), "{node:?}");
        assert_eq!(served.lookup(node, "name"), Err(ESTALE), "{node:?}");
        assert_eq!(served.ask(None, TreeCall::Open { node, writable: true }).err(), Some(ESTALE), "{node:?}");
        assert_eq!(served.ask(None, rename(root, "file", node, "name")).err(), Some(ESTALE), "{node:?}");
    }
}
