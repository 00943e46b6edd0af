//! Names: created, looked up, renamed, removed; and attributes.

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Void;
use sim::OpClass;

use super::scene::{Came, Scene, bytes, place, user, with_mode};
use crate::export::{ExportConfig, Names};
use crate::program::Program;
use testkit::rounds::for_seeds;

#[test]
fn what_was_made_is_found_as_what_it_is() {
    let (user, root) = user();
    let made = [
        ("file", user.create(&root, "file", 0o640), ftype3::NF3REG),
        ("dir", user.mkdir(&root, "dir", 0o750), ftype3::NF3DIR),
        ("link", user.symlink(&root, "link", "dir/file"), ftype3::NF3LNK),
        ("fifo", user.mknod(&root, "fifo", mknoddata3::NF3FIFO(with_mode(0o600))), ftype3::NF3FIFO),
        ("socket", user.mknod(&root, "socket", mknoddata3::NF3SOCK(with_mode(0o600))), ftype3::NF3SOCK),
    ];
    for (name, handle, kind) in made {
        let handle = handle.expect(name);
        assert_eq!(user.lookup(&root, name), Ok(handle.clone()), "{name}");
        let attributes = user.getattr(&handle).expect(name);
        assert_eq!((attributes.type_, attributes.uid), (kind, 1000), "{name}");
    }
    let link = user.lookup(&root, "link").expect("there");
    let args = READLINK3args { symlink: link };
    let read: READLINK3resok<'static> =
        user.call::<_, READLINK3resfail>(NFS_PROGRAM::NFSPROC3_READLINK, &args).expect("a link");
    assert_eq!(&read.data.0[..], b"dir/file");
    let args = READLINK3args { symlink: user.lookup(&root, "file").expect("there") };
    let file = user.call::<READLINK3resok<'static>, READLINK3resfail>(NFS_PROGRAM::NFSPROC3_READLINK, &args);
    assert_eq!(file.map(drop), Err(nfsstat3::NFS3ERR_INVAL));
}

#[test]
fn who_changes_a_name_learns_what_the_directory_was_before() {
    let (user, root) = user();
    user.create(&root, "file", 0o640).expect("made");
    let before = user.getattr(&root).expect("attributes");
    let args = REMOVE3args { object: place(&root, "file") };
    let wcc: wcc_data =
        user.call::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE, &args).expect("removed").dir_wcc;
    let seen = wcc.before.unwrap();
    assert_eq!((seen.size, seen.mtime, seen.ctime), (before.size, before.mtime, before.ctime));
    assert_eq!(wcc.after.unwrap().ctime, user.getattr(&root).expect("attributes").ctime);
}

#[test]
fn only_root_makes_devices() {
    let scene = Scene::new(0);
    let device = || {
        mknoddata3::NF3CHR(devicedata3 {
            dev_attributes: with_mode(0o600),
            spec: specdata3 { specdata1: 1, specdata2: 3 },
        })
    };
    let user = scene.user(1000);
    assert_eq!(user.mknod(&user.root(), "null", device()).map(drop), Err(nfsstat3::NFS3ERR_PERM));
    let squash = crate::export::Squash { squashed: crate::export::Squashed::Nobody, ..Default::default() };
    scene.change_export(crate::export::ExportConfig { squash, ..Default::default() });
    let root = scene.user(0);
    let made = root.mknod(&root.root(), "null", device()).expect("made");
    let attributes = root.getattr(&made).expect("there");
    assert_eq!((attributes.type_, attributes.rdev), (ftype3::NF3CHR, specdata3 { specdata1: 1, specdata2: 3 }));
}

#[test]
fn what_mknod_cannot_make_is_a_bad_type() {
    let (user, root) = user();
    for kind in [ftype3::NF3REG as u32, ftype3::NF3DIR as u32, ftype3::NF3LNK as u32, 0, 99] {
        let arguments = [bytes(&place(&root, "new")), bytes(&kind)].concat();
        let came = user.call_raw(Program::Nfs, NFS_PROGRAM::NFSPROC3_MKNOD as u32, arguments);
        let status = super::scene::decode::<MKNOD3resok, MKNOD3resfail>(came);
        assert_eq!(status.map(drop), Err(nfsstat3::NFS3ERR_BADTYPE), "type {kind}");
    }
}

#[test]
fn a_name_is_guarded_as_the_client_asks() {
    let (user, root) = user();
    let first = user.create_how(&root, "file", createhow3::UNCHECKED(with_mode(0o600))).expect("made");
    assert_eq!(user.create_how(&root, "file", createhow3::UNCHECKED(with_mode(0o600))), Ok(first));
    let guarded = user.create_how(&root, "file", createhow3::GUARDED(with_mode(0o600)));
    assert_eq!(guarded, Err(nfsstat3::NFS3ERR_EXIST));
    let exclusive = |verifier| createhow3::EXCLUSIVE(createverf3(verifier));
    let mine = user.create_how(&root, "lock", exclusive([1; 8])).expect("made");
    assert_eq!(user.create_how(&root, "lock", exclusive([2; 8])), Err(nfsstat3::NFS3ERR_EXIST));
    assert_eq!(user.create_how(&root, "lock", exclusive([1; 8])), Ok(mine));
}

#[test]
fn an_exclusive_file_is_recognised_after_a_power_cut() {
    for_seeds("an_exclusive_file_is_recognised_after_a_power_cut", 10, |seed| {
        let scene = Scene::new(seed);
        let how = |verifier| createhow3::EXCLUSIVE(createverf3(verifier));
        let user = scene.user(1000);
        let made = user.create_how(&user.root(), "lock", how([9; 8])).expect("made");
        user.scene.power_cut();
        assert_eq!(user.create_how(&user.root(), "lock", how([9; 8])), Ok(made));
        assert_eq!(user.create_how(&user.root(), "lock", how([8; 8])), Err(nfsstat3::NFS3ERR_EXIST));
    });
}

#[test]
fn names_that_are_none_are_refused_by_every_procedure() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    let long = "a".repeat(256);
    let cases = [("", nfsstat3::NFS3ERR_INVAL), ("a/b", nfsstat3::NFS3ERR_INVAL), ("a\0", nfsstat3::NFS3ERR_INVAL)];
    for (name, status) in cases.into_iter().chain([(&long[..], nfsstat3::NFS3ERR_NAMETOOLONG)]) {
        let refused = Err(status);
        assert_eq!(user.lookup(&root, name).map(drop), refused);
        assert_eq!(user.create(&root, name, 0o600).map(drop), refused);
        assert_eq!(user.mkdir(&root, name, 0o700).map(drop), refused);
        assert_eq!(user.symlink(&root, name, "target").map(drop), refused);
        assert_eq!(user.mknod(&root, name, mknoddata3::NF3FIFO(with_mode(0o600))).map(drop), refused);
        assert_eq!(user.remove(&root, name), refused);
        assert_eq!(user.rmdir(&root, name), refused);
        assert_eq!(user.rename((&root, name), (&root, "new")), refused);
        assert_eq!(user.rename((&root, "file"), (&root, name)), refused);
        assert_eq!(user.link(&file, &root, name), refused);
    }
    for dots in [".", ".."] {
        assert_eq!(user.lookup(&root, dots), Ok(root.clone()));
        assert_eq!(user.mkdir(&root, dots, 0o700).map(drop), Err(nfsstat3::NFS3ERR_EXIST));
        assert_eq!(user.link(&file, &root, dots), Err(nfsstat3::NFS3ERR_EXIST));
        assert_eq!(user.rmdir(&root, dots), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(user.rename((&root, dots), (&root, "new")), Err(nfsstat3::NFS3ERR_INVAL));
    }
}

#[test]
fn each_way_of_removing_takes_its_own_kind() {
    let (user, root) = user();
    user.create(&root, "file", 0o600).expect("made");
    let dir = user.mkdir(&root, "dir", 0o700).expect("made");
    user.create(&dir, "inside", 0o600).expect("made");
    assert_eq!(user.remove(&root, "dir"), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(user.rmdir(&root, "file"), Err(nfsstat3::NFS3ERR_NOTDIR));
    assert_eq!(user.rmdir(&root, "dir"), Err(nfsstat3::NFS3ERR_NOTEMPTY));
    assert_eq!(user.remove(&root, "absent"), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(user.remove(&dir, "inside"), Ok(()));
    assert_eq!(user.rmdir(&root, "dir"), Ok(()));
    assert_eq!(user.remove(&root, "file"), Ok(()));
    assert_eq!(user.lookup(&root, "file").map(drop), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(user.lookup(&dir, "inside").map(drop), Err(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn a_file_keeps_its_handle_under_any_name() {
    let (user, root) = user();
    let dir = user.mkdir(&root, "dir", 0o700).expect("made");
    let file = user.create(&root, "file", 0o600).expect("made");
    user.write(&file, 0, b"abc", stable_how::UNSTABLE).expect("written");
    user.link(&file, &dir, "second").expect("linked");
    assert_eq!(user.getattr(&file).expect("there").nlink, 2);
    user.rename((&root, "file"), (&dir, "third")).expect("renamed");
    assert_eq!(user.lookup(&dir, "second"), Ok(file.clone()));
    assert_eq!(user.lookup(&dir, "third"), Ok(file.clone()));
    user.remove(&dir, "second").expect("removed");
    assert_eq!(user.read(&file, 0, 10), Ok((b"abc".to_vec(), true)));
    assert_eq!(user.rename((&root, "dir"), (&dir, "inside")), Err(nfsstat3::NFS3ERR_INVAL));
}

#[test]
fn what_a_renamed_file_replaces_is_gone() {
    let (user, root) = user();
    let old = user.create(&root, "old", 0o600).expect("made");
    let new = user.create(&root, "new", 0o600).expect("made");
    user.write(&old, 0, b"old", stable_how::UNSTABLE).expect("written");
    user.write(&new, 0, b"new", stable_how::UNSTABLE).expect("written");
    user.rename((&root, "new"), (&root, "old")).expect("renamed");
    assert_eq!(user.lookup(&root, "old"), Ok(new.clone()));
    assert_eq!(user.read(&new, 0, 10), Ok((b"new".to_vec(), true)));
    assert_eq!(user.getattr(&old).map(drop), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(user.read(&old, 0, 10).map(drop), Err(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn nothing_moves_from_one_export_to_another() {
    let (user, root) = user();
    let (here, there) = (root, user.root_of(1));
    let file = user.create(&here, "file", 0o600).expect("made");
    assert_eq!(user.rename((&here, "file"), (&there, "file")), Err(nfsstat3::NFS3ERR_XDEV));
    assert_eq!(user.link(&file, &there, "file"), Err(nfsstat3::NFS3ERR_XDEV));
    assert_ne!(user.getattr(&here).expect("there").fsid, user.getattr(&there).expect("there").fsid);
}

#[test]
fn a_guarded_change_needs_the_time_of_the_last_one() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    let before = user.getattr(&file).expect("there").ctime;
    user.write(&file, 0, b"abc", stable_how::UNSTABLE).expect("written");
    assert_eq!(user.setattr(&file, with_mode(0o644), Some(before)), Err(nfsstat3::NFS3ERR_NOT_SYNC));
    assert_eq!(user.getattr(&file).expect("there").mode, 0o600);
    let now = user.getattr(&file).expect("there").ctime;
    assert_eq!(user.setattr(&file, with_mode(0o644), Some(now)), Ok(()));
    assert_eq!(user.getattr(&file).expect("there").mode, 0o644);
}

#[test]
fn every_change_of_names_survives_a_power_cut() {
    for_seeds("every_change_of_names_survives_a_power_cut", 20, |seed| {
        let scene = Scene::new(seed);
        let user = scene.user(1000);
        let root = user.root();
        let dir = user.mkdir(&root, "dir", 0o700).expect("made");
        let file = user.create(&root, "file", 0o600).expect("made");
        user.symlink(&dir, "link", "target").expect("made");
        user.link(&file, &dir, "second").expect("linked");
        user.rename((&root, "file"), (&dir, "moved")).expect("renamed");
        user.remove(&dir, "second").expect("removed");
        user.mkdir(&root, "gone", 0o700).expect("made");
        user.rmdir(&root, "gone").expect("removed");
        user.setattr(&file, with_mode(0o640), None).expect("set");
        user.scene.power_cut();
        assert_eq!(user.lookup(&root, "dir"), Ok(dir.clone()));
        assert_eq!(user.lookup(&dir, "moved"), Ok(file.clone()));
        assert!(user.lookup(&dir, "link").is_ok());
        for (dir, name) in [(&root, "file"), (&dir, "second"), (&root, "gone")] {
            assert_eq!(user.lookup(dir, name).map(drop), Err(nfsstat3::NFS3ERR_NOENT), "{name}");
        }
        let attributes = user.getattr(&file).expect("there");
        assert_eq!((attributes.mode, attributes.nlink), (0o640, 1));
    });
}

#[test]
fn a_change_that_did_not_become_durable_is_no_success() {
    let (user, root) = user();
    user.scene.world.fail_next_in_tree(user.scene.trees[0], OpClass::Sync, 1, machine::Errno::IO);
    assert_eq!(user.create(&root, "file", 0o600).map(drop), Err(nfsstat3::NFS3ERR_IO));
}

#[test]
fn cut_arguments_are_garbage_to_every_procedure() {
    let (user, root) = user();
    for procedure in 1..=21 {
        for arguments in [Vec::new(), vec![0, 0, 0, 32, 1], bytes(&root)[..20].to_vec()] {
            let came = user.call_raw(Program::Nfs, procedure, arguments);
            assert_eq!(came, Came::Garbage, "procedure {procedure}");
        }
    }
    assert_eq!(user.call_raw(Program::Nfs, 0, Vec::new()), Came::Bytes(Vec::new()));
    assert_eq!(user.call_raw(Program::Nfs, 22, Vec::new()), Came::Unavailable);
}

#[test]
fn ordered_names_are_answered_at_once_and_made_durable_by_commit_and_stable_writes() {
    let scene = Scene::with(0, ExportConfig { names: Names::Ordered, ..ExportConfig::default() });
    let user = scene.user(1000);
    let root = user.root();
    let durable = || scene.world.tree_durable_names(scene.trees[0], "/").expect("the root");
    let file = user.create(&root, "file", 0o600).expect("made");
    assert_eq!(durable(), Vec::<String>::new());
    user.commit(&file).expect("durable");
    assert_eq!(durable(), ["file"]);
    user.mkdir(&root, "dir", 0o700).expect("made");
    assert_eq!(durable(), ["file"]);
    user.write(&file, 0, b"data", stable_how::FILE_SYNC).expect("durable");
    assert_eq!(durable(), ["dir", "file"]);
}

#[test]
fn the_file_system_is_described_truthfully() {
    let (user, root) = user();
    let fsroot = root;
    let info: FSINFO3resok = user
        .call::<_, FSINFO3resfail>(NFS_PROGRAM::NFSPROC3_FSINFO, &FSINFO3args { fsroot: fsroot.clone() })
        .expect("there");
    let file = user.create(&fsroot, "file", 0o600).expect("made");
    let most = vec![1; info.wtmax as usize];
    assert_eq!(user.write(&file, 0, &most, stable_how::UNSTABLE).expect("written").count, info.wtmax);
    assert_eq!(user.read(&file, 0, info.rtmax).expect("read").0.len(), info.rtmax as usize);
    let all = FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME;
    assert_eq!((info.properties, info.time_delta.seconds), (all, 0));
    let conf: PATHCONF3resok = user
        .call::<_, PATHCONF3resfail>(NFS_PROGRAM::NFSPROC3_PATHCONF, &PATHCONF3args { object: fsroot.clone() })
        .expect("there");
    assert_eq!((conf.name_max, conf.no_trunc, conf.case_preserving, conf.case_insensitive), (255, true, true, false));
    let space = |fsroot: &nfs_fh3| {
        let args = FSSTAT3args { fsroot: fsroot.clone() };
        user.call::<FSSTAT3resok, FSSTAT3resfail>(NFS_PROGRAM::NFSPROC3_FSSTAT, &args).expect("there")
    };
    let before = space(&fsroot);
    user.create(&fsroot, "more", 0o600).expect("made");
    assert_eq!(space(&fsroot).ffiles, before.ffiles - 1);
    assert!(before.abytes <= before.fbytes && before.fbytes <= before.tbytes);
    let stale = GETATTR3args { object: nfs_fh3 { data: Vec::new().into() } };
    let status = user.call::<GETATTR3resok, Void>(NFS_PROGRAM::NFSPROC3_GETATTR, &stale).map(drop);
    assert_eq!(status, Err(nfsstat3::NFS3ERR_BADHANDLE));
}
