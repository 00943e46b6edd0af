//! Many concurrent calls.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::tree_rig::*;
use machine::tree::{Around, BeforeAndAfter, Creation, Node, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Op, Token};

on_all_trees!(
    concurrent_changes_in_several_directories_are_all_done,
    concurrently_made_nodes_belong_to_their_callers,
    attributes_around_a_change_are_those_right_before_and_after_it,
    what_others_change_meanwhile_is_not_taken_for_our_own,
    what_others_changed_before_does_not_count,
    changes_in_a_removed_directory_are_stale,
    dropping_a_machine_cancels_waiting_calls,
    a_tree_whose_host_does_not_answer_keeps_no_other_waiting,
);

/// More than a thread does before it serves others.
const MANY: usize = 100;

fn names() -> Vec<String> {
    (0..MANY).map(|k| format!("name-{k}")).collect()
}

/// As the server does at start: each call in flight may need some.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = Some(maximum.map_or(1 << 16, |maximum| maximum.min(1 << 16)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("up to the hard limit");
}

/// Starts all of these before it waits for the first.
fn concurrently(served: &mut ServedTree, calls: impl IntoIterator<Item = TreeCall>) -> Vec<NodeResult> {
    allow_descriptors();
    let asked: Vec<(Token, Reply)> = calls.into_iter().map(|call| served.start(None, call)).collect();
    let answer = |(token, reply): (Token, Reply)| {
        served.rig.wait(token)?;
        node_in(Ok(reply.lock().take().expect("an answer")))
    };
    asked.into_iter().map(answer).collect()
}

fn concurrent_changes_in_several_directories_are_all_done(mut served: ServedTree) {
    let dirs: Vec<Node> = ["a", "b", "c"].into_iter().map(|name| served.make_directory(name, 0o777)).collect();
    let names = names();
    let each = || names.iter().flat_map(|name| dirs.iter().map(move |dir| (*dir, name.as_str())));
    let made = concurrently(&mut served, each().map(|(dir, name)| create(dir, name, Creation::Guarded, mode(0o600))));
    let made: Vec<Node> = made.into_iter().map(|made| made.expect("created").0).collect();
    assert_eq!(made.iter().collect::<HashSet<_>>().len(), 3 * MANY, "each is a file of its own");
    for ((dir, name), node) in each().zip(&made) {
        assert_eq!(served.lookup(dir, name).expect("found").0, *node, "{name}");
    }
    let again = concurrently(&mut served, each().map(|(dir, name)| create(dir, name, Creation::Guarded, mode(0o600))));
    assert!(again.into_iter().all(|made| made == Err(EEXIST)));
    let removed = concurrently(&mut served, each().map(|(dir, name)| remove(dir, name)));
    let removed: Vec<Node> = removed.into_iter().map(|removed| removed.expect("removed").0).collect();
    assert_eq!(removed, made);
    for name in ["a", "b", "c"] {
        assert_eq!(std::fs::read_dir(served.path(name)).expect("listed").count(), 0, "{name}");
    }
}

fn concurrently_made_nodes_belong_to_their_callers(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let root = served.root;
    allow_descriptors();
    let callers = [caller(1000, 100, &[]), caller(2000, 200, &[100, 300]), caller(0, 0, &[])];
    let asked: Vec<_> = names()
        .iter()
        .zip(callers.iter().cycle())
        .map(|(name, caller)| (served.start(Some(caller), create(root, name, Creation::Guarded, mode(0o600))), caller))
        .collect();
    for ((token, reply), caller) in asked {
        served.rig.wait(token).expect("created");
        let reply = reply.lock().take().expect("an answer");
        let made = node_in(Ok(reply)).expect("a node").1;
        assert_eq!((made.uid, made.gid), (caller.uid, caller.gid));
    }
}

/// Makes a directory of each name at once. Returns the links of where it is made before, if reported, and after.
fn links_around(served: &mut ServedTree, within: Node, names: Vec<String>) -> Vec<(Option<u32>, u32)> {
    let start = |name: String| {
        let attributes: Arc<Mutex<Vec<BeforeAndAfter>>> = Arc::default();
        let around = Some(Around { nodes: vec![within], attributes: Arc::clone(&attributes) });
        let call = make_directory(within, &name, 0o755);
        let op = TreeOp { tree: served.open.tree, caller: None, call, reply: Reply::default(), around };
        (served.rig.start(Op::Tree(Box::new(op))), attributes)
    };
    let asked: Vec<_> = names.into_iter().map(start).collect();
    let ended = asked.into_iter().map(|(token, attributes)| {
        served.rig.wait(token).expect("made");
        let (before, after) = attributes.lock()[0];
        (before.map(|before| before.links), after.expect("attributes").links)
    });
    ended.collect()
}

fn attributes_around_a_change_are_those_right_before_and_after_it(mut served: ServedTree) {
    let first = served.attributes(served.root).expect("attributes").links;
    let root = served.root;
    let mut reported = links_around(&mut served, root, names());
    reported.sort_unstable();
    // Some file systems do not count directories.
    let step = u32::from(reported[0].1 > first);
    let is_held = machine::linux::tree::finds_by_handle(&served.open);
    let counted = (0..MANY as u32).map(|more| (is_held.then_some(first + more * step), first + (more + 1) * step));
    assert_eq!(reported, counted.collect::<Vec<_>>());
}

fn what_others_change_meanwhile_is_not_taken_for_our_own(mut served: ServedTree) {
    let (is_over, place) = (Arc::new(AtomicBool::new(false)), served.directory.clone());
    let other = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            let made = (0..).take_while(|_| !is_over.load(Ordering::Relaxed));
            made.for_each(|number| std::fs::create_dir(place.join(format!("of another {number}"))).expect("made"));
        })
    };
    let root = served.root;
    let reported = links_around(&mut served, root, names());
    is_over.store(true, Ordering::Relaxed);
    other.join().expect("no panic");
    for (before, after) in reported {
        let Some(before) = before else { continue };
        assert!(after <= before + 1, "{before} links before our own change, {after} after it");
    }
}

/// In more directories than are watched.
fn what_others_changed_before_does_not_count(mut served: ServedTree) {
    let dirs: Vec<(String, Node)> =
        (0..40).map(|k| format!("dir-{k}")).map(|name| (name.clone(), served.make_directory(&name, 0o777))).collect();
    let is_held = machine::linux::tree::finds_by_handle(&served.open);
    for round in 0..2 {
        for (name, dir) in &dirs {
            for k in 0..2 {
                std::fs::create_dir(served.path(name).join(format!("of another {round} {k}"))).expect("made");
                let before = served.attributes(*dir).expect("attributes").links;
                let reported = links_around(&mut served, *dir, vec![format!("ours {round} {k}")]);
                let after = served.attributes(*dir).expect("attributes").links;
                assert_eq!(reported, [(is_held.then_some(before), after)], "{name}, {round}, {k}");
            }
        }
    }
}

fn changes_in_a_removed_directory_are_stale(mut served: ServedTree) {
    let dir = served.make_directory("dir", 0o777);
    let made = concurrently(&mut served, names().iter().map(|name| create(dir, name, Creation::Guarded, mode(0o600))));
    assert!(made.iter().all(Result::is_ok));
    std::fs::remove_dir_all(served.path("dir")).expect("removed");
    std::fs::create_dir(served.path("dir")).expect("another one of that name");
    let late = concurrently(&mut served, names().iter().map(|name| create(dir, name, Creation::Guarded, mode(0o600))));
    for (name, mut made) in names().iter().zip(late) {
        // After a search that took long there is none for some time.
        while is_searched() && made == Err(Errno(libc::EBUSY)) {
            made = served.node(None, create(dir, name, Creation::Guarded, mode(0o600)));
        }
        assert_eq!(made, Err(ESTALE), "{name}");
    }
    assert_eq!(std::fs::read_dir(served.path("dir")).expect("listed").count(), 0);
}

fn dropping_a_machine_cancels_waiting_calls(mut served: ServedTree) {
    let root = served.root;
    let started: Vec<Token> =
        names().iter().map(|name| served.start(None, create(root, name, Creation::Guarded, mode(0o600))).0).collect();
    assert_eq!(served.rig.wait(started[0]), Ok(0));
    let ServedTree { rig, open, directory, .. } = served;
    let acknowledged: HashSet<Token> =
        rig.done.iter().filter(|done| done.result.is_ok()).map(|done| done.token).collect();
    drop(rig);
    drop(open);
    for (name, token) in names().iter().zip(started) {
        let is_there = directory.join(name).exists();
        assert!(is_there || !acknowledged.contains(&token), "{name} was acknowledged");
    }
}

fn a_tree_whose_host_does_not_answer_keeps_no_other_waiting(mut served: ServedTree) {
    allow_descriptors();
    let node = served.file("file");
    let leased = std::fs::File::open(served.path("file")).expect("opened");
    // SAFETY: no pointer is passed.
    let lease = |kind: libc::c_int| unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, kind) };
    // SAFETY: no other test waits for the signal, which asks for the lease and would end this process.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    if lease(libc::F_RDLCK) < 0 {
        return testkit::skip::note("no leases on this file system");
    }
    let asked: Vec<_> = (0..MANY).map(|_| served.start(None, TreeCall::Open { node, writable: true })).collect();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let other = open_tree(directory.path(), false, None).expect("opened");
    let mut ask = |call: TreeCall| {
        let (token, reply) = start(&mut served.rig, &other, None, call);
        assert_eq!(served.rig.wait(token), Ok(0));
        reply.lock().take().expect("an answer")
    };
    let (root, _) = node_in(Ok(ask(TreeCall::Root))).expect("a root");
    let (file, _) = node_in(Ok(ask(create(root, "file", Creation::Guarded, mode(0o600))))).expect("made");
    let TreeReply::Opened(file) = ask(TreeCall::Open { node: file, writable: true }) else { panic!("not opened") };
    assert_eq!(served.rig.run(Op::Flush { file: file.direct.file }), Ok(0));
    assert!(asked.iter().all(|(_, reply)| reply.lock().is_none()), "the lease was not held so long");
    assert_eq!(lease(libc::F_UNLCK), 0);
    for (token, _) in asked {
        assert_eq!(served.rig.wait(token), Ok(0));
    }
}
