//! Transactions share flushes.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::ForcedUnitAccess;
use sim::{DiskConfig, Latency};
use testkit::random::Random;
use testkit::scene::disk::Server;
use testkit::scene::spawn;
use transactions::store::Database;

const CLIENTS: u64 = 32;
const FLUSH_MS: u64 = 5;
const TIME: Duration = Duration::from_secs(4);

/// Transactions in [`TIME`] of clients that think between them for so many microseconds.
fn transactions(think_us_min: u64, think_us_max: u64) -> u64 {
    let flush = Latency::us(FLUSH_MS * 1000, FLUSH_MS * 1000);
    let server = Server::with_disk(1, DiskConfig { flush, ..DiskConfig::new(64 << 20) });
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, volume).await.expect("a new database");
        let committed = Rc::new(Cell::new(0));
        for client in 0..CLIENTS {
            let (database, committed) = (Arc::clone(&database), Rc::clone(&committed));
            let _client = spawn(&cpu, async move |cpu| {
                let mut random = Random(client);
                loop {
                    let think = think_us_min + random.below(think_us_max - think_us_min + 1);
                    cpu.sleep(Duration::from_micros(think)).await;
                    let mut transaction = database.begin();
                    let table = transaction.table("rows").expect("a table");
                    transaction.put(table, &client.to_be_bytes(), b"row").expect("short");
                    transaction.commit(&cpu).await.expect("no conflict").durable(&cpu).await.expect("a good disk");
                    committed.set(committed.get() + 1);
                }
            });
        }
        cpu.sleep(TIME).await;
        committed.get()
    })
}

#[test]
fn nearly_all_clients_share_each_flush_whatever_they_think() {
    for (think_us_min, think_us_max) in [(20, 50), (50, 500), (200, 1500), (2000, 2500)] {
        let cycle_us = FLUSH_MS * 1000 + (think_us_min + think_us_max) / 2;
        let limit = CLIENTS * TIME.as_micros() as u64 / cycle_us;
        let done = transactions(think_us_min, think_us_max);
        println!("think {think_us_min} to {think_us_max} µs: {done} of {limit}");
        assert!(done * 10 >= limit * 8, "think {think_us_min} to {think_us_max} µs: {done} of {limit}");
    }
}
