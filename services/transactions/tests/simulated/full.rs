//! A database that is nearly full goes on: what it takes, checkpoints can put into the tree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Switches};
use sim::{DiskConfig, DiskId, HostId, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::open_disk;
use testkit::scene::{Host, drive, run, small_kernel, spawn};
use transactions::store::{CommitError, DATABASE_BYTES_MIN, Database, KEY_BYTES_MAX, StoreError};

use crate::rows::rows;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Change = (Vec<u8>, Option<Vec<u8>>);

/// A host with a disk of the smallest size.
struct Scene {
    world: World,
    id: HostId,
    disk: DiskId,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed);
        let id = world.add_host("server");
        let disk = world.add_disk(id, DiskConfig::new(DATABASE_BYTES_MIN));
        Scene { world, id, disk }
    }

    /// The host starts, and opens the database or makes one.
    fn start(&self) -> (Host, Arc<Database>) {
        let host = Host::boot(&self.world, self.id, small_kernel(1, 4 << 20, Switches::default()));
        let volume = open_disk(&self.world, &host, self.disk, 0);
        let database =
            run(&self.world, &host, async move |cpu| Database::open(&cpu, volume).await.expect("a database"));
        (host, database)
    }

    fn cut_power(&self, host: Host) {
        self.world.crash(self.id, true);
        host.die();
    }
}

fn long_key(number: u32) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(KEY_BYTES_MAX, b'k');
    key
}

async fn change(cpu: &Processor, database: &Arc<Database>, changes: &[Change]) -> Result<(), CommitError> {
    let mut transaction = database.begin();
    let table = transaction.table("rows")?;
    for (key, row) in changes {
        match row {
            Some(row) => transaction.put(table, key, row)?,
            None => transaction.delete(table, key)?,
        }
    }
    Ok(transaction.commit(cpu).await?.durable(cpu).await?)
}

/// Puts rows, at first many at a time, until there is no room for one more.
async fn fill_up(cpu: &Processor, database: &Arc<Database>, mut row: impl FnMut(u32) -> (Vec<u8>, Vec<u8>)) -> Rows {
    let (mut filled, mut number) = (Rows::new(), 0);
    for at_once in [50, 1] {
        loop {
            let rows: Rows = (number..number + at_once).map(&mut row).collect();
            let changes: Vec<_> = rows.iter().map(|(key, row)| (key.clone(), Some(row.clone()))).collect();
            match change(cpu, database, &changes).await {
                Ok(()) => filled.extend(rows),
                Err(CommitError::Store(StoreError::Full)) => break,
                Err(error) => panic!("{error}"),
            }
            number += at_once;
        }
    }
    filled
}

async fn all(cpu: &Processor, database: &Arc<Database>) -> Rows {
    rows(cpu, database).await.into_iter().collect()
}

/// Far from each other, and with long keys, so that there are many inner pages: to put the deletions into the tree takes
/// more pages than are free.
#[test]
fn scattered_deletions_of_a_full_database_go_on_and_survive_a_crash_between_parts_of_a_checkpoint() {
    let scene = Scene::new(1);
    let (host, database) = scene.start();
    let told = Rc::new(RefCell::new(Rows::new()));
    let acknowledged = Rc::clone(&told);

    let is_between_parts = run(&scene.world, &host, async move |cpu| {
        let filled = fill_up(&cpu, &database, |number| (long_key(number), vec![7; 8])).await;
        // More than are in memory at a time: a checkpoint is needed in between.
        let keys = [0, 58].map(|first| filled.keys().skip(first).step_by(116).cloned().collect::<Vec<_>>()).concat();
        acknowledged.replace(filled);
        let deleting = Arc::clone(&database);
        let deleted = spawn(&cpu, async move |cpu| {
            for key in keys {
                change(&cpu, &deleting, &[(key.clone(), None)]).await.expect("deletions are possible");
                acknowledged.borrow_mut().remove(&key);
            }
        });
        let mut before = database.reading();
        loop {
            cpu.sleep(Duration::from_micros(10)).await;
            let now = database.reading();
            if now.checkpoints > before.checkpoints && now.unmerged_bytes >= before.unmerged_bytes {
                return true;
            }
            if deleted.borrow().is_some() {
                return false;
            }
            before = now;
        }
    });
    assert!(is_between_parts, "no checkpoint had too little space");
    scene.cut_power(host);
    let (host, database) = scene.start();
    run(&scene.world, &host, async move |cpu| {
        let (mut found, told) = (all(&cpu, &database).await, told.take());
        // The one that was under way may be there, or not.
        let missing: Vec<_> = told.keys().filter(|key| !found.contains_key(*key)).cloned().collect();
        assert!(missing.len() <= 1 && found.keys().all(|key| told.contains_key(key)), "{} are missing", missing.len());
        let keys: Vec<Vec<u8>> = found.keys().step_by(59).cloned().collect();
        let deadline = cpu.now() + Duration::from_secs(600);
        for key in keys {
            change(&cpu, &database, &[(key.clone(), None)]).await.expect("deletions are possible");
            found.remove(&key);
            assert!(cpu.now() < deadline, "it goes on");
        }
        assert_eq!(all(&cpu, &database).await, found);
        database.close(&cpu).await.expect("a disk that works");
    });
}

/// What a client knows of the rows.
#[derive(Default)]
struct Known {
    rows: Rows,
    /// What was not acknowledged.
    pending: Vec<Change>,
}

impl Known {
    fn begin(&mut self, changes: &[Change]) {
        self.pending = changes.to_vec();
    }

    fn end(&mut self, is_committed: bool) {
        for (key, row) in std::mem::take(&mut self.pending).into_iter().filter(|_| is_committed) {
            match row {
                Some(row) => drop(self.rows.insert(key, row)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }
}

/// Writes and deletes rows of the full database.
async fn transact(cpu: &Processor, database: &Arc<Database>, known: &RefCell<Known>, mut random: Random, row_max: u64) {
    let keys: Vec<_> = known.borrow().rows.keys().cloned().collect();
    for _ in 0..300 {
        let only_deletes = random.chance(600);
        let mut changes = BTreeMap::new();
        for _ in 0..1 + random.below(8) {
            let row = (!only_deletes && random.chance(700)).then(|| content(&mut random, row_max));
            changes.insert(keys[random.index(keys.len())].clone(), row);
        }
        let changes: Vec<Change> = changes.into_iter().collect();
        known.borrow_mut().begin(&changes);
        let done = change(cpu, database, &changes).await;
        let is_refused = done == Err(CommitError::Store(StoreError::Full));
        assert!(done.is_ok() || is_refused && !only_deletes, "{done:?}");
        known.borrow_mut().end(!is_refused);
    }
}

fn content(random: &mut Random, row_max: u64) -> Vec<u8> {
    (0..random.below(row_max)).map(|_| random.next() as u8).collect()
}

fn crash_test(seed: u64) {
    const LIVES: u32 = 3;
    let scene = Scene::new(seed);
    let mut random = Random(seed);
    let (long_permille, row_max) = (random.below(1001) as u32, 200 + random.below(800));
    let known: Rc<RefCell<Known>> = Rc::default();
    for life in 0..=LIVES {
        let (host, database) = scene.start();
        let (opened, model) = (Arc::clone(&database), Rc::clone(&known));
        let mut own = Random(random.next());
        run(&scene.world, &host, async move |cpu| {
            if life == 0 {
                let row = |number: u32| {
                    let is_long = number.wrapping_mul(7919) % 1000 < long_permille;
                    let key = if is_long { long_key(number) } else { number.to_be_bytes().to_vec() };
                    (key, content(&mut own, row_max))
                };
                model.borrow_mut().rows = fill_up(&cpu, &opened, row).await;
                return;
            }
            let found = all(&cpu, &opened).await;
            let is_there = found != model.borrow().rows;
            model.borrow_mut().end(is_there);
            assert!(found == model.borrow().rows, "the rows after a crash");
        });
        if life == LIVES {
            drop(database);
            scene.cut_power(host);
            return;
        }
        let (own, model) = (Random(random.next()), Rc::clone(&known));
        let client = spawn(&host.processors[0], async move |cpu| transact(&cpu, &database, &model, own, row_max).await);
        scene.world.kick(scene.id, host.processors[0].id());
        let mut steps = random.below(40_000);
        let ended = drive(&scene.world, &[&host], || {
            steps = steps.saturating_sub(1);
            steps == 0 || client.borrow().is_some()
        });
        assert!(ended, "the client waits for ever: {}", scene.world.describe());
        scene.cut_power(host);
    }
}

#[test]
fn a_full_database_takes_deletions_and_survives_crashes() {
    for_seeds("a_full_database_takes_deletions_and_survives_crashes", 6, crash_test);
}
