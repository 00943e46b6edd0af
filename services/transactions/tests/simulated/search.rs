//! Searches: the first row of a range, or the last.

use std::ops::Bound;
use std::sync::Arc;

use kernel::ForcedUnitAccess;
use testkit::scene::disk::Server;
use transactions::store::{Database, Transaction};

const ROWS: u16 = 3000;

/// Puts the rows that are to be there, and deletes those that are not.
fn fill(database: &Arc<Database>, is_there: impl Fn(u16) -> Option<bool>) -> Transaction {
    let mut transaction = database.begin();
    let table = transaction.table("rows").expect("a table");
    for key in 0..ROWS {
        match is_there(key) {
            Some(true) => transaction.put(table, &key.to_be_bytes(), b"row").expect("short"),
            Some(false) => transaction.delete(table, &key.to_be_bytes()).expect("short"),
            None => {}
        }
    }
    transaction
}

/// What a search passes over lies in the transaction, in what was committed since the last checkpoint, and in the tree.
#[test]
fn a_search_finds_what_is_not_deleted_behind_any_number_of_deleted_rows() {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, Arc::clone(&volume)).await.expect("a new database");
        // In the tree: two of three.
        let stored = fill(&database, |key| (!key.is_multiple_of(3)).then_some(true));
        stored.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        database.close(&cpu).await.expect("a disk that works");
        let database = Database::open(&cpu, volume).await.expect("a database");
        let committed = |key: u16| match key {
            10..=1500 => Some(false),
            1800..=2200 => Some(key.is_multiple_of(7)),
            _ => None,
        };
        let transaction = fill(&database, committed);
        transaction.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a disk that works");
        let own = |key: u16| match key {
            700 | 2900 => Some(true),
            1400..=1790 | 2210..=2890 => Some(false),
            _ => None,
        };
        let is_there = |key: u16| own(key).or(committed(key)).unwrap_or(!key.is_multiple_of(3));
        let mut transaction = fill(&database, own);
        let table = transaction.table("rows").expect("a table");
        let mut all: Vec<u16> = (0..ROWS).filter(|key| is_there(*key)).collect();
        for backwards in [false, true] {
            let mut found = Vec::new();
            loop {
                let last = found.last().map(|key: &u16| key.to_be_bytes());
                let bound = last.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(&last[..]));
                let range = if backwards { (Bound::Unbounded, bound) } else { (bound, Bound::Unbounded) };
                let next = transaction.next(&cpu, table, range, backwards).await.expect("a disk that works");
                let Some((key, _)) = next else { break };
                found.push(u16::from_be_bytes((*key).try_into().expect("2 bytes")));
            }
            assert_eq!(found, all, "backwards: {backwards}");
            all.reverse();
        }
    });
}
