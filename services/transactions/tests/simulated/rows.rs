//! What a database has.

use std::ops::Bound;
use std::sync::Arc;

use kernel::Processor;
use transactions::store::Database;

/// The rows of the table `rows`, in the order of their keys, each read by a transaction of its own.
pub async fn rows(cpu: &Processor, database: &Arc<Database>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut rows, mut from) = (Vec::new(), Vec::new());
    loop {
        let mut transaction = database.begin();
        let table = transaction.table("rows").expect("a table");
        let range = (Bound::Excluded(from.as_slice()), Bound::Unbounded);
        let Some((key, row)) = transaction.next(cpu, table, range, false).await.expect("a disk that works") else {
            return rows;
        };
        from = key.to_vec();
        rows.push((from.clone(), row.to_vec()));
    }
}
