//! Transactions are serializable, and what was acknowledged survives every crash.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use kernel::Processor;
use sim::{DiskConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{add_faults, drawn_switches, open_disk};
use testkit::scene::{Host, drive, run, small_kernel, spawn};
use transactions::store::{Database, KEY_BYTES_MAX, ROW_BYTES_MAX, Sequence, StoreError, TableNo, Transaction};

use crate::history::{Committed, History, Read, Rows};

const DISK_BYTES: u64 = 8 << 20;
const CACHE_BYTES: u64 = 2 << 20;
const TABLES: [&str; 2] = ["accounts", "orders"];

/// How a run is made.
#[derive(Clone, Copy)]
struct Plan {
    is_faulty: bool,
    clients: u64,
    lives: u64,
    /// Transactions of each client in each life.
    transactions: u64,
    /// Different keys.
    keys: u64,
    /// Rows are this long, at most.
    row_max: u64,
    /// Of a transaction, at most.
    operations: u64,
}

const FEW_KEYS: Plan =
    Plan { is_faulty: false, clients: 4, lives: 3, transactions: 40, keys: 40, row_max: 40, operations: 6 };

/// So much is written that checkpoints come one after the other, and the log goes round.
const MUCH: Plan =
    Plan { clients: 8, lives: 2, transactions: 150, keys: 1500, row_max: 1000, operations: 16, ..FEW_KEYS };

fn key(number: u64, plan: Plan) -> Vec<u8> {
    let mut key = format!("{number:05}").into_bytes();
    // Some are as long as they may be.
    if number.is_multiple_of(17) && plan.row_max > 500 {
        key.resize(KEY_BYTES_MAX, b'k');
    }
    key
}

/// One random transaction.
async fn transact(
    cpu: &Processor,
    database: &Arc<Database>,
    history: &RefCell<History>,
    random: &mut Random,
    plan: Plan,
) -> Result<(), StoreError> {
    let mut transaction = database.begin();
    let (mut reads, mut writes) = (Vec::new(), BTreeMap::new());
    for _ in 0..1 + random.below(plan.operations) {
        let table = transaction.table(TABLES[random.index(TABLES.len())])?;
        let name = (table, key(random.below(plan.keys), plan));
        match random.below(10) {
            0..3 => read(cpu, &mut transaction, &name, &writes, &mut reads).await?,
            3..5 => read_next(cpu, &mut transaction, &name, &writes, &mut reads, random).await?,
            5..7 => {
                transaction.delete(table, &name.1)?;
                writes.insert(name, None);
            }
            _ => {
                let len = if random.chance(20) { ROW_BYTES_MAX as u64 } else { random.below(plan.row_max) };
                let row: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                transaction.put(table, &name.1, &row)?;
                writes.insert(name, Some(row));
            }
        }
        if random.chance(200) {
            cpu.sleep(std::time::Duration::from_micros(random.below(300))).await;
        }
        if plan.row_max > 500 && random.chance(3) {
            // Longer than a checkpoint.
            cpu.sleep(std::time::Duration::from_millis(random.below(3000))).await;
        }
    }
    let commit = match transaction.commit(cpu).await {
        Ok(commit) => commit,
        Err(transactions::store::CommitError::Conflict(_)) => {
            history.borrow_mut().conflicts += 1;
            return Ok(());
        }
        Err(transactions::store::CommitError::Store(error)) => return Err(error),
    };
    let seen = commit.sequence();
    let at = if writes.is_empty() { history.borrow().commits() } else { seen };
    history.borrow_mut().committed.push(Committed { at, reads, writes: writes.into_iter().collect() });
    commit.durable(cpu).await?;
    let mut history = history.borrow_mut();
    history.told = history.told.max(seen);
    Ok(())
}

async fn read(
    cpu: &Processor,
    transaction: &mut Transaction,
    name: &(TableNo, Vec<u8>),
    writes: &BTreeMap<(TableNo, Vec<u8>), Option<Vec<u8>>>,
    reads: &mut Vec<Read>,
) -> Result<(), StoreError> {
    let row = transaction.get(cpu, name.0, &name.1).await?.map(|row| row.to_vec());
    match writes.get(name) {
        Some(own) => assert_eq!(*own, row, "a transaction reads what it wrote"),
        None => reads.push(Read::Key(name.clone(), row)),
    }
    Ok(())
}

async fn read_next(
    cpu: &Processor,
    transaction: &mut Transaction,
    name: &(TableNo, Vec<u8>),
    writes: &BTreeMap<(TableNo, Vec<u8>), Option<Vec<u8>>>,
    reads: &mut Vec<Read>,
    random: &mut Random,
) -> Result<(), StoreError> {
    let (table, from, backwards) = (name.0, name.1.clone(), random.chance(500));
    let mut to = from.clone();
    to[4] = b'9' + 1;
    let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
    let found = transaction.next(cpu, table, range, backwards).await?;
    let found = found.map(|(key, row)| (key.to_vec(), row.to_vec()));
    // What it wrote itself is looked at by the other tests.
    if !writes.keys().any(|(of, key)| *of == table && *key >= from && *key < to) {
        reads.push(Read::Next { table, from, to, backwards, found });
    }
    Ok(())
}

/// All rows.
async fn rows(cpu: &Processor, database: &Arc<Database>, plan: Plan) -> Rows {
    let mut rows = Rows::new();
    for name in TABLES {
        let mut from = Vec::new();
        loop {
            let mut transaction = database.begin();
            let table = transaction.table(name).expect("a table");
            let range = (Bound::Excluded(from.as_slice()), Bound::Unbounded);
            let Some((key, row)) = transaction.next(cpu, table, range, false).await.expect("a disk that works") else {
                break;
            };
            from = key.to_vec();
            rows.insert((table, key.to_vec()), row.to_vec());
            assert!(rows.len() as u64 <= 2 * plan.keys, "more rows than keys");
        }
    }
    rows
}

fn crash_test(seed: u64, plan: Plan) {
    let mut random = Random(seed);
    let world = World::new(seed);
    let id = world.add_host("server");
    let mut config = DiskConfig::drawn(DISK_BYTES, seed);
    if plan.is_faulty {
        add_faults(&mut config, &mut random);
        // An error during recovery would only end it; that has a test of its own.
        config.faults.read_error_permille = 0;
    }
    let faults = config.faults;
    let disk = world.add_disk(id, config);
    let history = Rc::new(RefCell::new(History::default()));
    for life in 0..=plan.lives {
        world.set_faults(disk, Default::default());
        let host =
            Host::boot(&world, id, small_kernel(1 + (seed % 2) as u16, CACHE_BYTES, drawn_switches(seed + life)));
        let volume = open_disk(&world, &host, disk, seed);
        let known = Rc::clone(&history);
        let opened = Arc::clone(&volume);
        let database = run(&world, &host, async move |cpu| {
            let database = Database::open(&cpu, opened).await.expect("a database");
            known.borrow_mut().cut(Sequence(database.reading().commits));
            assert_eq!(rows(&cpu, &database, plan).await, known.borrow().check(), "the rows after a crash");
            database
        });
        if life == plan.lives {
            drop(database);
            drop(volume);
            host.die();
            break;
        }
        world.set_faults(disk, faults);
        let tasks: Vec<_> = (0..plan.clients)
            .map(|client| {
                let (database, history) = (Arc::clone(&database), Rc::clone(&history));
                let mut own = Random(random.next());
                let processor = &host.processors[client as usize % host.processors.len()];
                spawn(processor, async move |cpu| {
                    for _ in 0..plan.transactions {
                        if transact(&cpu, &database, &history, &mut own, plan).await.is_err() {
                            cpu.sleep(std::time::Duration::from_millis(50)).await;
                        }
                    }
                })
            })
            .collect();
        host.processors.iter().for_each(|cpu| world.kick(id, cpu.id()));
        let mut steps = if random.chance(300) {
            u64::MAX
        } else {
            200 + random.below(if plan.row_max > 500 { 30_000 } else { 6000 })
        };
        let ended = drive(&world, &[&host], || {
            steps -= 1;
            steps == 0 || tasks.iter().all(|task| task.borrow().is_some())
        });
        assert!(ended, "somebody waits for ever: {}", world.describe());
        if steps > 0 && random.chance(300) {
            world.set_faults(disk, Default::default());
            let (closing, volume) = (Arc::clone(&database), Arc::clone(&volume));
            run(&world, &host, async move |cpu| {
                while let Err(error) = closing.close(&cpu).await {
                    assert!(plan.is_faulty, "{error}");
                    if volume.loss().is_some() {
                        // The volume has given up: only a new start finds what is durable.
                        return;
                    }
                    cpu.sleep(std::time::Duration::from_secs(1)).await;
                }
                assert_eq!(closing.reading().unmerged_bytes, 0, "a clean end leaves nothing to replay");
            });
        }
        drop((database, volume));
        world.crash(id, random.chance(700));
        host.die();
    }
    let history = history.borrow();
    println!("seed {seed}: {} commits, {} conflicts", history.committed.len(), history.conflicts);
}

#[test]
fn transactions_are_serializable_and_survive_every_crash() {
    for_seeds("transactions_are_serializable_and_survive_every_crash", 60, |seed| crash_test(seed, FEW_KEYS));
}

#[test]
fn transactions_survive_crashes_of_a_failing_disk() {
    for_seeds("transactions_survive_crashes_of_a_failing_disk", 60, |seed| {
        crash_test(seed, Plan { is_faulty: true, ..FEW_KEYS });
    });
}

#[test]
fn checkpoints_and_a_full_log_lose_nothing() {
    for_seeds("checkpoints_and_a_full_log_lose_nothing", 15, |seed| {
        crash_test(seed, Plan { is_faulty: seed % 3 == 2, ..MUCH });
    });
}
