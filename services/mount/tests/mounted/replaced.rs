//! Files whose name another one takes while they are opened or open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join;
use kernel::Processor;
use machine::Errno;
use machine::tree::TreeCall;
use mount::{Files, NodeId, Opening};
use policy::unit::{ByteOffset, ByteRange, Stability};
use sim::TreeConfig;
use testkit::random::Random;
use testkit::rounds::for_seeds;

use crate::names::{NEW, list};
use crate::scene::Scene;

const READING: Opening = Opening { reads: true, writes: false, thread: 1 };

/// Makes a file that is closed.
async fn make(cpu: &Processor, files: &Arc<Files>, name: &str, content: &[u8]) -> NodeId {
    let (found, opening) = files.create(cpu, NodeId::ROOT, name.as_bytes(), NEW).await.expect("created");
    files.write(cpu, opening, ByteOffset(0), content, Stability::Unstable).await.tell().expect("written");
    files.flush(cpu, opening).await.tell().expect("flushed");
    files.close_file(cpu, opening).await;
    found.id
}

async fn read(cpu: &Processor, files: &Files, id: NodeId) -> Result<Vec<u8>, Errno> {
    let (range, frames) = files.read(cpu, id, ByteRange::new(0, 4096)).await?;
    Ok(frames.first().map_or(Vec::new(), |frame| frame.bytes()[..range.len as usize].to_vec()))
}

#[test]
fn what_is_opened_while_it_loses_its_name_is_gone_at_once_or_lasts_until_it_is_closed() {
    let opened = AtomicU32::new(0);
    for_seeds("what_is_opened_while_it_loses_its_name_is_gone_at_once_or_lasts_until_it_is_closed", 100, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let result = scene.run(async move |cpu| {
            let mut random = Random(seed);
            let old = make(&cpu, &files, "old", b"old").await;
            make(&cpu, &files, "new", b"new!").await;
            let (opens_after, loses_after) = (random.below(1000), random.below(1000));
            let open = async {
                cpu.sleep(Duration::from_micros(opens_after)).await;
                files.open_file(&cpu, old, READING).await
            };
            let lose = async {
                cpu.sleep(Duration::from_micros(loses_after)).await;
                if seed.is_multiple_of(2) {
                    files.rename(&cpu, (NodeId::ROOT, b"new"), (NodeId::ROOT, b"old")).await
                } else {
                    files.unlink(&cpu, NodeId::ROOT, b"old").await
                }
            };
            let (result, lost) = join(open, lose).await;
            lost.expect("it has lost its name");
            if let Ok(opened) = result {
                assert_eq!(read(&cpu, &files, old).await, Ok(b"old".to_vec()), "seed {seed}");
                files.close_file(&cpu, opened.id).await;
            }
            let left = if seed.is_multiple_of(2) { "old" } else { "new" };
            assert_eq!(list(&cpu, &files, 100).await, [left], "seed {seed}");
            result
        });
        match result {
            Ok(_) => _ = opened.fetch_add(1, Ordering::Relaxed),
            // The host looks for the name again.
            Err(errno) => assert_eq!(errno, Errno::STALE, "seed {seed}"),
        }
    });
    assert!(opened.into_inner() > 0, "it was never opened in time");
}

/// Trees whose files have names as they like, and only one each: an open file that is replaced is kept in two ways.
const LINKS_MAX: [u32; 2] = [1000, 1];

#[test]
fn an_open_file_that_another_one_was_to_replace_keeps_its_name_if_that_is_refused() {
    for links_max in LINKS_MAX {
        let mut scene = Scene::with_tree(9, TreeConfig { links_max, ..TreeConfig::new() });
        let files = scene.mount();
        let own = Arc::clone(&files);
        let (b, opened) = scene.run(async move |cpu| {
            make(&cpu, &own, "a", b"a").await;
            let b = make(&cpu, &own, "b", b"content").await;
            (b, own.open_file(&cpu, b, READING).await.expect("opened"))
        });
        let dir = scene.world.tree_node(scene.tree, "").expect("a root");
        let remove = TreeCall::Remove { dir, name: b"a".to_vec() };
        scene.world.call_tree(scene.tree, None, &remove).expect("another client removes it");
        scene.run(async move |cpu| {
            let renamed = files.rename(&cpu, (NodeId::ROOT, b"a"), (NodeId::ROOT, b"b")).await;
            assert_eq!(renamed, Err(Errno(libc::ENOENT)));
            assert_eq!(list(&cpu, &files, 100).await, ["b"]);
            assert_eq!(read(&cpu, &files, b).await, Ok(b"content".to_vec()));
            files.close_file(&cpu, opened.id).await;
            assert_eq!(list(&cpu, &files, 100).await, ["b"]);
            let found = files.lookup(&cpu, NodeId::ROOT, b"b", 0).await.expect("asked").expect("it is there");
            assert_eq!((found.id, found.attributes.links), (b, 1));
        });
        assert_eq!(scene.world.tree_content(scene.tree, "b").as_deref(), Some(&b"content"[..]));
    }
}

#[test]
fn an_open_file_that_is_replaced_is_removed_when_it_is_closed() {
    for links_max in LINKS_MAX {
        let mut scene = Scene::with_tree(10, TreeConfig { links_max, ..TreeConfig::new() });
        let files = scene.mount();
        scene.run(async move |cpu| {
            make(&cpu, &files, "a", b"new").await;
            let b = make(&cpu, &files, "b", b"old").await;
            let opened = files.open_file(&cpu, b, READING).await.expect("opened");
            files.rename(&cpu, (NodeId::ROOT, b"a"), (NodeId::ROOT, b"b")).await.expect("renamed");
            assert_eq!(list(&cpu, &files, 100).await.len(), 2, "it has a name of its own");
            let (attributes, _) = files.attributes(&cpu, b).await.expect("asked");
            assert_eq!(attributes.links, 1);
            assert_eq!(read(&cpu, &files, b).await, Ok(b"old".to_vec()));
            files.close_file(&cpu, opened.id).await;
            assert_eq!(list(&cpu, &files, 100).await, ["b"]);
        });
        assert_eq!(scene.world.tree_content(scene.tree, "b").as_deref(), Some(&b"new"[..]));
    }
}
