//! What a medium has damaged is told, whatever it is, and nothing that a crash leaves is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use sim::{DiskConfig, DiskId, HostId, OpClass, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{Server, block, fill, open_disk};
use testkit::scene::{Host, drive, run, small_kernel, spawn, stable};
use transactions::store::{DATABASE_BYTES_MIN, Database, OpenError, StoreError};

type Rows = BTreeMap<u32, Vec<u8>>;

/// Superblocks, and the log behind them.
const SUPERBLOCKS: u64 = 2;
const LOG_PAGES: u64 = 256;

async fn put(cpu: &Processor, database: &Arc<Database>, number: u32, row: &[u8]) {
    let mut transaction = database.begin();
    let table = transaction.table("rows").expect("a table");
    transaction.put(table, &number.to_be_bytes(), row).expect("short");
    transaction.commit(cpu).await.expect("no conflict").durable(cpu).await.expect("a disk that works");
}

async fn rows(cpu: &Processor, database: &Arc<Database>) -> Rows {
    let number = |key: &[u8]| u32::from_be_bytes(key.try_into().expect("4 bytes"));
    crate::rows::rows(cpu, database).await.into_iter().map(|(key, row)| (number(&key), row)).collect()
}

async fn page(cpu: &Processor, volume: &Volume, page: u64) -> Vec<u8> {
    volume.read(cpu, block(page), stable()).await.expect("a disk that works")[0].bytes().to_vec()
}

async fn set_page(cpu: &Processor, volume: &Volume, page: u64, bytes: &[u8]) {
    let mut frames = cpu.kernel().allocate(cpu, 1).await;
    frames[0].bytes_mut().expect("unshared").copy_from_slice(bytes);
    volume.write(cpu, block(page), frames, stable()).await.expect("a disk that works");
}

async fn flip(cpu: &Processor, volume: &Volume, at: u64, bit: u64) {
    let mut bytes = page(cpu, volume, at).await;
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    set_page(cpu, volume, at, &bytes).await;
}

/// With the volume of a new disk.
fn with_volume(test: impl AsyncFnOnce(Processor, Arc<Volume>) + 'static) {
    let server = Server::with_disk(1, DiskConfig::new(DATABASE_BYTES_MIN));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| test(cpu, volume).await);
}

async fn open(cpu: &Processor, volume: &Arc<Volume>) -> Arc<Database> {
    Database::open(cpu, Arc::clone(volume)).await.expect("a database")
}

/// A database whose log has these rows, each in a group of a page.
async fn put_rows(cpu: &Processor, volume: &Arc<Volume>, numbers: std::ops::Range<u32>) {
    let database = open(cpu, volume).await;
    for number in numbers {
        put(cpu, &database, number, b"old").await;
    }
}

fn is_damage(error: &OpenError) -> bool {
    matches!(error, OpenError::Damaged(_) | OpenError::Store(StoreError::Damaged(_)))
}

async fn assert_damaged(cpu: &Processor, volume: &Arc<Volume>) {
    let refused = Database::open(cpu, Arc::clone(volume)).await.err();
    assert!(refused.as_ref().is_some_and(is_damage), "{refused:?}");
}

#[test]
fn a_damaged_group_of_the_log_that_another_one_follows_is_told() {
    with_volume(async |cpu, volume| {
        put_rows(&cpu, &volume, 0..10).await;
        for group in 0..9 {
            flip(&cpu, &volume, SUPERBLOCKS + group, 300).await;
            assert_damaged(&cpu, &volume).await;
            flip(&cpu, &volume, SUPERBLOCKS + group, 300).await;
        }
        assert_eq!(rows(&cpu, &open(&cpu, &volume).await).await.len(), 10);
    });
}

#[test]
fn a_damaged_group_of_the_log_that_an_earlier_start_had_found_is_told() {
    with_volume(async |cpu, volume| {
        put_rows(&cpu, &volume, 0..10).await;
        drop(open(&cpu, &volume).await);
        flip(&cpu, &volume, SUPERBLOCKS + 9, 300).await;
        assert_damaged(&cpu, &volume).await;
    });
}

#[test]
fn what_cannot_be_read_behind_the_end_of_the_log_keeps_no_database_from_opening() {
    let server = Server::with_disk(1, DiskConfig::without_holes(DATABASE_BYTES_MIN));
    // Two, so that the second has nothing in its cache.
    let [first, second] = [(); 2].map(|()| server.volume(ForcedUnitAccess::Never));
    server.run(async move |cpu, world, disk| {
        put_rows(&cpu, &first, 0..10).await;
        world.fail_range(disk, block(SUPERBLOCKS + 20), OpClass::Read);
        assert_eq!(rows(&cpu, &open(&cpu, &second).await).await.len(), 10);
    });
}

#[test]
fn groups_of_an_earlier_start_never_follow_those_of_a_later_one() {
    with_volume(async |cpu, volume| {
        put_rows(&cpu, &volume, 0..10).await;
        let mut behind = Vec::new();
        for group in 5..10 {
            behind.push(page(&cpu, &volume, SUPERBLOCKS + group).await);
            fill(&cpu, &volume, block(SUPERBLOCKS + group), 0, stable()).await.expect("a disk that works");
        }
        put_rows(&cpu, &volume, 100..101).await;
        for (group, bytes) in (6..).zip(&behind[1..]) {
            set_page(&cpu, &volume, SUPERBLOCKS + group, bytes).await;
        }
        let found = rows(&cpu, &open(&cpu, &volume).await).await;
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 100]);
    });
}

#[test]
fn a_damaged_superblock_is_told_if_it_is_the_one_that_counts() {
    with_volume(async |cpu, volume| {
        let checkpoint = async |number| {
            let database = open(&cpu, &volume).await;
            put(&cpu, &database, number, b"row").await;
            database.close(&cpu).await.expect("a disk that works");
        };
        checkpoint(1).await;
        checkpoint(2).await;
        checkpoint(3).await;
        // Of the generations 1 (of a new database) to 4.
        let (older, newest) = (1, 0);
        for bit in [3, 8 * 40] {
            flip(&cpu, &volume, newest, bit).await;
            assert_damaged(&cpu, &volume).await;
            flip(&cpu, &volume, newest, bit).await;
        }
        let bytes = page(&cpu, &volume, newest).await;
        fill(&cpu, &volume, block(newest), 0, stable()).await.expect("a disk that works");
        assert_damaged(&cpu, &volume).await;
        set_page(&cpu, &volume, newest, &bytes).await;
        flip(&cpu, &volume, older, 8 * 40).await;
        assert_eq!(rows(&cpu, &open(&cpu, &volume).await).await.len(), 3);
    });
}

/// Makes a superblock one of another version, in its place.
async fn set_version(cpu: &Processor, volume: &Volume, at: u64, version: u32) {
    let mut bytes = page(cpu, volume, at).await;
    bytes[12..16].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    set_page(cpu, volume, at, &bytes).await;
}

async fn version(cpu: &Processor, volume: &Volume, at: u64) -> u8 {
    page(cpu, volume, at).await[12]
}

/// Those of a new database are as version 1 had them.
#[test]
fn a_database_of_version_1_opens_and_is_one_that_older_programs_refuse() {
    with_volume(async |cpu, volume| {
        let database = open(&cpu, &volume).await;
        put(&cpu, &database, 0, b"tree").await;
        database.close(&cpu).await.expect("a disk that works");
        drop(database);
        for superblock in 0..SUPERBLOCKS {
            set_version(&cpu, &volume, superblock, 1).await;
        }
        put_rows(&cpu, &volume, 1..10).await;
        for superblock in 0..SUPERBLOCKS {
            assert_eq!(version(&cpu, &volume, superblock).await, 2);
        }
        assert_eq!(rows(&cpu, &open(&cpu, &volume).await).await.len(), 10);
    });
}

#[test]
fn a_database_that_a_later_version_has_opened_is_refused() {
    with_volume(async |cpu, volume| {
        put_rows(&cpu, &volume, 0..10).await;
        open(&cpu, &volume).await.close(&cpu).await.expect("a disk that works");
        set_version(&cpu, &volume, 0, 4).await;
        assert_eq!(Database::open(&cpu, volume).await.err(), Some(OpenError::Version(4)));
    });
}

/// A host with a disk, and what the only client knows of the rows.
struct Scene {
    world: World,
    id: HostId,
    disk: DiskId,
    seed: u64,
    known: Rc<RefCell<Known>>,
}

#[derive(Default)]
struct Known {
    rows: Rows,
    /// As they were before the last transaction that was acknowledged.
    before: Rows,
    pending: Option<(u32, Vec<u8>)>,
}

impl Known {
    fn with_pending(&self) -> Rows {
        let mut rows = self.rows.clone();
        rows.extend(self.pending.clone());
        rows
    }

    fn end(&mut self) {
        let rows = self.with_pending();
        self.before = std::mem::replace(&mut self.rows, rows);
        self.pending = None;
    }
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed);
        let id = world.add_host("server");
        let disk = world.add_disk(id, DiskConfig::drawn(DATABASE_BYTES_MIN, seed));
        Scene { world, id, disk, seed, known: Rc::default() }
    }

    fn boot(&self) -> (Host, Arc<Volume>) {
        let host = Host::boot(&self.world, self.id, small_kernel(1, 4 << 20, Switches::default()));
        let volume = open_disk(&self.world, &host, self.disk, self.seed);
        (host, volume)
    }

    /// Writes rows until the power is cut.
    fn live(&self, random: &mut Random) {
        let (host, volume) = self.boot();
        let (known, mut own) = (Rc::clone(&self.known), Random(random.next()));
        let database = run(&self.world, &host, async move |cpu| {
            let database = Database::open(&cpu, volume).await.expect("a database");
            let found = rows(&cpu, &database).await;
            let known = &mut *known.borrow_mut();
            if found != known.rows {
                known.end();
            }
            known.pending = None;
            assert!(found == known.rows, "the rows after a crash");
            database
        });
        let known = Rc::clone(&self.known);
        let client = spawn(&host.processors[0], async move |cpu| {
            for _ in 0..1000 {
                let row = (0..own.below(1000)).map(|_| own.next() as u8).collect::<Vec<_>>();
                let number = own.below(300) as u32;
                known.borrow_mut().pending = Some((number, row.clone()));
                put(&cpu, &database, number, &row).await;
                known.borrow_mut().end();
            }
        });
        self.world.kick(self.id, host.processors[0].id());
        let most = if random.chance(500) { 30_000 } else { 1000 };
        let mut steps = 1 + random.below(most);
        let ended = drive(&self.world, &[&host], || {
            steps -= 1;
            steps == 0 || client.borrow().is_some()
        });
        assert!(ended, "the client waits for ever: {}", self.world.describe());
        self.world.crash(self.id, random.chance(500));
        host.die();
    }
}

fn flip_test(seed: u64) {
    let scene = Scene::new(seed);
    let mut random = Random(seed);
    for _ in 0..1 + random.below(3) {
        scene.live(&mut random);
    }
    let (at, bits) = if random.chance(300) {
        (random.below(SUPERBLOCKS), 8 * 100)
    } else {
        (SUPERBLOCKS + random.below(LOG_PAGES), 8 * 1000)
    };
    let bit = random.below(bits);
    let known = Rc::clone(&scene.known);
    let (host, volume) = scene.boot();
    let is_open = run(&scene.world, &host, async move |cpu| {
        flip(&cpu, &volume, at, bit).await;
        let database = match Database::open(&cpu, Arc::clone(&volume)).await {
            Ok(database) => database,
            Err(error) => {
                // Where the mark of the only superblock is hit.
                assert!(is_damage(&error) || matches!(error, OpenError::NotADatabase), "{error}");
                return false;
            }
        };
        let found = rows(&cpu, &database).await;
        let known = &mut *known.borrow_mut();
        // Damage of the last group cannot be told from a write that was torn.
        let is_known = [&known.before, &known.rows, &known.with_pending()].contains(&&found);
        assert!(is_known, "the rows after bit {bit} of page {at} was flipped");
        (known.rows, known.pending) = (found, None);
        true
    });
    scene.world.crash(scene.id, true);
    host.die();
    if is_open {
        scene.live(&mut random);
        scene.live(&mut random);
    }
}

#[test]
fn a_flipped_bit_is_told_or_takes_no_more_than_the_last_group() {
    for_seeds("a_flipped_bit_is_told_or_takes_no_more_than_the_last_group", 60, flip_test);
}
