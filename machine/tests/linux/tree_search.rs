//! Nodes found by place: after restarts, and when they are moved or removed on the host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::tree_at_once::Asked;
use crate::tree_file_systems::{Kind, Mounted};
use crate::tree_rig::*;
use machine::Errno;
use machine::tree::{Creation, Node, TreeCall};
use testkit::server::await_that;
use testkit::skip::note;

/// Runs each test with nodes found by place.
macro_rules! searched {
    ($($name:ident),+ $(,)?) => {
        mod searched {
            $(#[test] fn $name() { crate::tree_rig::searched(crate::tree_rig::on_new(super::$name)); })+
        }
    };
}

searched!(
    nodes_are_found_after_a_restart_with_the_places_and_with_less,
    nodes_moved_on_the_host_are_found,
    nodes_moved_while_no_server_ran_are_found,
    two_files_that_exchange_their_names_are_not_mistaken_for_each_other,
    an_identifier_whose_number_was_reused_is_stale,
    a_file_that_lost_its_first_name_on_the_host_is_found_by_the_second,
    a_node_that_the_server_moves_is_found_at_any_time,
    a_node_moved_on_the_host_is_synced,
    one_search_finds_all_moved_nodes_of_a_large_tree,
    a_node_moved_out_of_the_tree_is_stale_until_it_is_back,
    the_file_of_places_has_a_bound_whoever_moves_nodes,
    nodes_are_found_while_the_disk_for_their_places_is_full,
    who_misses_a_node_does_not_wait_for_the_search_of_another,
);

/// Files in nested directories, with their paths.
fn grove(served: &mut ServedTree) -> Vec<(PathBuf, Node)> {
    let mut nodes = Vec::new();
    for outer in ["a", "b"] {
        let dir = served.make_directory(outer, 0o755);
        nodes.push((PathBuf::from(outer), dir));
        for inner in ["c", "d"] {
            let path = Path::new(outer).join(inner);
            let inner = served.node(None, make_directory(dir, inner, 0o755)).expect("made").0;
            nodes.push((path.clone(), inner));
            for file in ["e", "f"] {
                let made = served.node(None, create(inner, file, Creation::Guarded, mode(0o644))).expect("made").0;
                nodes.push((path.join(file), made));
            }
        }
    }
    nodes
}

/// Retries until the absence of the node can be known.
fn number(served: &mut ServedTree, node: Node) -> Result<u64, Errno> {
    loop {
        match served.attributes(node) {
            Err(Errno(libc::EBUSY)) => {}
            attributes => return attributes.map(|attributes| attributes.number.0),
        }
    }
}

fn assert_all_found(served: &mut ServedTree, nodes: &[(PathBuf, Node)]) {
    // The deepest first.
    for (path, node) in nodes.iter().rev() {
        let expected = fs::symlink_metadata(served.directory.join(path)).expect("it exists").ino();
        assert_eq!(number(served, *node), Ok(expected), "{}", path.display());
    }
}

fn places_in(state: &Path) -> PathBuf {
    fs::read_dir(state).expect("listed").next().expect("the places").expect("read").path()
}

fn nodes_are_found_after_a_restart_with_the_places_and_with_less(mut served: ServedTree) {
    let nodes = grove(&mut served);
    served = served.reopen();
    assert_all_found(&mut served, &nodes);
    let size = fs::metadata(places_in(served.state.path())).expect("state").len();
    for keep in [size - 1, size / 2, 9, 3, 0] {
        served = served.reopen_after(|state| {
            let file = fs::OpenOptions::new().write(true).open(places_in(state)).expect("opened");
            file.set_len(keep).expect("torn");
        });
        assert_all_found(&mut served, &nodes);
        // Places that were searched for are recorded again.
        assert!(fs::metadata(places_in(served.state.path())).expect("state").len() >= size / 2, "{keep}");
    }
    served = served.reopen_after(|state| fs::remove_file(places_in(state)).expect("removed"));
    assert_all_found(&mut served, &nodes);
}

fn nodes_moved_on_the_host_are_found(mut served: ServedTree) {
    let nodes = grove(&mut served);
    for (from, to) in [("a/c/e", "a/c/other"), ("a/c/other", "b/d/e2"), ("a/c", "b/d/c"), ("b", "elsewhere")] {
        fs::rename(served.path(from), served.path(to)).expect("moved");
    }
    for (path, now) in [
        ("a/c/e", "elsewhere/d/e2"),
        ("a/c/f", "elsewhere/d/c/f"),
        ("a/c", "elsewhere/d/c"),
        ("b/d/f", "elsewhere/d/f"),
        ("b", "elsewhere"),
    ] {
        let node = nodes.iter().find(|(at, _)| at == Path::new(path)).expect("made").1;
        assert_eq!(number(&mut served, node), Ok(served.path(now).metadata().expect("it exists").ino()), "{path}");
        assert_eq!(served.lookup(node, "..").is_ok(), served.path(now).is_dir());
    }
}

fn nodes_moved_while_no_server_ran_are_found(mut served: ServedTree) {
    let nodes = grove(&mut served);
    let directory = served.directory.clone();
    let mut served = served.reopen_after(|_| {
        fs::rename(directory.join("a/c"), directory.join("b/moved")).expect("moved");
        fs::remove_dir_all(directory.join("b/d")).expect("removed");
    });
    for (path, node) in nodes {
        let now = match path.strip_prefix("a/c") {
            Ok(below) => directory.join("b/moved").join(below),
            Err(_) => directory.join(&path),
        };
        let expected = fs::metadata(&now).map(|found| found.ino()).map_err(|_| ESTALE);
        assert_eq!(number(&mut served, node), expected, "{}", path.display());
    }
}

fn two_files_that_exchange_their_names_are_not_mistaken_for_each_other(mut served: ServedTree) {
    let (one, other) = (served.file("one"), served.file("other"));
    let numbers = [one, other].map(|node| served.attributes(node).expect("attributes").number.0);
    for _ in 0..10 {
        for (from, to) in [("one", "between"), ("other", "one"), ("between", "other")] {
            fs::rename(served.path(from), served.path(to)).expect("moved");
        }
        assert_eq!([one, other].map(|node| number(&mut served, node)), numbers.map(Ok));
    }
}

fn an_identifier_whose_number_was_reused_is_stale(mut served: ServedTree) {
    // The file system usually gives the number to the next file; another test may have made that.
    for k in 0..200 {
        let old = served.file("old");
        // A file that was made just now stays open, and so keeps its number.
        served = served.reopen();
        let wanted = number(&mut served, old).expect("it exists");
        fs::remove_file(served.path("old")).expect("removed");
        let path = served.path(&format!("new-{k}"));
        fs::write(&path, "not yours").expect("written");
        if path.metadata().expect("it exists").ino() != wanted {
            continue;
        }
        assert_eq!(number(&mut served, old), Err(ESTALE));
        let new = served.lookup(served.root, &format!("new-{k}")).expect("found").0;
        assert_ne!(new, old);
        served = served.reopen();
        assert_eq!((number(&mut served, old), number(&mut served, new)), (Err(ESTALE), Ok(wanted)));
        assert_eq!(served.ask(None, TreeCall::Open { node: old, writable: true }).err(), Some(ESTALE));
        return;
    }
    note("the file system does not reuse numbers");
}

fn a_file_that_lost_its_first_name_on_the_host_is_found_by_the_second(mut served: ServedTree) {
    let file = served.file("first");
    let expected = number(&mut served, file);
    fs::hard_link(served.path("first"), served.path("second")).expect("linked");
    fs::remove_file(served.path("first")).expect("removed");
    assert_eq!(number(&mut served, file), expected);
    fs::remove_file(served.path("second")).expect("removed");
    assert_eq!(number(&mut served, file), Err(ESTALE));
    assert_eq!(served.lookup(served.root, "second"), Err(ENOENT));
}

fn a_node_that_the_server_moves_is_found_at_any_time(mut served: ServedTree) {
    const ROUNDS: usize = 400;
    let (one, other) = (served.make_directory("one", 0o755), served.make_directory("other", 0o755));
    let dir = served.node(None, make_directory(one, "dir", 0o755)).expect("made").0;
    let file = served.node(None, create(dir, "file", Creation::Guarded, mode(0o644))).expect("made").0;
    let (mut asked, mut at) = (Vec::new(), (one, other));
    for _ in 0..ROUNDS {
        let moved = served.start(None, rename(at.0, "dir", at.1, "dir"));
        for node in [dir, file, dir, file] {
            asked.push(served.start(None, TreeCall::Attributes { node }).0);
        }
        assert_eq!(served.rig.wait(moved.0), Ok(0));
        at = (at.1, at.0);
    }
    for token in asked {
        assert_eq!(served.rig.wait(token), Ok(0));
    }
}

fn a_node_moved_on_the_host_is_synced(mut served: ServedTree) {
    let nodes = grove(&mut served);
    fs::rename(served.path("a"), served.path("moved")).expect("moved");
    let nodes = nodes.into_iter().map(|(_, node)| node).collect();
    assert_eq!(done_in(served.ask(None, TreeCall::Sync { nodes })), Ok(()));
    fs::remove_dir_all(served.path("moved")).expect("removed");
    let again = vec![served.root];
    assert_eq!(done_in(served.ask(None, TreeCall::Sync { nodes: again })), Ok(()));
}

fn a_node_moved_out_of_the_tree_is_stale_until_it_is_back(mut served: ServedTree) {
    let outside = tempfile::tempdir_in(served.directory.parent().expect("a parent")).expect("a temporary directory");
    let file = served.file("file");
    fs::rename(served.path("file"), outside.path().join("file")).expect("moved");
    assert_eq!(number(&mut served, file), Err(ESTALE));
    // Back in the tree it has its identifier again.
    fs::rename(outside.path().join("file"), served.path("back")).expect("moved");
    assert!(number(&mut served, file).is_ok());
}

fn the_file_of_places_has_a_bound_whoever_moves_nodes(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let (root, who) = (served.root, caller(5001, 6001, &[]));
    let name = |number: usize| format!("{number:0>250}");
    assert!(served.node(Some(&who), create(root, &name(0), Creation::Guarded, mode(0o600))).is_ok());
    // Places of more than 2 MB, of which one is current.
    for number in 0..8000 {
        assert!(served.ask(Some(&who), rename(root, &name(number), root, &name(number + 1))).is_ok());
    }
    let size = fs::metadata(places_in(served.state.path())).expect("state").len();
    assert!(size < 3 << 19, "{size} bytes");
}

fn nodes_are_found_while_the_disk_for_their_places_is_full(served: ServedTree) {
    let Some(mounted) = Mounted::new(Kind::Tmpfs) else { return };
    let mut served = served.reopen_with(tempfile::tempdir_in(mounted.path()).expect("a temporary directory"));
    let full = mounted.path().join("full");
    fs::write(&full, vec![0; 128 << 20]).expect_err("it is larger than the file system");
    let name = |number: usize| format!("{number:0>250}");
    // More than what is left of the page that the file of places has.
    let nodes: Vec<Node> = (0..40).map(|number| served.file(&name(number))).collect();
    for (number, &node) in nodes.iter().enumerate() {
        assert!(served.attributes(node).is_ok(), "{number}");
        let (from, to) = (name(number), name(number + 100));
        assert!(served.ask(None, rename(served.root, &from, served.root, &to)).is_ok(), "{number}");
        assert!(served.attributes(node).is_ok(), "{number}");
    }
}

fn who_misses_a_node_does_not_wait_for_the_search_of_another(mut served: ServedTree) {
    let [first, second] = ["first", "second"].map(|name| {
        let node = served.file(name);
        fs::remove_file(served.path(name)).expect("removed");
        node
    });
    let Some(asked) = Asked::new(&served.directory) else { return note("no FAN_OPEN_PERM here") };
    asked.is_held.store(true, Ordering::SeqCst);
    let (searching, _) = served.start(None, TreeCall::Attributes { node: first });
    await_that("the tree is searched", || asked.is_asked.load(Ordering::SeqCst));
    assert_eq!(served.attributes(second).err(), Some(Errno(libc::EBUSY)));
    assert!(served.rig.done.iter().all(|done| done.token != searching), "the search has ended");
    drop(asked);
    assert_eq!(served.rig.wait(searching), Err(ESTALE));
}

fn one_search_finds_all_moved_nodes_of_a_large_tree(mut served: ServedTree) {
    const DIRECTORIES: usize = 40;
    const FILES: usize = 100;
    let (from, to) = (served.make_directory("from", 0o777), served.path("to"));
    fs::create_dir(&to).expect("made");
    for dir in 0..DIRECTORIES {
        let path = served.path(&format!("from/{dir}"));
        fs::create_dir(&path).expect("made");
        (0..FILES).for_each(|k| fs::write(path.join(k.to_string()), "").expect("written"));
    }
    let mut nodes = Vec::new();
    for dir in 0..DIRECTORIES {
        let node = served.lookup(from, &dir.to_string()).expect("found").0;
        let (entries, _) = served.list(None, node, 0, FILES + 2, true).expect("listed");
        nodes.extend(entries.into_iter().filter(|entry| !entry.name.starts_with(b".")).filter_map(|entry| entry.node));
        fs::rename(served.path(&format!("from/{dir}")), to.join(dir.to_string())).expect("moved");
    }
    assert_eq!(nodes.len(), DIRECTORIES * FILES);
    // The first one is searched for. A second search would be refused if the first was long.
    for (node, attributes) in nodes {
        assert_eq!(served.attributes(node).map(|now| now.number), Ok(attributes.number));
    }
    // After a long search the absence of a removed node is not known at once, but soon.
    let gone = served.lookup(served.root, "to").and_then(|(to, _)| served.lookup(to, "0")).expect("found").0;
    let gone = served.lookup(gone, "7").expect("found").0;
    fs::remove_file(to.join("0/7")).expect("removed");
    assert_eq!(number(&mut served, gone), Err(ESTALE));
}
