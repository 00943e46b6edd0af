//! READDIR, READDIRPLUS.

use std::collections::BTreeMap;

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Pack;

use super::scene::{Client, Scene, user};
use testkit::random::Random;
use testkit::rounds::for_seeds;

fn readdir(user: &Client, dir: &nfs_fh3, cookie: u64, count: u32) -> Result<READDIR3resok<'static>, nfsstat3> {
    let args = READDIR3args { dir: dir.clone(), cookie, cookieverf: cookieverf3::default(), count };
    let results: READDIR3resok<'static> = user.call::<_, READDIR3resfail>(NFS_PROGRAM::NFSPROC3_READDIR, &args)?;
    assert!(results.packed_size() <= count as usize);
    Ok(results)
}

fn readdirplus(
    user: &Client,
    dir: &nfs_fh3,
    cookie: u64,
    (dircount, maxcount): (u32, u32),
) -> Result<READDIRPLUS3resok<'static>, nfsstat3> {
    let args = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf: cookieverf3::default(), dircount, maxcount };
    let results: READDIRPLUS3resok<'static> =
        user.call::<_, READDIRPLUS3resfail>(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &args)?;
    assert!(results.packed_size() <= maxcount as usize);
    Ok(results)
}

fn text(name: &filename3<'_>) -> String {
    String::from_utf8(name.0.to_vec()).expect("text")
}

/// A directory with `count` files, and their names.
fn fill(user: &Client, count: u64) -> (nfs_fh3, Vec<String>) {
    let dir = user.mkdir(&user.root(), "dir", 0o755).expect("made");
    let mut random = Random(count);
    let mut names: Vec<String> =
        (0..count).map(|number| format!("{number}{}", "x".repeat(random.below(60) as usize))).collect();
    for name in &names {
        user.create(&dir, name, 0o644).expect("made");
    }
    names.extend([".".to_owned(), "..".to_owned()]);
    names.sort();
    (dir, names)
}

#[test]
fn every_entry_is_listed_once_however_small_the_replies_are() {
    for_seeds("every_entry_is_listed_once_however_small_the_replies_are", 3, |seed| {
        let scene = Scene::new(seed);
        let user = scene.user(1000);
        let (dir, names) = fill(&user, 150);
        for count in [250, 512, 4000, u32::MAX] {
            let (mut seen, mut cookie) = (Vec::new(), 0);
            loop {
                let results = readdir(&user, &dir, cookie, count).expect("listed");
                let last = results.reply.entries.0.last().map(|entry| entry.cookie);
                seen.extend(results.reply.entries.0.iter().map(|entry| text(&entry.name)));
                if results.reply.eof {
                    break;
                }
                cookie = last.expect("no end and no entry");
            }
            seen.sort();
            assert_eq!(seen, names, "count {count}");
        }
    });
}

#[test]
fn entries_come_with_handles_and_attributes_that_are_true() {
    let (user, root) = user();
    let (dir, names) = fill(&user, 100);
    let written = user.lookup(&dir, &names[50]).expect("there");
    user.write(&written, 0, &[1; 777], stable_how::UNSTABLE).expect("written");
    for counts in [(200, 2000), (4000, 600), (u32::MAX, u32::MAX)] {
        let (mut seen, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let results = readdirplus(&user, &dir, cookie, counts).expect("listed");
            let last = results.reply.entries.0.last().map(|entry| entry.cookie);
            for entry in results.reply.entries.0 {
                let (handle, attributes) = (entry.name_handle.unwrap(), entry.name_attributes.unwrap());
                assert_eq!(attributes.fileid, entry.fileid);
                seen.insert(text(&entry.name), (handle, attributes.size));
            }
            if results.reply.eof {
                break;
            }
            cookie = last.expect("no end and no entry");
        }
        assert!(seen.keys().eq(names.iter()), "{counts:?}");
        assert_eq!(seen[&names[50]], (written.clone(), 777));
        assert_eq!(seen["."].0, dir);
        assert_eq!(seen[".."].0, root);
    }
}

#[test]
fn what_is_removed_meanwhile_hides_nothing_else() {
    let (user, _) = user();
    let (dir, names) = fill(&user, 60);
    let first = readdir(&user, &dir, 0, 600).expect("listed");
    let mut seen: Vec<String> = first.reply.entries.0.iter().map(|entry| text(&entry.name)).collect();
    // Everything listed is removed, including the entry of the cookie.
    for name in seen.iter().filter(|name| !name.starts_with('.')) {
        user.remove(&dir, name).expect("removed");
    }
    let cookie = first.reply.entries.0.last().expect("entries").cookie;
    let rest = readdir(&user, &dir, cookie, u32::MAX).expect("listed");
    assert!(rest.reply.eof);
    seen.extend(rest.reply.entries.0.iter().map(|entry| text(&entry.name)));
    seen.sort();
    assert_eq!(seen, names);
}

#[test]
fn a_client_without_room_for_one_entry_is_told_so() {
    let (user, _) = user();
    let (dir, _) = fill(&user, 3);
    assert_eq!(readdir(&user, &dir, 0, 0).map(drop), Err(nfsstat3::NFS3ERR_TOOSMALL));
    assert_eq!(readdir(&user, &dir, 0, 110).map(drop), Err(nfsstat3::NFS3ERR_TOOSMALL));
    assert_eq!(readdirplus(&user, &dir, 0, (0, 8000)).map(drop), Err(nfsstat3::NFS3ERR_TOOSMALL));
    assert_eq!(readdirplus(&user, &dir, 0, (8000, 150)).map(drop), Err(nfsstat3::NFS3ERR_TOOSMALL));
}

#[test]
fn only_directories_are_listed_and_only_for_who_may_read_them() {
    let (user, root) = user();
    let file = user.create(&root, "file", 0o644).expect("made");
    assert_eq!(readdir(&user, &file, 0, 4000).map(drop), Err(nfsstat3::NFS3ERR_NOTDIR));
    let dir = user.mkdir(&root, "private", 0o711).expect("made");
    assert!(readdir(&user, &dir, 0, 4000).is_ok());
    assert_eq!(readdir(&user.scene.user(1001), &dir, 0, 4000).map(drop), Err(nfsstat3::NFS3ERR_ACCES));
}
