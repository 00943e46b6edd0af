//! The host decides what callers may do in its trees.

use crate::tree_rig::*;
use machine::linux::tree::{self, Handles, OpenTreeError};
use machine::tree::{Creation, Node, TreeCall};
use machine::{Completion, Errno};
use rustix::thread::CapabilitySet;
use testkit::skip::note;

on_all_trees!(concurrent_callers_do_not_get_each_others_identity, invalid_users_are_refused_and_never_become_root,);

fn a_file(dir: Node, name: &str) -> TreeCall {
    create(dir, name, Creation::Guarded, mode(0o644))
}

fn invalid_users_are_refused_and_never_become_root(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let root = served.root;
    let never = u32::MAX;
    for who in [caller(never, 1, &[]), caller(1, never, &[]), caller(1, 1, &[never]), caller(never, never, &[])] {
        assert_eq!(served.node(Some(&who), a_file(root, "file")), Err(EPERM), "{who:?}");
    }
    assert_eq!(served.lookup(root, "file"), Err(ENOENT));
    // The threads have their own identity again.
    let closed = served.make_directory("closed", 0);
    for k in 0..32 {
        assert!(served.node(None, a_file(closed, &format!("{k}"))).is_ok());
    }
}

fn concurrent_callers_do_not_get_each_others_identity(mut served: ServedTree) {
    const CALLERS: u32 = 50;
    const FILES: u32 = 20;
    if !served.acts_for_others() {
        return;
    }
    let root = served.root;
    let closed = served.make_directory("closed", 0o700);
    let mut expected = Vec::new();
    for k in 0..CALLERS * FILES {
        let who = caller(10_000 + k % CALLERS, 20_000 + k % CALLERS, &[30_000 + k]);
        let (token, reply) = served.start(Some(&who), a_file(root, &format!("{k}")));
        expected.push((token, reply, Ok((who.uid, who.gid))));
        let (token, reply) = served.start(Some(&who), a_file(closed, &format!("{k}")));
        expected.push((token, reply, Err(EACCES)));
        let (token, reply) = served.start(None, a_file(closed, &format!("server-{k}")));
        expected.push((token, reply, Ok((0, 0))));
    }
    for (token, reply, owner) in expected {
        let result: Result<u64, Errno> = served.rig.wait(token);
        let reply = reply.lock().take();
        let made = result.and_then(|_| node_in(Ok(reply.expect("an answer"))));
        assert_eq!(made.map(|(_, attributes)| (attributes.uid, attributes.gid)), owner);
    }
    let left: &[Completion] = &served.rig.done;
    assert!(left.is_empty());
}

#[test]
fn a_root_that_may_not_act_for_others_opens_no_tree() {
    for capability in [CapabilitySet::SETGID, CapabilitySet::SETUID] {
        let opened = std::thread::spawn(move || {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let before = tree::open(directory.path(), true, None, Handles::Known).is_ok();
            let tried = before && drop_capability(capability);
            tried.then(|| tree::open(directory.path(), true, None, Handles::Known).map(drop))
        });
        match opened.join().expect("no panic") {
            None => note("takes root"),
            Some(result) => assert!(matches!(result, Err(OpenTreeError::NoOtherUsers(_))), "{result:?}"),
        }
    }
}
