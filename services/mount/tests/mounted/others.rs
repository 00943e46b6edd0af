//! Files that others change meanwhile, on the server's host and through a mount of their own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use kernel::Processor;
use machine::Errno;
use mount::{Files, Found, Listed, New, NewTime, NodeId, Opening, Sink};
use policy::unit::{ByteOffset, Stability};
use testkit::rounds::for_seeds;

use crate::content::{BOTH, FILE_BYTES_MAX, Model, open};
use crate::scene::{Scene, options};

/// The server asks its host for changes that others made there after this simulated time at the latest.
const SERVER_NOTICES: Duration = Duration::from_secs(5);

/// Waits until the server has asked its host about a file that it wrote: from then on it knows changes of others from its
/// own, where the host does not report them.
async fn await_server(cpu: &Processor, files: &Files, id: NodeId) {
    cpu.sleep(SERVER_NOTICES).await;
    files.attributes(cpu, id).await.expect("asked");
}

#[test]
fn who_opens_a_file_sees_what_others_closed_before() {
    for_seeds("who_opens_a_file_sees_what_others_closed_before", 4, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let own = Arc::clone(&files);
        let id = scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &own, "a").await;
            model.write(&cpu, 0, &[1; 9000], Stability::Unstable).await;
            own.flush(&cpu, model.opening).await.tell().expect("flushed");
            own.close_file(&cpu, model.opening).await;
            await_server(&cpu, &own, model.id).await;
            model.id
        });
        scene.world.write_tree(scene.tree, "a", ByteOffset(4000), &[2; 200]);
        scene.run(async move |cpu| {
            cpu.sleep(SERVER_NOTICES).await;
            let opened = open(&cpu, &files, id).await;
            assert!(!opened.keeps_cache, "the host must not keep what it has");
            files.undo_opening(&cpu, opened).await;
            let opened = open(&cpu, &files, id).await;
            assert!(!opened.keeps_cache, "nobody was told so far");
            let mut content = vec![1; 9000];
            content[4000..4200].fill(2);
            Model { files, id, opening: opened.id, content }.check(&cpu, 0, 9000).await;
        });
    });
}

#[test]
fn what_others_write_beyond_the_end_while_we_write_is_read() {
    for_seeds("what_others_write_beyond_the_end_while_we_write_is_read", 8, |seed| {
        let mut scene = Scene::new(seed);
        let (files, others) = (scene.mount(), scene.mount());
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &files, "a").await;
            model.write(&cpu, 0, &[1; 5000], Stability::Stable).await;
            let found = others.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
            let theirs = others.open_file(&cpu, found.id, BOTH).await.expect("opened").id;
            let write = async |files: &Files, opening, at: usize, data: &[u8]| {
                let at = ByteOffset(at as u64);
                files.write(&cpu, opening, at, data, Stability::Stable).await.tell().expect("written");
            };
            let (end, far) = (FILE_BYTES_MAX - 1000, FILE_BYTES_MAX / 2);
            write(&others, theirs, end, &[3; 1000]).await;
            // Two at a time: of neither it is known what was before it.
            let opening = model.opening;
            join(write(&files, opening, 0, &[2; 5000]), write(&files, opening, far, &[2; 5000])).await;
            for (at, byte, len) in [(end, 3, 1000), (0, 2, 5000), (far, 2, 5000)] {
                model.note(at, &vec![byte; len]);
            }
            files.close_file(&cpu, model.opening).await;
            open(&cpu, &files, model.id).await;
            model.check(&cpu, 0, FILE_BYTES_MAX).await;
        });
    });
}

#[test]
fn what_others_have_closed_before_our_own_writes_is_read_by_who_opens_the_file_after_them() {
    for overlapping in [1, 2, 5] {
        let mut scene = Scene::new(12);
        let (files, others) = (scene.mount(), scene.mount());
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &files, "a").await;
            model.write(&cpu, 0, &[0; FILE_BYTES_MAX], Stability::Stable).await;
            let found = others.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
            for (round, changes) in (1..).zip([false, true, true, false]) {
                let keeps = open(&cpu, &files, model.id).await.keeps_cache;
                assert!(keeps, "round {round}: nobody has written");
                model.check(&cpu, 0, FILE_BYTES_MAX).await;
                if changes {
                    let theirs = open(&cpu, &others, found.id).await.id;
                    let written =
                        others.write(&cpu, theirs, ByteOffset(5), &[round; 100][..], Stability::Unstable).await;
                    written.tell().expect("written");
                    others.flush(&cpu, theirs).await.tell().expect("flushed");
                    others.close_file(&cpu, theirs).await;
                    model.note(5, &[round; 100]);
                }
                // Later than what counts as the same time.
                cpu.sleep(Duration::from_millis(200)).await;
                let (at, data) = (|number: usize| 20_000 + number * 50_000, [round; 9000]);
                let writes = (0..overlapping).map(|number| {
                    let at = ByteOffset(at(number) as u64);
                    files.write(&cpu, model.opening, at, &data[..], Stability::Stable)
                });
                let written = join_all(writes).await;
                written.into_iter().for_each(|written| written.tell().expect("written"));
                (0..overlapping).for_each(|number| model.note(at(number), &data));
                let keeps = open(&cpu, &files, model.id).await.keeps_cache;
                assert_eq!(keeps, !changes, "round {round}, {overlapping} at a time");
                model.check(&cpu, 0, FILE_BYTES_MAX).await;
            }
        });
    }
}

#[test]
fn who_opens_a_file_that_others_changed_looks_it_up_before() {
    let mut scene = Scene::new(5);
    let (files, others, noted) = (scene.mount(), scene.mount(), Arc::clone(&scene.noted));
    scene.run(async move |cpu| {
        let model = Model::create(&cpu, &files, "a").await;
        let found = others.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
        let theirs = others.open_file(&cpu, found.id, BOTH).await.expect("opened").id;
        let change = async |data: &[u8]| {
            others.write(&cpu, theirs, ByteOffset(0), data, Stability::Stable).await.tell().expect("written");
        };
        let open_in = async |thread| files.open_file(&cpu, model.id, Opening { thread, ..BOTH }).await.map(drop);
        let open = async || open_in(1).await;
        assert_eq!(open().await, Ok(()));
        change(b"one").await;
        let reads = Opening { writes: false, thread: 5, ..BOTH };
        assert_eq!(files.open_file(&cpu, model.id, reads).await.map(drop), Err(Errno::STALE));
        assert_eq!(open().await, Err(Errno::STALE));
        assert_eq!(open().await, Ok(()), "where there is nothing to look up");
        change(b"three").await;
        assert_eq!(files.open_file(&cpu, model.id, reads).await.map(drop), Ok(()), "it was refused before");
        cpu.sleep(Duration::from_millis(1)).await;
        files.attributes(&cpu, model.id).await.expect("asked");
        assert_eq!(open().await, Ok(()), "it was asked after that");
        change(b"fifteen").await;
        assert_eq!(join(open_in(1), open_in(2)).await, (Err(Errno::STALE), Err(Errno::STALE)), "at the same time");
        change(b"and twenty").await;
        assert_eq!(join(open_in(1), open_in(2)).await, (Ok(()), Ok(())), "nobody is refused twice");
        assert_eq!(open_in(3).await, Err(Errno::STALE), "the host has not asked yet");
        files.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
        assert_eq!(open().await, Ok(()));
        change(b"again, and longer").await;
        assert_eq!(open_in(4).await, Err(Errno::STALE));
        change(b"and once more, and longer").await;
        noted.changed.lock().expect("one thread").clear();
        let found = files.lookup(&cpu, NodeId::ROOT, b"a", 4).await.expect("answered").expect("it is there");
        assert_eq!(found.attributes.size, 25);
        let notices = noted.changed.lock().expect("one thread").len();
        assert_eq!(notices, 0, "the host would not take the size, and append to that of before");
        assert_eq!(open_in(4).await, Ok(()));
    });
}

#[test]
fn without_attribute_caching_changes_of_others_are_seen_at_once() {
    let mut scene = Scene::new(3);
    let never = mount::Bounds { min: Duration::ZERO, max: Duration::ZERO };
    let files = scene.mount_with(mount::Options { files: never, directories: never, ..options() }, 1);
    let own = Arc::clone(&files);
    let model = scene.run(async move |cpu| {
        let mut model = Model::create(&cpu, &own, "a").await;
        model.write(&cpu, 0, &[1; 5000], Stability::Unstable).await;
        own.flush(&cpu, model.opening).await.tell().expect("flushed");
        await_server(&cpu, &own, model.id).await;
        model.check(&cpu, 0, 5000).await;
        model
    });
    let id = model.id;
    scene.world.write_tree(scene.tree, "a", ByteOffset(0), &[7; 5000]);
    scene.run(async move |cpu| {
        cpu.sleep(SERVER_NOTICES).await;
        Model { files, content: vec![7; 5000], ..model }.check(&cpu, 0, 5000).await;
    });
    assert!(scene.noted.changed.lock().expect("one thread").contains(&id), "the host was not told");
}

/// Takes one object, and where the next one is found.
#[derive(Default)]
struct One(Option<(Found, u64)>);

impl Sink for One {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let has_room = self.0.is_none();
        if has_room {
            self.0 = entry.found.map(|found| (found, entry.cookie));
        }
        has_room
    }
}

#[test]
fn who_learns_with_a_name_that_a_file_is_longer_keeps_nothing_of_before() {
    let mut scene = Scene::new(9);
    let (files, others, noted) = (scene.mount(), scene.mount(), Arc::clone(&scene.noted));
    scene.run(async move |cpu| {
        let mut model = Model::create(&cpu, &files, "a").await;
        let id = model.id;
        let found = others.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
        let theirs = others.open_file(&cpu, found.id, BOTH).await.expect("opened").id;
        for way in ["lookup", "listing", "link"] {
            model.check(&cpu, 0, FILE_BYTES_MAX).await;
            let end = model.content.len();
            others
                .write(&cpu, theirs, ByteOffset(end as u64), &[1; 100][..], Stability::Stable)
                .await
                .tell()
                .expect("written");
            model.note(end, &[1; 100]);
            noted.changed.lock().expect("one thread").clear();
            let size = match way {
                "lookup" => {
                    let found = files.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered");
                    found.expect("it is there").attributes.size
                }
                "listing" => {
                    let (stream, mut one) = (files.open_directory(NodeId::ROOT).expect("opened"), One::default());
                    files.list(&cpu, stream, 0, true, &mut one).await.expect("listed");
                    files.close_directory(stream);
                    one.0.expect("it is there").0.attributes.size
                }
                _ => files.link(&cpu, id, NodeId::ROOT, b"b").await.expect("linked").attributes.size,
            };
            assert_eq!(size as usize, model.content.len(), "{way}");
            assert_eq!(*noted.changed.lock().expect("one thread"), [id], "{way}");
            model.check(&cpu, 0, FILE_BYTES_MAX).await;
        }
    });
}

#[test]
fn what_others_have_written_before_attributes_are_set_is_read() {
    let mut scene = Scene::new(10);
    let (files, others) = (scene.mount(), scene.mount());
    scene.run(async move |cpu| {
        let mut model = Model::create(&cpu, &files, "a").await;
        model.write(&cpu, 0, &[0; 5000], Stability::Stable).await;
        let found = others.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
        let theirs = others.open_file(&cpu, found.id, BOTH).await.expect("opened").id;
        let keeps_cache = async |model: &Model| {
            files.close_file(&cpu, model.opening).await;
            let opened = open(&cpu, &files, model.id).await;
            (opened.id, opened.keeps_cache)
        };
        let news = [
            New { mode: Some(0o755), ..New::default() },
            New { modified: Some(NewTime::Now), ..New::default() },
            New { size: Some(5000), ..New::default() },
        ];
        for (byte, new) in (1..).zip(news) {
            model.check(&cpu, 0, 5000).await;
            // The size stays: only the times tell.
            let written = others.write(&cpu, theirs, ByteOffset(0), &[byte; 5000][..], Stability::Stable).await;
            written.tell().expect("written");
            model.note(0, &[byte; 5000]);
            files.set_attributes(&cpu, model.id, new).await.expect("set");
            let (opening, keeps) = keeps_cache(&model).await;
            assert!(!keeps, "{new:?}");
            model.opening = opening;
            model.check(&cpu, 0, 5000).await;
            model.write(&cpu, 0, &[byte; 100], Stability::Unstable).await;
            files.set_attributes(&cpu, model.id, new).await.expect("set");
            let (opening, keeps) = keeps_cache(&model).await;
            assert!(keeps, "only we have written before {new:?}");
            model.opening = opening;
        }
    });
}

#[test]
fn what_is_read_late_of_a_listing_holds_no_longer_than_what_was_read_at_once() {
    let mut scene = Scene::new(11);
    let (files, others) = (scene.mount(), scene.mount());
    scene.run(async move |cpu| {
        for name in ["a", "b"] {
            Model::create(&cpu, &others, name).await;
        }
        let stream = files.open_directory(NodeId::ROOT).expect("opened");
        let list = async |cookie| {
            let mut one = One::default();
            files.list(&cpu, stream, cookie, true, &mut one).await.expect("listed");
            one.0.expect("there is one more")
        };
        let (first, cookie) = list(0).await;
        assert!(first.attributes_hold > Duration::ZERO);
        cpu.sleep(options().files.min).await;
        assert_eq!(list(cookie).await.0.attributes_hold, Duration::ZERO);
    });
}
