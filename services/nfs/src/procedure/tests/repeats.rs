//! Retransmitted requests.

use nfs3_types::nfs3::*;

use super::scene::{Came, Client, MANY, Scene, bytes, place, together, user};
use crate::client::{ClientAddress, Credentials};
use crate::export::ExportConfig;
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

const RENAME: u32 = NFS_PROGRAM::NFSPROC3_RENAME as u32;

/// Does the call of this number on another connection, as a copy that is sent again.
fn repeat<T>(user: &Client, xid: u32, call: impl FnOnce() -> T) -> T {
    let next = user.scene.xid.replace(xid);
    user.connection.set(user.connection.get() + 1);
    let came = call();
    user.scene.xid.set(next);
    came
}

/// A client, and calls by others and by itself that are refused before anything is done.
fn refused() -> (Client, Vec<(Client, u32, Vec<u8>)>) {
    let clients = vec!["192.0.2.0/24".parse().expect("a network")];
    let scene = Scene::with(0, ExportConfig { secure: true, clients, ..ExportConfig::default() });
    let at = |address: [u8; 4], port| {
        let credentials = Credentials::Unix { uid: 1000, gid: 1000, groups: [].into_iter().collect() };
        scene.client_at(ClientAddress::Ip((address, port).into()), credentials)
    };
    let (root, gone) = (at([192, 0, 2, 1], 1000).root(), at([192, 0, 2, 1], 1000).root_of(1));
    scene.nfs().set_exports(vec![scene.nfs().exports()[0].clone()]);
    let remove = |dir: &nfs_fh3| bytes(&REMOVE3args { object: place(dir, "file") });
    let rename = bytes(&RENAME3args { from: place(&root, "file"), to: place(&gone, "file") });
    let calls = vec![
        (at([192, 0, 2, 1], 1000), REMOVE, remove(&nfs_fh3 { data: vec![0; 32].into() })),
        (at([192, 0, 2, 1], 1000), REMOVE, remove(&gone)),
        (at([192, 0, 2, 1], 1000), RENAME, rename),
        (at([192, 0, 2, 1], 1024), REMOVE, remove(&root)),
        (at([198, 51, 100, 1], 1000), REMOVE, remove(&root)),
    ];
    (at([192, 0, 2, 1], 1000), calls)
}

#[test]
fn calls_of_those_who_are_not_admitted_push_no_reply_out() {
    let (user, calls) = refused();
    let root = user.root();
    for (who, procedure, refused) in calls {
        user.create(&root, "file", 0o600).expect("made");
        let arguments = bytes(&REMOVE3args { object: place(&root, "file") });
        let xid = user.scene.xid.get();
        let first = user.call_raw(Program::Nfs, REMOVE, arguments.clone());
        assert!(ok(&first));
        for _ in 0..MANY {
            assert!(!ok(&who.call_raw(Program::Nfs, procedure, refused.clone())));
        }
        let again = || user.call_raw(Program::Nfs, REMOVE, arguments.clone());
        assert_eq!(repeat(&user, xid, again), first, "{refused:?}");
        // Those of the client itself do, in the end.
        for _ in 0..MANY {
            assert_eq!(user.remove(&root, "none"), Err(nfsstat3::NFS3ERR_NOENT));
        }
        assert!(!ok(&repeat(&user, xid, again)));
    }
}

#[test]
fn writes_of_those_who_are_not_admitted_let_no_late_copy_overwrite_newer_data() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    let xid = user.scene.xid.get();
    let write = |file: &nfs_fh3, bytes: &[u8]| user.write(file, 0, bytes, stable_how::FILE_SYNC).map(drop);
    write(&file, b"old").expect("written");
    write(&file, b"new").expect("written");
    for _ in 0..MANY {
        assert_eq!(write(&nfs_fh3 { data: vec![0; 32].into() }, b"old"), Err(nfsstat3::NFS3ERR_BADHANDLE));
    }
    repeat(&user, xid, || write(&file, b"old")).expect("it was");
    assert_eq!(user.read(&file, 0, 10), Ok((b"new".to_vec(), true)));
}

#[test]
fn a_request_that_is_sent_again_is_answered_again_by_an_export_that_refuses_it_by_now() {
    let clients = vec!["198.51.100.0/24".parse().expect("a network")];
    let changes: [&dyn Fn(&Client); 3] = [
        &|user| user.scene.change_export(ExportConfig { clients: clients.clone(), ..ExportConfig::default() }),
        &|user| user.scene.change_export(ExportConfig { read_only: true, ..ExportConfig::default() }),
        &|user| user.scene.nfs().set_exports(Vec::new()),
    ];
    for change in changes {
        let (user, root) = user();
        user.create(&root, "file", 0o600).expect("made");
        let arguments = bytes(&REMOVE3args { object: place(&root, "file") });
        let xid = user.scene.xid.get();
        let remove = || user.call_raw(Program::Nfs, REMOVE, arguments.clone());
        let first = remove();
        change(&user);
        assert_eq!(repeat(&user, xid, remove), first);
        assert!(!ok(&remove()));
    }
}
