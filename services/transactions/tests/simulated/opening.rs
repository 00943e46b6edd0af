//! What is opened as a database, what is refused, and a database that is full.

use std::ops::Range;
use std::sync::Arc;

use kernel::volume::VOLUME_BYTES_MAX;
use kernel::{ForcedUnitAccess, Processor, Volume};
use sim::DiskConfig;
use testkit::scene::disk::{Server, block, fill};
use testkit::scene::stable;
use transactions::store::{CommitError, DATABASE_BYTES_MAX, DATABASE_BYTES_MIN, Database, OpenError, StoreError};

use crate::rows::rows;

fn server(bytes: u64) -> (Server, Arc<Volume>) {
    let server = Server::with_disk(1, DiskConfig::new(bytes));
    let volume = server.volume(ForcedUnitAccess::Never);
    (server, volume)
}

async fn put(cpu: &Processor, database: &Arc<Database>, number: u32, row: &[u8]) -> Result<(), CommitError> {
    let mut transaction = database.begin();
    let table = transaction.table("rows")?;
    transaction.put(table, &number.to_be_bytes(), row)?;
    Ok(transaction.commit(cpu).await?.durable(cpu).await?)
}

#[test]
fn what_is_too_small_too_large_or_something_else_is_refused_and_left_alone() {
    let (small, volume) = server(DATABASE_BYTES_MIN - 4096);
    let refused = small.run(async move |cpu, _, _| Database::open(&cpu, volume).await.err());
    assert_eq!(refused, Some(OpenError::TooSmall(DATABASE_BYTES_MIN - 4096)));

    // The largest volume would need a map of pages larger than all memory.
    for bytes in [VOLUME_BYTES_MAX, DATABASE_BYTES_MAX + 4096] {
        let (large, volume) = server(bytes);
        let refused = large.run(async move |cpu, _, _| Database::open(&cpu, volume).await.err());
        assert_eq!(refused, Some(OpenError::TooLarge(bytes)));
    }

    let (server, volume) = server(DATABASE_BYTES_MIN);
    let refused = server.run(async move |cpu, _, _| {
        fill(&cpu, &volume, block(1), 7, stable()).await.expect("a disk that works");
        let refused = Database::open(&cpu, Arc::clone(&volume)).await.err();
        assert_eq!(volume.read(&cpu, block(1), stable()).await.expect("a block")[0].bytes(), [7; 4096]);
        refused
    });
    assert_eq!(refused, Some(OpenError::NotADatabase));
}

#[test]
fn a_database_that_is_damaged_or_shorter_than_it_was_is_refused() {
    let (server, volume) = server(2 * DATABASE_BYTES_MIN);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        put(&cpu, &database, 1, b"one").await.expect("room");
        let shorter = Server::with_disk(1, DiskConfig::new(DATABASE_BYTES_MIN));
        let first = volume.read(&cpu, block(1), stable()).await.expect("the first superblock")[0].bytes().to_vec();
        let short = shorter.volume(ForcedUnitAccess::Never);
        let copied = first.clone();
        let refused = shorter.run(async move |cpu, _, _| {
            let mut frames = cpu.kernel().allocate(&cpu, 1).await;
            frames[0].bytes_mut().expect("unshared").copy_from_slice(&copied);
            short.write(&cpu, block(1), frames, stable()).await.expect("a disk that works");
            Database::open(&cpu, short).await.err()
        });
        assert_eq!(refused, Some(OpenError::Shrunk { has: DATABASE_BYTES_MIN, needs: 2 * DATABASE_BYTES_MIN }));
        // One bit of the only superblock.
        let mut frames = cpu.kernel().allocate(&cpu, 1).await;
        let bytes = frames[0].bytes_mut().expect("unshared");
        bytes.copy_from_slice(&first);
        bytes[40] ^= 1;
        volume.write(&cpu, block(1), frames, stable()).await.expect("a disk that works");
        let refused = Database::open(&cpu, volume).await.err();
        assert!(matches!(refused, Some(OpenError::Damaged(_))), "{refused:?}");
    });
}

#[test]
fn a_page_that_is_not_what_was_written_is_an_error_and_not_a_wrong_row() {
    let (server, volume) = server(DATABASE_BYTES_MIN);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        put(&cpu, &database, 1, b"one").await.expect("room");
        database.close(&cpu).await.expect("a disk that works");
        drop(database);
        let pages = DATABASE_BYTES_MIN / 4096;
        for page in 260..pages {
            let frames = volume.read(&cpu, block(page), stable()).await.expect("a block");
            if frames[0].bytes().iter().any(|byte| *byte != 0) {
                fill(&cpu, &volume, block(page), 1, stable()).await.expect("a disk that works");
            }
        }
        let refused = Database::open(&cpu, volume).await.err();
        assert!(matches!(refused, Some(OpenError::Store(StoreError::Damaged(_)))), "{refused:?}");
    });
}

/// Puts rows until there is no room for one more. Returns how many there are.
async fn fill_up(cpu: &Processor, database: &Arc<Database>, row: &[u8]) -> u32 {
    let mut filled = 0;
    while put(cpu, database, filled, row).await.is_ok() {
        filled += 1;
    }
    filled
}

#[test]
fn a_full_database_refuses_new_rows_and_takes_them_again_after_deletions() {
    let (server, volume) = server(DATABASE_BYTES_MIN);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        let row = [7; 1000];
        let filled = fill_up(&cpu, &database, &row).await;
        assert_eq!(put(&cpu, &database, filled, &row).await, Err(CommitError::Store(StoreError::Full)));
        // A third of the volume at least is of use: a tree is replaced page by page.
        assert!(u64::from(filled) * 1000 > DATABASE_BYTES_MIN / 3, "full after {filled} rows");
        drop(database);
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a database that is full");
        for number in 0..filled / 2 {
            let mut transaction = database.begin();
            let table = transaction.table("rows").expect("a table");
            transaction.delete(table, &number.to_be_bytes()).expect("short");
            let commit = transaction.commit(&cpu).await.expect("deletions are possible");
            commit.durable(&cpu).await.expect("a disk that works");
        }
        for number in 0..filled / 4 {
            put(&cpu, &database, number, &row).await.expect("room again");
        }
        assert_eq!(rows(&cpu, &database).await.len() as u32, filled - filled / 2 + filled / 4);
    });
}

/// Changes these rows, or deletes them.
async fn change(
    cpu: &Processor,
    database: &Arc<Database>,
    rows: Range<u32>,
    row: Option<&[u8]>,
) -> Result<(), CommitError> {
    let mut transaction = database.begin();
    let table = transaction.table("rows")?;
    for number in rows {
        match row {
            Some(row) => transaction.put(table, &number.to_be_bytes(), row)?,
            None => transaction.delete(table, &number.to_be_bytes())?,
        }
    }
    Ok(transaction.commit(cpu).await?.durable(cpu).await?)
}

#[test]
fn what_a_nearly_full_database_refuses_it_refuses_after_a_restart_too() {
    let (server, volume) = server(DATABASE_BYTES_MIN);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        let row = [7; 1000];
        let mut filled = fill_up(&cpu, &database, &row).await;
        while change(&cpu, &database, 0..40, Some(&row)).await.is_err() {
            change(&cpu, &database, filled - 20..filled, None).await.expect("deletions are possible");
            filled -= 20;
        }
        let mut rows = 40;
        while change(&cpu, &database, 0..rows, Some(&row)).await.is_ok() {
            rows += 1;
        }
        drop(database);
        let database = Database::open(&cpu, volume).await.expect("a database that is nearly full");
        let again = change(&cpu, &database, 0..rows, Some(&row)).await;
        assert_eq!(again, Err(CommitError::Store(StoreError::Full)), "{rows} rows");
    });
}
