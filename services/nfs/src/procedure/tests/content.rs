//! READ, WRITE, COMMIT.

use nfs3_types::nfs3::*;

use super::scene::{Client, Data, Scene, bytes, decode, together, user, with_mode};
use crate::program::Program;
use testkit::random::Random;
use testkit::rounds::for_seeds;

#[test]
fn what_was_written_is_read() {
    for_seeds("what_was_written_is_read", 5, |seed| {
        let scene = Scene::new(seed);
        let user = scene.user(1000);
        let file = user.create(&user.root(), "file", 0o644).expect("made");
        let mut random = Random(seed);
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..60 {
            let (offset, len) = (random.below(40_000) as usize, random.below(20_000) as usize);
            if random.chance(500) {
                let content = vec![random.next() as u8; len];
                let stable =
                    [stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC][random.below(3) as usize];
                let written = user.write(&file, offset as u64, &content, stable).expect("written");
                assert_eq!(written.count as usize, len);
                let kept = if stable == stable_how::UNSTABLE { stable_how::UNSTABLE } else { stable_how::FILE_SYNC };
                assert_eq!(written.committed, kept);
                if len > 0 {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&content);
                }
                assert_eq!(written.file_wcc.after.unwrap().size, model.len() as u64);
                assert!(written.file_wcc.before.is_none());
            }
            let (content, eof) = user.read(&file, offset as u64, len as u32).expect("read");
            let end = model.len().min(offset + len);
            assert_eq!(content, model[offset.min(end)..end], "{len} bytes from {offset}");
            assert_eq!(eof, offset + len >= model.len());
            assert_eq!(user.getattr(&file).expect("there").size, model.len() as u64);
        }
    });
}

#[test]
fn a_read_beyond_the_end_is_empty() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o644).expect("made");
    assert_eq!(user.read(&file, 0, 100), Ok((Vec::new(), true)));
    user.write(&file, 0, b"abc", stable_how::UNSTABLE).expect("written");
    assert_eq!(user.read(&file, 3, 100), Ok((Vec::new(), true)));
    assert_eq!(user.read(&file, u64::MAX, u32::MAX), Ok((Vec::new(), true)));
    assert_eq!(user.read(&file, 0, 0), Ok((Vec::new(), false)));
    assert_eq!(user.read(&file, 1, 1), Ok((b"b".to_vec(), false)));
    assert_eq!(user.read(&file, 1, u32::MAX), Ok((b"bc".to_vec(), true)));
}

#[test]
fn a_read_at_the_end_of_a_file_that_grows_meanwhile_gets_bytes_or_the_end() {
    let name = "a_read_at_the_end_of_a_file_that_grows_meanwhile_gets_bytes_or_the_end";
    for_seeds(name, 30, |seed| {
        let scene = Scene::new(seed);
        let (owner, other) = (scene.user(1000), scene.user(1001));
        let file = owner.create(&owner.root(), "file", 0o644).expect("made");
        owner.write(&file, 0, &[1; 100], stable_how::UNSTABLE).expect("written");
        let longer = SETATTR3args {
            object: file.clone(),
            new_attributes: sattr3 { size: Nfs3Option::Some(5000), ..sattr3::default() },
            guard: Nfs3Option::None,
        };
        // He has to be asked about first, which takes some time.
        let read = READ3args { file, offset: 100, count: 1000 };
        let call = |client: &Client, procedure, arguments| client.prepare(Program::Nfs, procedure as u32, arguments);
        let calls = vec![
            call(&other, NFS_PROGRAM::NFSPROC3_READ, bytes(&read)),
            call(&owner, NFS_PROGRAM::NFSPROC3_SETATTR, bytes(&longer)),
        ];
        let came = together(&scene, calls).swap_remove(0);
        let read: READ3resok<'static> = decode::<_, READ3resfail>(came).expect("read");
        let size = read.file_attributes.unwrap().size;
        assert_eq!((read.eof, read.data.len()), if size == 100 { (true, 0) } else { (false, 1000) });
    });
}

#[test]
fn a_write_that_makes_no_sense_is_refused() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o644).expect("made");
    let data = |offset| Data { offset, bytes: b"abc" };
    let write = |count, offset| user.write_with(&file, count, stable_how::FILE_SYNC, &data(offset)).map(|_| ());
    assert_eq!(write(2, 0), Err(nfsstat3::NFS3ERR_INVAL));
    assert_eq!(write(4, 0), Err(nfsstat3::NFS3ERR_INVAL));
    assert_eq!(write(3, u64::MAX - 1), Err(nfsstat3::NFS3ERR_FBIG));
    assert_eq!(write(3, i64::MAX as u64), Err(nfsstat3::NFS3ERR_FBIG));
    assert_eq!(user.getattr(&file).expect("there").size, 0);
}

#[test]
fn a_write_beyond_the_largest_file_is_refused_at_once_and_one_before_it_is_cut_off_as_fast_as_any() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o644).expect("made");
    let write = |offset| user.write(&file, offset, b"a", stable_how::UNSTABLE).map(|_| ());
    assert_eq!(write(1 << 58), Err(nfsstat3::NFS3ERR_FBIG));
    let max = sim::TreeConfig::new().file_bytes_max;
    assert_eq!(write(max), Err(nfsstat3::NFS3ERR_FBIG));
    assert_eq!(write(max - 1), Ok(()));
    assert_eq!(user.getattr(&file).expect("there").size, max);
    let empty = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    user.setattr(&file, empty, None).expect("cut off");
    assert_eq!(user.getattr(&file).expect("there").size, 0);
    user.commit(&file).expect("nothing is left");
}

#[test]
fn only_files_have_content() {
    let (user, root) = user();
    let link = user.symlink(&root, "link", "target").expect("made");
    let fifo = user.mknod(&root, "fifo", mknoddata3::NF3FIFO(with_mode(0o666))).expect("made");
    for (what, object) in [("directory", root), ("link", link), ("fifo", fifo)] {
        for status in [
            user.read(&object, 0, 10).map(|_| ()),
            user.write(&object, 0, b"abc", stable_how::UNSTABLE).map(|_| ()),
            user.commit(&object).map(|_| ()),
        ] {
            let status = status.expect_err(what);
            assert!(matches!(status, nfsstat3::NFS3ERR_INVAL | nfsstat3::NFS3ERR_ISDIR), "{what}: {status}");
        }
    }
}

#[test]
fn what_is_stable_survives_a_power_cut() {
    for_seeds("what_is_stable_survives_a_power_cut", 10, |seed| {
        let scene = Scene::new(seed);
        let user = scene.user(1000);
        let stable = user.create(&user.root(), "stable", 0o600).expect("made");
        let committed = user.create(&user.root(), "committed", 0o600).expect("made");
        let content: Vec<u8> = (0..10_000_u32).map(|at| (u64::from(at) ^ seed) as u8).collect();
        user.write(&stable, 5, &content, stable_how::FILE_SYNC).expect("written");
        let written = user.write(&committed, 5, &content, stable_how::UNSTABLE).expect("written");
        let commit = user.commit(&committed).expect("committed");
        assert_eq!(written.verf, commit.verf);

        user.scene.power_cut();
        for (name, handle) in [("stable", stable), ("committed", committed)] {
            assert_eq!(user.lookup(&user.root(), name), Ok(handle.clone()));
            assert_eq!(user.read(&handle, 5, 20_000), Ok((content.clone(), true)), "{name}");
            let again = user.commit(&handle).expect("committed");
            assert_ne!(again.verf, commit.verf, "a client must write again what it had not committed");
        }
    });
}

#[test]
fn a_commit_that_fails_says_so_and_changes_the_verifier() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    let written = user.write(&file, 0, &[1; 5000], stable_how::UNSTABLE).expect("written");
    let no_medium = machine::Errno::IO;
    user.scene.world.fail_next_in_tree(user.scene.trees[0], sim::OpClass::Write, 1000, no_medium);
    user.scene.world.fail_next_in_tree(user.scene.trees[0], sim::OpClass::Flush, 1000, no_medium);
    assert_eq!(user.commit(&file).map(|_| ()), Err(nfsstat3::NFS3ERR_IO));
    user.scene.world.heal_tree(user.scene.trees[0]);
    let again = user.write(&file, 0, &[1; 5000], stable_how::UNSTABLE).expect("written");
    assert_ne!(again.verf, written.verf);
    assert_eq!(user.commit(&file).expect("committed").verf, again.verf);
}

#[test]
fn a_full_disk_is_reported() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    user.scene.world.limit_tree_space(user.scene.trees[0], Some(8192));
    let full = user.write(&file, 0, &[1; 100_000], stable_how::FILE_SYNC).map(|_| ());
    assert_eq!(full, Err(nfsstat3::NFS3ERR_NOSPC));
}

#[test]
fn a_file_that_is_cut_loses_its_end_for_good() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o600).expect("made");
    user.write(&file, 0, &[1; 10_000], stable_how::UNSTABLE).expect("written");
    let size = |size| sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
    user.setattr(&file, size(5000), None).expect("cut");
    user.setattr(&file, size(6000), None).expect("grown");
    let expected = [vec![1; 5000], vec![0; 1000]].concat();
    assert_eq!(user.read(&file, 0, 20_000), Ok((expected, true)));
    // So does one that is created again under its name.
    let again = user.create_how(&root, "file", createhow3::UNCHECKED(size(0))).expect("taken");
    assert_eq!(again, file);
    assert_eq!(user.read(&file, 0, 20_000), Ok((Vec::new(), true)));
    user.write(&file, 4500, b"x", stable_how::UNSTABLE).expect("written");
    let expected = [vec![0; 4500], b"x".to_vec()].concat();
    assert_eq!(user.read(&file, 0, 20_000), Ok((expected, true)));
}
