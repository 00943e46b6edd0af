//! Retransmitted requests.

use nfs3_types::nfs3::*;

use super::scene::{Came, Client, Scene, bytes, place, together, user};
use crate::program::Program;
use testkit::rounds::for_seeds;

const REMOVE: u32 = NFS_PROGRAM::NFSPROC3_REMOVE as u32;

/// Gives the next call the id of the one before the last `since` calls.
fn same_number(user: &Client, since: u32) {
    user.scene.xid.set(user.scene.xid.get() - 1 - since);
}

/// As `same_number`, on another connection.
fn again(user: &Client, since: u32) {
    same_number(user, since);
    user.connection.set(user.connection.get() + 1);
}

fn ok(came: &Came) -> bool {
    matches!(came, Came::Bytes(bytes) if bytes.starts_with(&[0; 4]))
}

#[test]
fn a_request_that_is_sent_again_is_answered_again() {
    let (user, root) = user();
    user.create(&root, "file", 0o600).expect("made");
    let arguments = bytes(&REMOVE3args { object: place(&root, "file") });
    let first = user.call_raw(Program::Nfs, REMOVE, arguments.clone());
    assert!(ok(&first));
    // Created again meanwhile: it is another file.
    let other = user.create(&root, "file", 0o600).expect("made");
    again(&user, 1);
    assert_eq!(user.call_raw(Program::Nfs, REMOVE, arguments.clone()), first);
    assert_eq!(user.lookup(&root, "file"), Ok(other));
    user.scene.xid.set(1000);
    assert!(ok(&user.call_raw(Program::Nfs, REMOVE, arguments)));
    assert_eq!(user.lookup(&root, "file").map(drop), Err(nfsstat3::NFS3ERR_NOENT));
}

#[test]
fn a_request_that_comes_twice_at_the_same_time_is_done_once() {
    for_seeds("a_request_that_comes_twice_at_the_same_time_is_done_once", 5, |seed| {
        let scene = Scene::new(seed);
        let user = scene.user(1000);
        let root = user.root();
        user.create(&root, "from", 0o600).expect("made");
        let arguments = bytes(&RENAME3args { from: place(&root, "from"), to: place(&root, "to") });
        let rename = |how: fn(&Client, u32)| {
            let call = user.prepare(Program::Nfs, NFS_PROGRAM::NFSPROC3_RENAME as u32, arguments.clone());
            how(&user, 0);
            call
        };
        // Three on one connection, each other one on its own.
        let calls = [same_number, same_number, again, again, again].map(rename);
        let came = together(&scene, calls.into());
        assert_eq!(came.iter().filter(|came| **came == Came::Silence).count(), 2, "{came:?}");
        let answers: Vec<_> = came.iter().filter(|came| ok(came)).collect();
        assert!(answers.len() == 3 && answers.iter().all(|answer| *answer == answers[0]), "{came:?}");
        assert_eq!(together(&scene, vec![rename(again)]), [answers[0].clone()]);
    });
}

#[test]
fn what_does_no_harm_twice_is_done_twice() {
    let (user, root) = user();
    let arguments = bytes(&GETATTR3args { object: root.clone() });
    let getattr = || user.call_raw(Program::Nfs, NFS_PROGRAM::NFSPROC3_GETATTR as u32, arguments.clone());
    let first = getattr();
    user.create(&root, "file", 0o600).expect("made");
    again(&user, 1);
    assert_ne!(getattr(), first);
}
