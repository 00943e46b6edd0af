//! Checkpoints that take long: the log fills meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::device::{Checked, Device, DeviceFacts, DeviceRef, FileDevice, Work};
use kernel::request::{Action, Outcome, Request};
use kernel::{ForcedUnitAccess, Processor, Switches};
use policy::unit::BLOCK_BYTES;
use sim::{DiskConfig, DiskId, HostId, World};
use testkit::scene::disk::volume;
use testkit::scene::{Host, run, small_kernel, spawn};
use transactions::store::{Database, StoreError, TRANSACTION_BYTES_MAX, Transaction};

/// A device that keeps superblocks back while it is told so.
struct Held {
    below: DeviceRef,
    is_held: Arc<AtomicBool>,
}

impl Device for Held {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        let is_superblock = matches!(request.action, Action::Write(range, _) if range.at.0 < 2 * BLOCK_BYTES);
        Box::pin(async move {
            while is_superblock && self.is_held.load(Ordering::SeqCst) {
                cpu.sleep(Duration::from_millis(1)).await;
            }
            self.below.perform(cpu, request).await
        })
    }
}

const ROWS: u32 = 8;

/// Writes `value` into all rows.
async fn put_all(cpu: &Processor, database: &Arc<Database>, value: u32) {
    let mut transaction = database.begin();
    let table = transaction.table("rows").expect("a table");
    for row in 0..ROWS {
        let mut content = vec![7; 1000];
        content[..4].copy_from_slice(&value.to_le_bytes());
        transaction.put(table, &row.to_be_bytes(), &content).expect("short");
    }
    transaction.commit(cpu).await.expect("no conflict").durable(cpu).await.expect("a disk that works");
}

async fn value(cpu: &Processor, transaction: &mut Transaction, row: u32) -> Result<u32, StoreError> {
    let table = transaction.table("rows")?;
    let content = transaction.get(cpu, table, &row.to_be_bytes()).await?.expect("a row");
    Ok(u32::from_le_bytes(content[..4].try_into().expect("4 bytes")))
}

/// A disk of 8 MiB that works.
fn world() -> (World, HostId, DiskId) {
    let world = World::new(1);
    let id = world.add_host("server");
    let disk = world.add_disk(id, DiskConfig::new(8 << 20));
    (world, id, disk)
}

/// Opens the database on the disk, or makes one.
fn with_database_on<T: 'static>(
    (world, id, disk): &(World, HostId, DiskId),
    test: impl AsyncFnOnce(Processor, Arc<Database>) -> T + 'static,
) -> (Host, T) {
    let host = Host::boot(world, *id, small_kernel(1, 4 << 20, Switches::default()));
    let file = Arc::new(FileDevice::new(world.open(*disk, true)));
    let opened = volume(&host.kernel, Arc::new(Checked::new(file)), ForcedUnitAccess::Never);
    let result = run(world, &host, async move |cpu| {
        let database = Database::open(&cpu, opened).await.expect("a database");
        test(cpu, database).await
    });
    (host, result)
}

/// On a new database.
fn with_database(test: impl AsyncFnOnce(Processor, Arc<Database>) + 'static) {
    let _ended = with_database_on(&world(), test);
}

#[test]
fn a_log_that_fills_during_a_checkpoint_makes_writers_wait_and_loses_nothing() {
    let world = World::new(1);
    let id = world.add_host("server");
    let disk = world.add_disk(id, DiskConfig::new(8 << 20));
    let is_held = Arc::new(AtomicBool::new(false));
    let host = Host::boot(&world, id, small_kernel(1, 4 << 20, Switches::default()));
    let file = Arc::new(FileDevice::new(world.open(disk, true)));
    let device = Held { below: Arc::new(Checked::new(file)), is_held: Arc::clone(&is_held) };
    let held = volume(&host.kernel, Arc::new(device), ForcedUnitAccess::Never);
    let told = Rc::new(Cell::new(0));
    let acknowledged = Rc::clone(&told);
    let was_told = run(&world, &host, async move |cpu| {
        let database = Database::open(&cpu, held).await.expect("a new database");
        let writing = Arc::clone(&database);
        let told = Rc::clone(&acknowledged);
        let _writer = spawn(&cpu, async move |cpu| {
            for value in 1.. {
                put_all(&cpu, &writing, value).await;
                told.set(value);
            }
        });
        // Two checkpoints that take as long as it takes to fill the log.
        for checkpoints in 0..2 {
            is_held.store(true, Ordering::SeqCst);
            let mut before = u32::MAX;
            while before != acknowledged.get() {
                before = acknowledged.get();
                cpu.sleep(Duration::from_secs(2)).await;
            }
            assert_eq!(database.reading().checkpoints, checkpoints);
            if checkpoints == 0 {
                is_held.store(false, Ordering::SeqCst);
                while database.reading().checkpoints == 0 {
                    cpu.sleep(Duration::from_millis(1)).await;
                }
            }
        }
        acknowledged.get()
    });
    world.crash(id, true);
    host.die();
    let host = Host::boot(&world, id, small_kernel(1, 4 << 20, Switches::default()));
    let file = Arc::new(FileDevice::new(world.open(disk, true)));
    let opened = volume(&host.kernel, Arc::new(Checked::new(file)), ForcedUnitAccess::Never);
    run(&world, &host, async move |cpu| {
        let database = Database::open(&cpu, opened).await.expect("a database");
        let mut transaction = database.begin();
        let first = value(&cpu, &mut transaction, 0).await.expect("a disk that works");
        assert!(first >= was_told, "{first} was recovered, {was_told} was acknowledged");
        for row in 1..ROWS {
            assert_eq!(value(&cpu, &mut transaction, row).await, Ok(first), "a transaction is there as a whole");
        }
    });
}

#[test]
fn a_checkpoint_lets_others_run_after_every_few_pages() {
    const PAGES_MAX: u64 = 8;
    with_database(async |cpu, database| {
        let writing = Arc::clone(&database);
        let _writer = spawn(&cpu, async move |cpu| {
            for row in 0_u32..1000 {
                let mut transaction = writing.begin();
                let table = transaction.table("rows").expect("a table");
                transaction.put(table, &row.to_be_bytes(), &[7; 1000]).expect("short");
                transaction.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
            }
        });
        let (mut before, mut steps) = (database.reading().tree_bytes, 0);
        while database.reading().checkpoints == 0 {
            cpu.sleep(Duration::from_micros(100)).await;
            let bytes = database.reading().tree_bytes;
            assert!(bytes - before <= PAGES_MAX * BLOCK_BYTES, "{} bytes at once", bytes - before);
            steps += u32::from(bytes > before);
            before = bytes;
        }
        assert!(steps >= 4, "{before} bytes in {steps} steps");
    });
}

#[test]
fn more_than_the_log_takes_is_durable_though_nobody_commits_after_it() {
    const TERMINALS: u32 = 20;
    with_database(async |cpu, database| {
        let done = Rc::new(Cell::new(0));
        for terminal in 0..TERMINALS {
            let (database, done) = (Arc::clone(&database), Rc::clone(&done));
            cpu.spawn({
                let cpu = cpu.clone();
                async move {
                    let mut transaction = database.begin();
                    let table = transaction.table("rows").expect("a table");
                    for row in 0_u32..100 {
                        let key = (terminal * 100 + row).to_be_bytes();
                        transaction.put(table, &key, &[7; 1000]).expect("short");
                    }
                    let commit = transaction.commit(&cpu).await.expect("no conflict");
                    commit.durable(&cpu).await.expect("a disk that works");
                    done.set(done.get() + 1);
                }
            });
        }
        while done.get() < TERMINALS {
            cpu.sleep(Duration::from_millis(10)).await;
        }
    });
}

/// There is no room for it, neither before the place where the last group ended nor behind it.
#[test]
fn a_group_of_more_than_half_of_the_log_is_written_wherever_the_last_one_ended() {
    const ROWS: u16 = 58_000;
    let place = world();
    let (host, ()) = with_database_on(&place, async |cpu, database| {
        for value in 0..60 {
            put_all(&cpu, &database, value).await;
        }
        let log_pages = database.reading().log_bytes / BLOCK_BYTES;
        assert!((115..=141).contains(&log_pages), "{log_pages} pages");
        let writing = Arc::clone(&database);
        let written = spawn(&cpu, async move |cpu| {
            let mut transaction = writing.begin();
            let table = transaction.table("many").expect("a table");
            (0..ROWS).for_each(|row| transaction.delete(table, &row.to_be_bytes()).expect("short"));
            transaction.put(table, b"last", b"row").expect("short");
            transaction.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        });
        cpu.sleep(Duration::from_secs(60)).await;
        assert!(written.borrow().is_some(), "it waits: {:?}", database.reading());
        put_all(&cpu, &database, 60).await;
    });
    place.0.crash(place.1, true);
    host.die();
    let _ended = with_database_on(&place, async |cpu, database| {
        let mut transaction = database.begin();
        let table = transaction.table("many").expect("a table");
        let row = transaction.get(&cpu, table, b"last").await.expect("a disk that works");
        assert_eq!(row.as_deref(), Some(&b"row"[..]));
        assert_eq!(value(&cpu, &mut transaction, 0).await, Ok(60));
    });
}

/// Each counts 2 bytes, and takes 9 in the log; tables that are new come to it.
#[test]
fn a_transaction_of_the_shortest_writes_fits_into_the_smallest_log() {
    const TABLES: usize = 1024;
    with_database(async |cpu, database| {
        let mut transaction = database.begin();
        for number in 0..TRANSACTION_BYTES_MAX / 2 {
            let table = transaction.table(&format!("{:064}", number % TABLES)).expect("a table");
            transaction.put(table, &[(number / TABLES) as u8], b"").expect("no more than there may be");
        }
        let table = transaction.table(&format!("{:064}", 0)).expect("a table");
        assert_eq!(transaction.put(table, &[255], b""), Err(StoreError::TransactionTooLong));
        let commit = transaction.commit(&cpu).await.expect("no conflict");
        let durable = spawn(&cpu, async move |cpu| commit.durable(&cpu).await);
        cpu.sleep(Duration::from_secs(60)).await;
        assert_eq!(durable.take(), Some(Ok(())));
    });
}

/// Transactions are committed, and in the tree, before the log has room for them.
#[test]
fn what_the_log_does_not_have_is_not_taken_back_by_what_it_has() {
    const TERMINALS: u32 = 20;
    const SHARED: [u8; 4] = u32::MAX.to_be_bytes();
    let place = world();
    let (host, ()) = with_database_on(&place, async |cpu, database| {
        for terminal in 0..TERMINALS {
            let (here, database) = (cpu.clone(), Arc::clone(&database));
            cpu.spawn(async move {
                let mut transaction = database.begin();
                let table = transaction.table("rows").expect("a table");
                transaction.put(table, &SHARED, &terminal.to_le_bytes()).expect("short");
                for row in 0..100 {
                    let key = (terminal * 100 + row).to_be_bytes();
                    transaction.put(table, &key, &[7; 1000]).expect("short");
                }
                let _ = transaction.commit(&here).await.expect("no conflict").durable(&here).await;
            });
        }
        let until = async |condition: &dyn Fn() -> bool| {
            while !condition() {
                cpu.sleep(Duration::from_micros(10)).await;
            }
        };
        until(&|| database.reading().checkpoints > 0).await;
        let before = database.reading();
        until(&|| database.reading().durable > before.durable).await;
        let now = database.reading();
        assert!(now.durable < u64::from(TERMINALS), "the power is cut before all is in the log: {now:?}");
    });
    place.0.crash(place.1, true);
    host.die();
    let _ended = with_database_on(&place, async |cpu, database| {
        let mut transaction = database.begin();
        let shared = value(&cpu, &mut transaction, u32::MAX).await.expect("a disk that works");
        let table = transaction.table("rows").expect("a table");
        for terminal in 0..TERMINALS {
            let key = (terminal * 100).to_be_bytes();
            let is_there = transaction.get(&cpu, table, &key).await.expect("a disk that works").is_some();
            assert_eq!(is_there, terminal <= shared, "terminal {terminal}, and {shared} wrote last");
        }
    });
}
