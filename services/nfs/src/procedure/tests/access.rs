//! Permissions.

use nfs3_types::nfs3::*;

use kernel::connection::LocalUser;

use super::scene::{Came, Scene, bytes, user, with_mode};
use crate::client::{ClientAddress, Credentials};
use crate::export::{ExportConfig, NOBODY, Squash, Squashed};
use crate::program::Program;

fn unstable(user: &super::scene::Client, file: &nfs_fh3) -> Result<(), nfsstat3> {
    user.write(file, 0, b"abc", stable_how::UNSTABLE).map(|_| ())
}

#[test]
fn root_is_nobody_unless_told_otherwise() {
    let scene = Scene::new(0);
    let made = scene.user(0).create(&scene.user(0).root(), "squashed", 0o600).expect("made");
    let attributes = scene.user(0).getattr(&made).expect("there");
    assert_eq!((attributes.uid, attributes.gid), (NOBODY, NOBODY));

    let squash = |squashed| Squash { squashed, uid: 5, gid: 6 };
    scene.change_export(ExportConfig { squash: squash(Squashed::Nobody), ..ExportConfig::default() });
    let made = scene.user(0).create(&scene.user(0).root(), "root", 0o600).expect("made");
    assert_eq!(scene.user(0).getattr(&made).expect("there").uid, 0);

    scene.change_export(ExportConfig { squash: squash(Squashed::All), ..ExportConfig::default() });
    let user = scene.client("192.0.2.1", Credentials::None);
    let made = user.create(&user.root(), "anonymous", 0o600).expect("made");
    let attributes = user.getattr(&made).expect("there");
    assert_eq!((attributes.uid, attributes.gid), (5, 6));
}

#[test]
fn access_tells_the_attributes_that_getattr_tells_before_the_host_has_the_data_and_after() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o640).expect("made");
    for (offset, commits) in [(0, false), (5000, true), (90_000, false)] {
        user.write(&file, offset, b"abc", stable_how::UNSTABLE).expect("written");
        if commits {
            user.commit(&file).expect("committed");
        }
        let (granted, attributes) = user.access_and_attributes(&file, ACCESS3_READ | ACCESS3_DELETE).expect("told");
        assert_eq!((granted, attributes.size), (ACCESS3_READ, offset + 3));
        assert_eq!(format!("{attributes:?}"), format!("{:?}", user.getattr(&file).expect("there")));
    }
}

#[test]
fn the_owner_goes_on_writing_to_a_file_that_nobody_may_write() {
    let scene = Scene::new(0);
    let (owner, other) = (scene.user(1000), scene.user(1001));
    let file = owner.create(&owner.root(), "file", 0o444).expect("made");
    assert_eq!(unstable(&owner, &file), Ok(()));
    assert_eq!(unstable(&other, &file), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(other.read(&file, 0, 10), Ok((b"abc".to_vec(), true)));
    let cut = sattr3 { size: Nfs3Option::Some(1), ..sattr3::default() };
    assert_eq!(other.setattr(&file, cut.clone(), None), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(owner.setattr(&file, cut, None), Ok(()));
    assert_eq!(owner.getattr(&file).expect("there").size, 1);
}

#[test]
fn who_may_run_a_program_may_read_it() {
    let scene = Scene::new(0);
    let (owner, other) = (scene.user(1000), scene.user(1001));
    let file = owner.create(&owner.root(), "file", 0o711).expect("made");
    assert_eq!(unstable(&owner, &file), Ok(()));
    assert_eq!(other.read(&file, 0, 10), Ok((b"abc".to_vec(), true)));
    assert_eq!(other.access(&file, 0x3f), Ok(ACCESS3_EXECUTE));
    owner.setattr(&file, with_mode(0o700), None).expect("set");
    assert_eq!(other.read(&file, 0, 10), Err(nfsstat3::NFS3ERR_ACCES));
}

#[test]
fn every_group_of_a_caller_counts() {
    let scene = Scene::new(0);
    let owner = scene.user(1000);
    let file = owner.create(&owner.root(), "file", 0o060).expect("made");
    let in_groups = |gid, groups: &[u32]| {
        let groups = groups.iter().copied().collect();
        scene.client("192.0.2.1", Credentials::Unix { uid: 1001, gid, groups })
    };
    assert_eq!(unstable(&in_groups(1000, &[]), &file), Ok(()));
    assert_eq!(unstable(&in_groups(7, &[5, 1000]), &file), Ok(()));
    assert_eq!(unstable(&in_groups(7, &[5]), &file), Err(nfsstat3::NFS3ERR_ACCES));
}

#[test]
fn a_right_that_was_taken_back_is_gone_at_once() {
    let scene = Scene::new(0);
    let (owner, other) = (scene.user(1000), scene.user(1001));
    let file = owner.create(&owner.root(), "file", 0o666).expect("made");
    assert_eq!(unstable(&other, &file), Ok(()));
    owner.setattr(&file, with_mode(0o644), None).expect("set");
    assert_eq!(unstable(&other, &file), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(other.access(&file, 0x3f), Ok(ACCESS3_READ));
}

#[test]
fn a_program_loses_the_rights_of_its_owner_when_it_is_written() {
    let scene = Scene::new(0);
    let owner = scene.user(1000);
    let file = owner.create(&owner.root(), "file", 0o4777).expect("made");
    assert_eq!(owner.getattr(&file).expect("there").mode, 0o4777);
    assert_eq!(unstable(&scene.user(1001), &file), Ok(()));
    assert_eq!(owner.getattr(&file).expect("there").mode, 0o777);
}

#[test]
fn what_the_host_has_taken_from_a_programs_mode_meanwhile_is_not_given_back_by_a_write() {
    let scene = Scene::new(0);
    let (owner, other) = (scene.user(1000), scene.user(1001));
    let file = owner.create(&owner.root(), "file", 0o4777).expect("made");
    other.read(&file, 0, 10).expect("it is open");
    scene.chmod_beside("file", 0o4700);
    assert_eq!(unstable(&other, &file), Ok(()), "it is not known yet that it may not");
    assert_eq!(owner.getattr(&file).expect("there").mode, 0o700);
}

#[test]
fn nothing_changes_in_a_read_only_export() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o666).expect("made");
    unstable(&user, &file).expect("written");
    user.scene.change_export(ExportConfig { read_only: true, ..ExportConfig::default() });
    let refused = Err(nfsstat3::NFS3ERR_ROFS);
    assert_eq!(unstable(&user, &file), refused);
    assert_eq!(user.setattr(&file, with_mode(0), None), refused);
    assert_eq!(user.create(&root, "new", 0o666).map(drop), refused);
    assert_eq!(user.mkdir(&root, "new", 0o777).map(drop), refused);
    assert_eq!(user.symlink(&root, "new", "target").map(drop), refused);
    assert_eq!(user.mknod(&root, "new", mknoddata3::NF3FIFO(sattr3::default())).map(drop), refused);
    assert_eq!(user.remove(&root, "file"), refused);
    assert_eq!(user.rmdir(&root, "file"), refused);
    assert_eq!(user.rename((&root, "file"), (&root, "new")), refused);
    assert_eq!(user.link(&file, &root, "new"), refused);
    assert_eq!(user.read(&file, 0, 10), Ok((b"abc".to_vec(), true)));
    assert_eq!(user.access(&file, 0x3f), Ok(ACCESS3_READ));
}

#[test]
fn clients_of_other_networks_are_refused() {
    let clients = vec!["192.0.2.0/24".parse().expect("a network")];
    let scene = Scene::with(0, ExportConfig { clients, ..ExportConfig::default() });
    let root = scene.user(1000).root();
    assert!(scene.user(1000).getattr(&root).is_ok());
    let credentials = Credentials::Unix { uid: 1000, gid: 1000, groups: [].into_iter().collect() };
    assert_eq!(scene.client("198.51.100.1", credentials).getattr(&root).map(drop), Err(nfsstat3::NFS3ERR_ACCES));
}

#[test]
fn who_does_not_say_who_he_is_may_only_find_out_how_to_mount() {
    let scene = Scene::new(0);
    let nameless = scene.client("192.0.2.1", Credentials::None);
    let root = nameless.root();
    assert!(nameless.getattr(&root).is_ok());
    let args = ACCESS3args { object: root, access: 1 };
    let came = nameless.call_raw(Program::Nfs, NFS_PROGRAM::NFSPROC3_ACCESS as u32, bytes(&args));
    assert_eq!(came, Came::AuthError);
}

#[test]
fn handles_die_with_their_file_and_their_export() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o666).expect("made");
    unstable(&user, &file).expect("written");
    user.remove(&root, "file").expect("removed");
    assert_eq!(user.getattr(&file).map(drop), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(user.read(&file, 0, 10), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(unstable(&user, &file), Err(nfsstat3::NFS3ERR_STALE));
    let made_up = nfs_fh3 { data: vec![1; 32].into() };
    assert_eq!(user.getattr(&made_up).map(drop), Err(nfsstat3::NFS3ERR_BADHANDLE));
    user.scene.nfs().set_exports(Vec::new());
    assert_eq!(user.getattr(&root).map(drop), Err(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn a_secure_export_serves_privileged_ports_and_unix_sockets_alone() {
    let scene = Scene::with(0, ExportConfig { secure: true, ..ExportConfig::default() });
    let user = || Credentials::Unix { uid: 7, gid: 7, groups: [].into_iter().collect() };
    let at = |port| scene.client_at(ClientAddress::Ip(([192, 0, 2, 1], port).into()), user());
    let file = at(1023).create(&at(1023).root(), "file", 0o644).expect("made");
    let local = scene.client_at(ClientAddress::Unix(7), user());
    for privileged in [&at(1), &at(1023), &local] {
        assert!(privileged.getattr(&file).is_ok());
    }
    for port in [1024, u16::MAX] {
        let unprivileged = at(port);
        assert_eq!(unprivileged.getattr(&file).map(drop), Err(nfsstat3::NFS3ERR_PERM));
        assert_eq!(unprivileged.read(&file, 0, 1).map(drop), Err(nfsstat3::NFS3ERR_PERM));
        assert_eq!(unstable(&unprivileged, &file), Err(nfsstat3::NFS3ERR_PERM));
        assert_eq!(unprivileged.lookup(&unprivileged.root(), "file").map(drop), Err(nfsstat3::NFS3ERR_PERM));
    }
}

#[test]
fn a_local_user_is_believed_only_as_root() {
    let user = |uid| LocalUser { uid, gid: 5, groups: vec![6; 40] };
    assert_eq!(Credentials::of(&user(0)), None, "its calls say for whom");
    let groups = vec![6; 40].into_iter().collect();
    assert_eq!(Credentials::of(&user(4)), Some(Credentials::Unix { uid: 4, gid: 5, groups }));
}
