//! Tables by name.

use std::sync::Arc;

use kernel::ForcedUnitAccess;
use sim::DiskConfig;
use testkit::scene::disk::Server;
use transactions::store::{CommitError, Conflict, DATABASE_BYTES_MIN, Database, Transaction};

/// More names than are remembered without a row.
const NAMES: usize = 5000;

fn ask_for_many(transaction: &mut Transaction) {
    for name in 0..NAMES {
        transaction.table(&format!("unused {name}")).expect("a table");
    }
}

#[test]
fn names_that_nobody_writes_take_no_places() {
    let server = Server::with_disk(1, DiskConfig::new(DATABASE_BYTES_MIN));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        let mut first = database.begin();
        let rows = first.table("rows").expect("a table");
        first.put(rows, b"key", b"row").expect("short");
        first.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        ask_for_many(&mut database.begin());
        let mut second = database.begin();
        assert_eq!(second.table("rows"), Ok(rows), "a table with rows keeps its number");
        let new = second.table("new").expect("a place");
        second.put(new, b"key", b"row").expect("short");
        second.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        database.close(&cpu).await.expect("a disk that works");
        let again = Database::open(&cpu, volume).await.expect("a database");
        let mut third = again.begin();
        assert_eq!((third.table("rows"), third.table("new")), (Ok(rows), Ok(new)));
    });
}

#[test]
fn a_transaction_whose_table_was_forgotten_conflicts() {
    let server = Server::with_disk(1, DiskConfig::new(DATABASE_BYTES_MIN));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, volume).await.expect("a new database");
        let mut slow = database.begin();
        let before = slow.table("rows").expect("a table");
        assert_eq!(slow.get(&cpu, before, b"key").await, Ok(None));
        ask_for_many(&mut database.begin());
        let mut quick = database.begin();
        let after = quick.table("rows").expect("a table");
        assert_ne!(before, after);
        quick.put(after, b"key", b"row").expect("short");
        quick.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        let seen = slow.table("rows").expect("a table");
        slow.put(seen, b"other", b"row").expect("short");
        assert_eq!(
            slow.commit(&cpu).await.err(),
            Some(CommitError::Conflict(Conflict)),
            "it has read that there is no row"
        );
    });
}

#[test]
fn a_database_with_many_tables_of_long_names_opens_again_from_its_log_and_from_its_tree() {
    /// More names than one transaction may read.
    const TABLES: u32 = 1000;
    let server = Server::with_disk(1, DiskConfig::new(DATABASE_BYTES_MIN));
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let name = |number: u32| format!("{number:064}");
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        let mut transaction = database.begin();
        let mut numbers = Vec::new();
        for number in 0..TABLES {
            let table = transaction.table(&name(number)).expect("a table");
            transaction.put(table, b"key", b"row").expect("short");
            numbers.push(table);
        }
        transaction.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        drop(database);
        let check = |database: &Arc<Database>| {
            let mut transaction = database.begin();
            for number in [0, TABLES - 1] {
                assert_eq!(transaction.table(&name(number)), Ok(numbers[number as usize]));
            }
        };
        let from_log = Database::open(&cpu, Arc::clone(&volume)).await.expect("a database");
        check(&from_log);
        from_log.close(&cpu).await.expect("a disk that works");
        check(&Database::open(&cpu, volume).await.expect("a database"));
    });
}
