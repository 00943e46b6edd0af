//! What was written is read, whatever the network and the server do meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join;
use kernel::Processor;
use machine::Errno;
use machine::tree::{SetAttributes, TreeCall};
use mount::{Creation, Data, Files, NodeId, Opened, Opening, OpeningId};
use policy::unit::{ByteOffset, ByteRange, Stability};
use testkit::random::Random;
use testkit::rounds::for_seeds;

use crate::scene::{Scene, options};

const NEW: Creation = Creation { mode: 0o644, is_exclusive: false, truncates: true };
pub const BOTH: Opening = Opening { reads: true, writes: true, thread: 1 };
pub const FILE_BYTES_MAX: usize = 300_000;

/// Opens a file as the host does, which looks it up and tries again if it is to.
pub async fn open(cpu: &Processor, files: &Files, id: NodeId) -> Opened {
    let mut opened = files.open_file(cpu, id, BOTH).await;
    if opened == Err(Errno::STALE) {
        opened = files.open_file(cpu, id, BOTH).await;
    }
    opened.expect("opened")
}

/// A file and what it must contain.
pub struct Model {
    pub files: Arc<Files>,
    pub id: NodeId,
    pub opening: OpeningId,
    pub content: Vec<u8>,
}

impl Model {
    pub async fn create(cpu: &Processor, files: &Arc<Files>, name: &str) -> Model {
        let (found, opening) = files.create(cpu, NodeId::ROOT, name.as_bytes(), NEW).await.expect("created");
        Model { files: Arc::clone(files), id: found.id, opening, content: Vec::new() }
    }

    pub async fn write(&mut self, cpu: &Processor, at: usize, data: &[u8], stability: Stability) {
        let offset = ByteOffset(at as u64);
        self.files.write(cpu, self.opening, offset, data, stability).await.tell().expect("written");
        self.note(at, data);
    }

    /// As the host does it that answers before the cache has the data.
    pub fn write_ahead(&mut self, cpu: &Processor, at: usize, data: &[u8]) {
        let offset = ByteOffset(at as u64);
        let write = Data::new(cpu.kernel(), offset, data);
        let write = self.files.write_ahead(self.opening, offset, write, Stability::Unstable);
        let write = write.unwrap_or_else(|_| panic!("it may wait"));
        if let Some(file) = write.starts() {
            let (files, here) = (Arc::clone(&self.files), cpu.clone());
            cpu.spawn(async move { files.write_waiting(&here, file).await });
        }
        self.note(at, data);
    }

    pub fn note(&mut self, at: usize, data: &[u8]) {
        self.content.resize(self.content.len().max(at + data.len()), 0);
        self.content[at..at + data.len()].copy_from_slice(data);
    }

    pub async fn check(&self, cpu: &Processor, at: usize, len: usize) {
        let range = ByteRange::new(at as u64, len as u64);
        let (got, frames) = self.files.read(cpu, self.id, range).await.expect("read");
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().iter().copied()).collect();
        let end = self.content.len().min(at + len);
        let expected = &self.content[at.min(end)..end];
        assert_eq!(got.len as usize, expected.len(), "length at {at}+{len} of {}", self.content.len());
        let bytes = bytes.get(at % 4096..at % 4096 + expected.len()).unwrap_or_default();
        assert!(bytes == expected, "content at {at}+{len}");
    }

    /// One random call.
    async fn step(&mut self, cpu: &Processor, random: &mut Random) {
        let at = random.below(FILE_BYTES_MAX as u64 / 2) as usize;
        let most = [10, 5000, 100_000][random.below(3) as usize];
        let len = 1 + random.below(most) as usize;
        match random.below(10) {
            0..4 => {
                let byte = random.next() as u8;
                let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                match random.below(10) {
                    0 => self.write(cpu, at, &data, Stability::Stable).await,
                    1..5 => self.write(cpu, at, &data, Stability::Unstable).await,
                    _ => self.write_ahead(cpu, at, &data),
                }
            }
            4..8 => self.check(cpu, at, len).await,
            8 => self.files.flush(cpu, self.opening).await.tell().expect("flushed"),
            _ if random.chance(500) => {
                let new = mount::New { size: Some(at as u64), ..Default::default() };
                self.files.set_attributes(cpu, self.id, new).await.expect("resized");
                self.content.resize(at, 0);
            }
            _ => {
                self.files.flush_closing(cpu, self.opening).await.tell().expect("sent");
                let (attributes, _) = self.files.attributes(cpu, self.id).await.expect("asked");
                assert_eq!(attributes.size as usize, self.content.len());
            }
        }
    }
}

async fn live(cpu: &Processor, files: &Arc<Files>, seed: u64, steps: u64) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let mut models = vec![Model::create(cpu, files, "a").await, Model::create(cpu, files, "b").await];
    for _ in 0..steps {
        let which = random.below(2) as usize;
        models[which].step(cpu, &mut random).await;
    }
    let mut contents = Vec::new();
    for model in models {
        files.flush(cpu, model.opening).await.tell().expect("flushed");
        model.check(cpu, 0, FILE_BYTES_MAX).await;
        files.close_file(cpu, model.opening).await;
        contents.push(model.content);
    }
    contents
}

fn assert_on_server(scene: &Scene, contents: &[Vec<u8>], is_durable: bool) {
    for (name, content) in ["a", "b"].iter().zip(contents) {
        let found = if is_durable {
            scene.world.tree_durable_content(scene.tree, name)
        } else {
            scene.world.tree_content(scene.tree, name)
        };
        let found = found.expect("it is there");
        let first = found.iter().zip(content).position(|(a, b)| a != b);
        assert_eq!((found.len(), first), (content.len(), None), "{name} (length, first difference)");
    }
}

#[test]
fn random_reads_and_writes_agree_with_a_model_and_the_servers_disk() {
    for_seeds("random_reads_and_writes_agree_with_a_model_and_the_servers_disk", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let contents = scene.run(async move |cpu| live(&cpu, &files, seed, 120).await);
        assert_on_server(&scene, &contents, true);
    });
}

#[test]
fn connections_that_are_reset_are_made_again_and_nothing_is_lost() {
    let resets = AtomicU32::new(0);
    for_seeds("connections_that_are_reset_are_made_again_and_nothing_is_lost", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        scene.resets_per_million = 3000;
        let contents = scene.run(async move |cpu| live(&cpu, &files, seed, 120).await);
        resets.fetch_add(scene.resets, Ordering::Relaxed);
        assert_on_server(&scene, &contents, true);
    });
    assert!(resets.into_inner() > 0, "no connection was reset");
}

#[test]
fn a_server_that_restarts_gets_again_what_it_may_have_lost() {
    for power in [false, true] {
        for_seeds("a_server_that_restarts_gets_again_what_it_may_have_lost", 6, |seed| {
            let mut scene = Scene::new(seed);
            let files = scene.mount();
            let interval = Duration::from_millis(4 + 3 * (seed % 7));
            let contents =
                scene.run_with_crashes(interval, power, async move |cpu| live(&cpu, &files, seed, 200).await);
            assert_on_server(&scene, &contents, true);
        });
    }
}

#[test]
fn what_was_closed_without_a_commit_outlives_a_server_that_loses_it() {
    for_seeds("what_was_closed_without_a_commit_outlives_a_server_that_loses_it", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount_with(mount::Options { commits_at_close: false, ..options() }, 1);
        let own = Arc::clone(&files);
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &own, "a").await;
            model.write(&cpu, 0, &[3; 5000], Stability::Unstable).await;
            own.flush_closing(&cpu, model.opening).await.tell().expect("closed");
            own.close_file(&cpu, model.opening).await;
        });
        scene.crash_server(true);
        let found = scene.world.tree_durable_content(scene.tree, "a");
        assert!(found.is_some_and(|found| found != [3; 5000]), "seed {seed}: close has waited for it");
        scene.start_server();
        scene.run(async move |cpu| cpu.sleep(Duration::from_secs(10)).await);
        let found = scene.world.tree_durable_content(scene.tree, "a").expect("it is there");
        assert!(found == [3; 5000], "seed {seed}");
        drop(files);
    });
}

#[test]
fn files_that_are_closed_one_after_another_without_a_commit_are_committed_at_the_same_time() {
    const CLOSED: [&str; 4] = ["a", "b", "c", "d"];
    let tried = AtomicU32::new(0);
    for_seeds("files_that_are_closed_one_after_another_without_a_commit_are_committed_at_the_same_time", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount_with(mount::Options { commits_at_close: false, ..options() }, 1);
        let own = Arc::clone(&files);
        let took = scene.run(async move |cpu| {
            let mut closed = Vec::new();
            for name in CLOSED {
                let mut model = Model::create(&cpu, &own, name).await;
                model.write(&cpu, 0, &[3; 5000], Stability::Unstable).await;
                own.flush_closing(&cpu, model.opening).await.tell().expect("closed");
                own.close_file(&cpu, model.opening).await;
                closed.push(cpu.now());
                cpu.sleep(Duration::from_millis(80)).await;
            }
            cpu.now().since(closed[0])
        });
        if took > Duration::from_millis(450) {
            // On a network as slow as this one the first are due before the last is closed.
            return;
        }
        tried.fetch_add(1, Ordering::Relaxed);
        assert_eq!(files.unstored().files, 4, "seed {seed}");
        while files.unstored().files == 4 {
            scene.run(async move |cpu| cpu.sleep(Duration::from_millis(1)).await);
        }
        // The last one was closed 240 ms after the first.
        scene.run(async move |cpu| cpu.sleep(Duration::from_millis(120)).await);
        assert_eq!(files.unstored().files, 0, "seed {seed}");
    });
    assert!(tried.into_inner() > 0, "all networks were slow");
}

#[test]
fn what_fsync_promised_outlives_a_client_that_is_killed() {
    for_seeds("what_fsync_promised_outlives_a_client_that_is_killed", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let content: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(seed as u32 | 1) >> 7) as u8).collect();
        let written = content.clone();
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &files, "a").await;
            model.write(&cpu, 0, &written, Stability::Unstable).await;
            files.flush(&cpu, model.opening).await.tell().expect("flushed");
            // And something that is not promised.
            model.write(&cpu, 200_000, &written, Stability::Unstable).await;
        });
        scene.kill_client();
        scene.crash_server(true);
        let found = scene.world.tree_durable_content(scene.tree, "a").expect("it is there");
        assert!(found.len() >= content.len() && found[..content.len()] == content[..]);
    });
}

#[test]
fn what_is_closed_without_a_flush_is_durable_soon() {
    for_seeds("what_is_closed_without_a_flush_is_durable_soon", 6, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let own = Arc::clone(&files);
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &own, "a").await;
            model.write(&cpu, 0, &[3; 5000], Stability::Unstable).await;
            model.write_ahead(&cpu, 5000, &[3; 5000]);
            own.close_file(&cpu, model.opening).await;
            cpu.sleep(Duration::from_secs(4)).await;
        });
        let found = scene.world.tree_durable_content(scene.tree, "a").expect("it is there");
        assert!(found == [3; 10_000], "seed {seed}: {} bytes", found.len());
        assert_eq!(files.unstored().files, 0, "seed {seed}");
    });
}

#[test]
fn a_file_that_is_found_again_while_its_last_writes_are_sent_has_them() {
    for_seeds("a_file_that_is_found_again_while_its_last_writes_are_sent_has_them", 8, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        let content = scene.run(async move |cpu| {
            let mut random = Random(seed);
            let mut model = Model::create(&cpu, &files, "a").await;
            for round in 0..20u8 {
                let (at, len) = (random.below(50_000) as usize, 1 + random.below(60_000) as usize);
                model.write(&cpu, at, &vec![round; len], Stability::Unstable).await;
                files.close_file(&cpu, model.opening).await;
                files.forget(&cpu, model.id, 1);
                cpu.sleep(Duration::from_micros(random.below(3000))).await;
                let found = files.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there");
                let opened = files.open_file(&cpu, found.id, BOTH).await.expect("opened");
                model = Model { id: found.id, opening: opened.id, ..model };
                model.check(&cpu, 0, FILE_BYTES_MAX).await;
            }
            files.flush(&cpu, model.opening).await.tell().expect("flushed");
            model.content
        });
        assert_on_server(&scene, &[content], true);
    });
}

#[test]
fn a_file_that_is_emptied_while_somebody_begins_to_read_it_is_empty() {
    for_seeds("a_file_that_is_emptied_while_somebody_begins_to_read_it_is_empty", 40, |seed| {
        let mut scene = Scene::new(seed);
        let files = scene.mount();
        scene.run(async move |cpu| {
            let mut model = Model::create(&cpu, &files, "a").await;
            model.write(&cpu, 0, &[1; 9000], Stability::Unstable).await;
            files.flush(&cpu, model.opening).await.tell().expect("flushed");
            files.close_file(&cpu, model.opening).await;
        });
        // One that has nothing cached.
        let files = scene.mount();
        scene.run(async move |cpu| {
            let mut random = Random(seed);
            let id = files.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there").id;
            let opening = files.open_file(&cpu, id, BOTH).await.expect("opened").id;
            let resize = async |size| {
                let new = mount::New { size: Some(size), ..Default::default() };
                files.set_attributes(&cpu, id, new).await.expect("resized");
            };
            let (reads_after, empties_after) = (random.below(1000), random.below(1000));
            let read = async {
                cpu.sleep(Duration::from_micros(reads_after)).await;
                files.read(&cpu, id, ByteRange::new(0, 9000)).await.expect("read");
            };
            let empty = async {
                cpu.sleep(Duration::from_micros(empties_after)).await;
                resize(0).await;
            };
            join(read, empty).await;
            let mut model = Model { files: Arc::clone(&files), id, opening, content: Vec::new() };
            model.write(&cpu, 0, &[2; 5], Stability::Unstable).await;
            let (attributes, _) = files.attributes(&cpu, id).await.expect("asked");
            assert_eq!(attributes.size, 5, "seed {seed}");
            resize(8192).await;
            model.content.resize(8192, 0);
            model.check(&cpu, 0, 9000).await;
        });
    });
}

#[test]
fn who_may_write_a_file_and_not_read_it_writes_parts_of_it() {
    for_seeds("who_may_write_a_file_and_not_read_it_writes_parts_of_it", 12, |seed| {
        let mut scene = Scene::new(seed);
        let dir = scene.world.tree_node(scene.tree, "").expect("a root");
        let attributes = SetAttributes { mode: Some(0o622), ..SetAttributes::default() };
        let create = TreeCall::Create { dir, name: b"a".to_vec(), how: machine::tree::Creation::Guarded, attributes };
        scene.world.call_tree(scene.tree, None, &create).expect("created");
        let theirs: Vec<u8> = (0..FILE_BYTES_MAX / 4).map(|i| i as u8).collect();
        scene.world.write_tree(scene.tree, "a", ByteOffset(0), &theirs);
        scene.world.sync_tree(scene.tree);
        let files = scene.mount_as(1000, options(), 2);
        let write = async move |cpu: Processor| {
            let mut random = Random(seed);
            let id = files.lookup(&cpu, NodeId::ROOT, b"a", 0).await.expect("answered").expect("it is there").id;
            assert_eq!(files.open_file(&cpu, id, BOTH).await.err(), Some(Errno(libc::EACCES)));
            let writing = Opening { reads: false, writes: true, thread: 1 };
            let opening = files.open_file(&cpu, id, writing).await.expect("opened").id;
            let mut model = Model { files: Arc::clone(&files), id, opening, content: theirs };
            for round in 0..60 {
                let end = model.content.len();
                let most = [10, 5000, 20_000][random.below(3) as usize];
                let len = 1 + random.below(most) as usize;
                let at = if random.chance(500) { end } else { random.below(end as u64) as usize };
                let data = vec![round; len];
                match random.below(10) {
                    0 => model.write(&cpu, at, &data, Stability::Stable).await,
                    1..5 => model.write(&cpu, at, &data, Stability::Unstable).await,
                    5..9 => model.write_ahead(&cpu, at, &data),
                    _ => {
                        let (attributes, _) = files.attributes(&cpu, id).await.expect("asked");
                        assert_eq!(attributes.size as usize, end, "seed {seed}");
                    }
                }
            }
            files.flush(&cpu, opening).await.tell().expect("flushed");
            files.close_file(&cpu, opening).await;
            model.content
        };
        let interval = Duration::from_millis(4 + seed % 7);
        let content = match seed % 3 {
            0 => scene.run(write),
            kind => scene.run_with_crashes(interval, kind == 1, write),
        };
        assert_on_server(&scene, &[content], true);
    });
}
