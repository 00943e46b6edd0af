//! Names, and files that lose theirs while they are open.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join, select};
use kernel::Processor;
use machine::Errno;
use machine::tree::{SetAttributes, TreeCall};
use mount::{Creation, Files, Found, Listed, LookupCache, NodeId, Options, Sink, Special};
use policy::unit::{ByteOffset, ByteRange, Stability};
use testkit::rounds::for_seeds;

use crate::made_up::REMOVE;
use crate::scene::{Scene, options};

/// What a server refuses with (RFC 1813, section 2.6).
const NOT_EMPTY: u32 = 66;
const JUKEBOX: u32 = 10008;

pub const NEW: Creation = Creation { mode: 0o644, is_exclusive: true, truncates: false };

async fn find(cpu: &Processor, files: &Arc<Files>, name: &str) -> Option<Found> {
    files.lookup(cpu, NodeId::ROOT, name.as_bytes(), 0).await.expect("asked").ok()
}

#[derive(Default)]
struct Names {
    names: Vec<String>,
    cookies: Vec<u64>,
    room: usize,
}

impl Sink for Names {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        if self.names.len() == self.room {
            return false;
        }
        self.names.push(String::from_utf8_lossy(entry.name).into_owned());
        self.cookies.push(entry.cookie);
        true
    }
}

/// All names of the root, some at a time.
pub async fn list(cpu: &Processor, files: &Arc<Files>, room: usize) -> Vec<String> {
    let stream = files.open_directory(NodeId::ROOT).expect("opened");
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let mut some = Names { room, ..Names::default() };
        files.list(cpu, stream, cookie, true, &mut some).await.expect("listed");
        let Some(last) = some.cookies.last() else { break };
        cookie = *last;
        names.extend(some.names);
    }
    files.close_directory(stream);
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

#[test]
fn an_exclusive_creation_is_refused_where_the_name_exists() {
    let mut scene = Scene::new(1);
    let files = scene.mount();
    scene.run(async move |cpu| {
        let (found, _) = files.create(&cpu, NodeId::ROOT, b"a", NEW).await.expect("created");
        assert_eq!(found.attributes.mode, 0o644);
        let again = files.create(&cpu, NodeId::ROOT, b"a", NEW).await;
        assert_eq!(again.err(), Some(Errno(libc::EEXIST)));
    });
}

#[test]
fn exclusive_creations_are_made_once_where_the_server_restarts() {
    for_seeds("exclusive_creations_are_made_once_where_the_server_restarts", 12, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let interval = Duration::from_millis(2 + seed % 5);
        // Not its host: that may have a name without the times that came with it, until both are durable.
        scene.run_with_crashes(interval, false, async move |cpu| {
            for number in 0..200 {
                let name = format!("a{number}");
                let made = files.create(&cpu, NodeId::ROOT, name.as_bytes(), NEW).await;
                let (found, opening) = made.unwrap_or_else(|errno| panic!("seed {seed}, {name}: {errno}"));
                assert_eq!(found.attributes.mode, 0o644);
                files.close_file(&cpu, opening).await;
                let again = files.create(&cpu, NodeId::ROOT, name.as_bytes(), NEW).await;
                assert_eq!(again.err(), Some(Errno(libc::EEXIST)));
            }
        });
    });
}

/// Makes a directory with the mount, and then a file in it as another client does.
fn directory_with_others_file(scene: &mut Scene, files: &Arc<Files>) -> NodeId {
    let own = Arc::clone(files);
    let directory = scene.run(async move |cpu| {
        let directory = own.make_directory(&cpu, NodeId::ROOT, b"d", 0o755).await.expect("made").id;
        assert!(own.lookup(&cpu, directory, b"theirs", 0).await.expect("asked").is_err());
        directory
    });
    let dir = scene.world.tree_node(scene.tree, "d").expect("it is there");
    let (how, attributes) = (machine::tree::Creation::Guarded, SetAttributes::default());
    let create = TreeCall::Create { dir, name: b"theirs".to_vec(), how, attributes };
    scene.world.call_tree(scene.tree, None, &create).expect("created");
    directory
}

#[test]
fn of_a_directory_of_its_own_the_mount_knows_what_it_does_not_have() {
    let mut scene = Scene::new(6);
    let files = scene.mount();
    let directory = directory_with_others_file(&mut scene, &files);
    scene.run(async move |cpu| {
        let is_found = async |name: &[u8]| files.lookup(&cpu, directory, name, 0).await.expect("asked").is_ok();
        assert!(!is_found(b"theirs").await, "the server is not asked while the attributes hold");
        cpu.sleep(options().directories.min).await;
        assert!(is_found(b"theirs").await, "nor is it forever");
    });
}

#[test]
fn a_directory_of_its_own_that_others_change_is_like_any_other() {
    let mut scene = Scene::new(7);
    let files = scene.mount();
    let directory = directory_with_others_file(&mut scene, &files);
    scene.run(async move |cpu| {
        let (_, opening) = files.create(&cpu, directory, b"ours", NEW).await.expect("created");
        files.close_file(&cpu, opening).await;
        assert!(files.lookup(&cpu, directory, b"theirs", 0).await.expect("asked").is_ok());
    });
    let mut scene = Scene::new(8);
    let files = scene.mount_with(Options { lookup_cache: LookupCache::Positive, ..options() }, 1);
    let directory = directory_with_others_file(&mut scene, &files);
    scene.run(async move |cpu| {
        assert!(files.lookup(&cpu, directory, b"theirs", 0).await.expect("asked").is_ok());
    });
}

#[test]
fn a_file_that_is_removed_while_it_is_open_lasts_until_it_is_closed() {
    let mut scene = Scene::new(2);
    let files = scene.mount();
    scene.run(async move |cpu| {
        let (found, opening) = files.create(&cpu, NodeId::ROOT, b"a", NEW).await.expect("created");
        files.write(&cpu, opening, ByteOffset(0), &b"hello"[..], Stability::Unstable).await.tell().expect("written");
        files.unlink(&cpu, NodeId::ROOT, b"a").await.expect("removed");
        assert!(find(&cpu, &files, "a").await.is_none());
        files.flush(&cpu, opening).await.tell().expect("flushed");
        let (range, frames) = files.read(&cpu, found.id, ByteRange::new(0, 100)).await.expect("read");
        assert_eq!((range.len, &frames[0].bytes()[..5]), (5, &b"hello"[..]));
        assert_eq!(list(&cpu, &files, 100).await.len(), 1, "it has a name of its own");
        files.close_file(&cpu, opening).await;
        assert_eq!(list(&cpu, &files, 100).await, Vec::<String>::new());
    });
}

#[test]
fn a_directory_is_empty_once_the_files_that_were_removed_from_it_are_closed() {
    for_seeds("a_directory_is_empty_once_the_files_that_were_removed_from_it_are_closed", 12, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        scene.run(async move |cpu| {
            let root = NodeId::ROOT;
            let directory = files.make_directory(&cpu, root, b"d", 0o755).await.expect("made").id;
            let (file, opening) = files.create(&cpu, root, b"a", NEW).await.expect("created");
            files.link(&cpu, file.id, directory, b"a").await.expect("linked");
            files.unlink(&cpu, root, b"a").await.expect("removed");
            files.unlink(&cpu, directory, b"a").await.expect("removed");
            let (_, removed) = join(files.close_file(&cpu, opening), files.remove_directory(&cpu, root, b"d")).await;
            assert_eq!(removed, Ok(()), "seed {seed}");
            let directory = files.make_directory(&cpu, root, b"d", 0o755).await.expect("made").id;
            files.make_directory(&cpu, root, b"other", 0o755).await.expect("made");
            let (_, opening) = files.create(&cpu, directory, b"a", NEW).await.expect("created");
            files.unlink(&cpu, directory, b"a").await.expect("removed");
            let (_, replaced) =
                join(files.close_file(&cpu, opening), files.rename(&cpu, (root, b"other"), (root, b"d"))).await;
            assert_eq!(replaced, Ok(()), "seed {seed}");
        });
    });
}

#[test]
fn a_directory_with_removed_files_that_are_open_or_stay_is_not_waited_for_forever() {
    let mut scene = Scene::new(9);
    let files = scene.mount();
    let own = Arc::clone(&files);
    let opening = scene.run(async move |cpu| {
        let directory = own.make_directory(&cpu, NodeId::ROOT, b"d", 0o755).await.expect("made").id;
        let (_, opening) = own.create(&cpu, directory, b"a", NEW).await.expect("created");
        own.unlink(&cpu, directory, b"a").await.expect("removed");
        let begun = cpu.now();
        let refused = own.remove_directory(&cpu, NodeId::ROOT, b"d").await;
        assert_eq!(refused, Err(Errno(libc::ENOTEMPTY)));
        assert!(cpu.now().since(begun) < Duration::from_secs(5), "of an open file there is nothing to wait for");
        opening
    });
    // Without attributes.
    let refusal = |status: u32| [status, 0, 0].map(u32::to_be_bytes).concat();
    scene.make_up(move |procedure, _| refusal(if procedure == REMOVE { JUKEBOX } else { NOT_EMPTY }));
    scene.run(async move |cpu| {
        let begun = cpu.now();
        let close = pin!(files.close_file(&cpu, opening));
        let remove = pin!(files.remove_directory(&cpu, NodeId::ROOT, b"d"));
        let Either::Right((refused, _)) = select(close, remove).await else { panic!("it is not removed") };
        assert_eq!(refused, Err(Errno(libc::ENOTEMPTY)));
        assert!(cpu.now().since(begun) < Duration::from_secs(60));
    });
}

#[test]
fn a_file_that_another_one_replaces_while_it_is_open_lasts_until_it_is_closed() {
    let mut scene = Scene::new(3);
    let files = scene.mount();
    scene.run(async move |cpu| {
        let (old, old_open) = files.create(&cpu, NodeId::ROOT, b"old", NEW).await.expect("created");
        files.write(&cpu, old_open, ByteOffset(0), &b"old"[..], Stability::Unstable).await.tell().expect("written");
        let (new, new_open) = files.create(&cpu, NodeId::ROOT, b"new", NEW).await.expect("created");
        files.write(&cpu, new_open, ByteOffset(0), &b"new!"[..], Stability::Unstable).await.tell().expect("written");
        files.close_file(&cpu, new_open).await;
        files.rename(&cpu, (NodeId::ROOT, b"new"), (NodeId::ROOT, b"old")).await.expect("renamed");
        let (range, _) = files.read(&cpu, old.id, ByteRange::new(0, 100)).await.expect("read");
        assert_eq!(range.len, 3);
        let found = find(&cpu, &files, "old").await.expect("it has the name");
        assert_eq!(found.id, new.id);
        files.close_file(&cpu, old_open).await;
        assert_eq!(list(&cpu, &files, 100).await, ["old"]);
        let (range, frames) = files.read(&cpu, new.id, ByteRange::new(0, 100)).await.expect("read");
        assert_eq!((range.len, &frames[0].bytes()[..4]), (4, &b"new!"[..]));
    });
}

#[test]
fn every_kind_of_object_is_made_and_listed_whole_whatever_the_room() {
    let mut scene = Scene::new(4);
    let files = scene.mount();
    scene.run(async move |cpu| {
        let directory = files.make_directory(&cpu, NodeId::ROOT, b"d", 0o755).await.expect("made");
        files.make_symlink(&cpu, NodeId::ROOT, b"s", b"d/x").await.expect("made");
        let link = find(&cpu, &files, "s").await.expect("made");
        assert_eq!(files.read_link(&cpu, link.id).await.expect("read"), b"d/x");
        files.make_special(&cpu, NodeId::ROOT, b"f", Special::Fifo, 0o600).await.expect("made");
        let mut expected = vec!["d".to_owned(), "f".into(), "s".into()];
        for number in 0..200 {
            let name = format!("file-{number:03}");
            let (_, opening) = files.create(&cpu, NodeId::ROOT, name.as_bytes(), NEW).await.expect("created");
            files.close_file(&cpu, opening).await;
            expected.push(name);
        }
        expected.sort();
        for room in [1, 7, 1000] {
            assert_eq!(list(&cpu, &files, room).await, expected, "{room} at a time");
        }
        let file = find(&cpu, &files, "file-007").await.expect("there");
        let linked = files.link(&cpu, file.id, directory.id, b"other").await.expect("linked");
        assert_eq!((linked.id, linked.attributes.links), (file.id, 2));
        let refused = files.remove_directory(&cpu, NodeId::ROOT, b"d").await;
        assert_eq!(refused, Err(Errno(libc::ENOTEMPTY)));
        files.unlink(&cpu, directory.id, b"other").await.expect("removed");
        files.remove_directory(&cpu, NodeId::ROOT, b"d").await.expect("removed");
        assert!(find(&cpu, &files, "d").await.is_none());
    });
}

#[test]
fn names_are_made_once_where_connections_are_reset() {
    let mut scene = Scene::new(5);
    let files: Arc<Files> = scene.mount();
    scene.resets_per_million = 5000;
    scene.run(async move |cpu| {
        for number in 0..60 {
            let (name, other) = (format!("a{number}"), format!("b{number}"));
            files.make_directory(&cpu, NodeId::ROOT, name.as_bytes(), 0o755).await.expect("made");
            let to = (NodeId::ROOT, other.as_bytes());
            files.rename(&cpu, (NodeId::ROOT, name.as_bytes()), to).await.expect("renamed");
            if number % 2 == 0 {
                files.remove_directory(&cpu, NodeId::ROOT, other.as_bytes()).await.expect("removed");
            }
        }
        assert_eq!(list(&cpu, &files, 1000).await.len(), 30);
    });
}

#[test]
fn names_of_others_are_not_taken_for_our_own_where_connections_are_reset() {
    let resets = AtomicU32::new(0);
    for_seeds("names_of_others_are_not_taken_for_our_own_where_connections_are_reset", 12, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        scene.resets_per_million = 5000;
        scene.run(async move |cpu| {
            let root = NodeId::ROOT;
            files.make_directory(&cpu, root, b"directory", 0o755).await.expect("made");
            files.make_symlink(&cpu, root, b"symlink", b"theirs").await.expect("made");
            files.make_special(&cpu, root, b"fifo", Special::Fifo, 0o600).await.expect("made");
            for name in [b"file", b"link"] {
                let (_, opening) = files.create(&cpu, root, name, NEW).await.expect("created");
                files.close_file(&cpu, opening).await;
            }
            let file = find(&cpu, &files, "file").await.expect("there").id;
            for _ in 0..20 {
                let refused = [
                    files.make_directory(&cpu, root, b"directory", 0o755).await.err(),
                    files.make_directory(&cpu, root, b"file", 0o755).await.err(),
                    files.make_symlink(&cpu, root, b"symlink", b"ours").await.err(),
                    files.make_symlink(&cpu, root, b"file", b"ours").await.err(),
                    files.make_special(&cpu, root, b"fifo", Special::Fifo, 0o600).await.err(),
                    files.link(&cpu, file, root, b"link").await.err(),
                ];
                assert_eq!(refused, [Some(Errno(libc::EEXIST)); 6], "seed {seed}");
            }
        });
        resets.fetch_add(scene.resets, Ordering::Relaxed);
    });
    assert!(resets.into_inner() > 0, "no connection was reset");
}

#[test]
fn what_others_have_removed_is_not_renamed_where_connections_are_reset() {
    let resets = AtomicU32::new(0);
    for_seeds("what_others_have_removed_is_not_renamed_where_connections_are_reset", 12, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let own = Arc::clone(&files);
        let names: Vec<String> = (0..40).map(|number| format!("a{number}")).collect();
        let made = names.clone();
        scene.run(async move |cpu| {
            for name in made.iter().map(String::as_str).chain(["theirs"]) {
                let (_, opening) = own.create(&cpu, NodeId::ROOT, name.as_bytes(), NEW).await.expect("created");
                own.close_file(&cpu, opening).await;
            }
        });
        let dir = scene.world.tree_node(scene.tree, "").expect("a root");
        for name in &names {
            let remove = TreeCall::Remove { dir, name: name.clone().into_bytes() };
            scene.world.call_tree(scene.tree, None, &remove).expect("removed");
        }
        scene.resets_per_million = 5000;
        scene.run(async move |cpu| {
            for name in names {
                let renamed = files.rename(&cpu, (NodeId::ROOT, name.as_bytes()), (NodeId::ROOT, b"theirs")).await;
                assert_eq!(renamed, Err(Errno(libc::ENOENT)), "seed {seed}");
            }
        });
        resets.fetch_add(scene.resets, Ordering::Relaxed);
    });
    assert!(resets.into_inner() > 0, "no connection was reset");
}

#[test]
fn names_of_every_kind_are_made_once_where_the_server_restarts() {
    for_seeds("names_of_every_kind_are_made_once_where_the_server_restarts", 12, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let interval = Duration::from_millis(2 + seed % 5);
        scene.run_with_crashes(interval, false, async move |cpu| {
            let root = NodeId::ROOT;
            let (file, opening) = files.create(&cpu, root, b"file", NEW).await.expect("created");
            files.close_file(&cpu, opening).await;
            for number in 0..50 {
                let names = ["d", "s", "f", "l", "r"].map(|kind| format!("{kind}{number}").into_bytes());
                let [directory, symlink, fifo, link, renamed] = &names;
                files.make_directory(&cpu, root, directory, 0o755).await.expect("made");
                files.make_symlink(&cpu, root, symlink, b"target").await.expect("made");
                files.make_special(&cpu, root, fifo, Special::Fifo, 0o600).await.expect("made");
                files.link(&cpu, file.id, root, link).await.expect("linked");
                files.rename(&cpu, (root, link), (root, renamed)).await.expect("renamed");
                let again = files.link(&cpu, file.id, root, symlink).await.err();
                assert_eq!(again, Some(Errno(libc::EEXIST)), "seed {seed}");
            }
            assert_eq!(list(&cpu, &files, 1000).await.len(), 201, "seed {seed}");
        });
    });
}
