//! Calls that are executed at once, and those that are given up there and executed where they can be suspended.

use kernel::ForcedUnitAccess;
use sim::DiskConfig;
use testkit::scene::disk::Server;
use transactions::store::Database;
use transactions::{Monitor, Value};

use crate::scene::{call, module, programs, with_programs};

/// `add(loops)` adds 1 to a row, then loops; `count()` returns the row.
fn counting() -> String {
    module(
        "add(loops bigint) returns bigint\\ncount() returns bigint",
        r#"(func $table_ (result i32) (call $table (i32.const 0) (i32.const 7)))
        (func $read (result i64)
            (if (result i64) (i32.lt_s (call $get (call $table_) (i32.const 0) (i32.const 1) (i32.const 64) (i32.const 8)) (i32.const 0))
                (then (i64.const 0))
                (else (i64.load (i32.const 64)))))
        (func (export "count") (result i64) (call $read))
        (func (export "add") (param i64) (result i64)
            (local $sum i64)
            (local.set $sum (i64.add (call $read) (i64.const 1)))
            (i64.store (i32.const 64) (local.get $sum))
            (call $put (call $table_) (i32.const 0) (i32.const 1) (i32.const 64) (i32.const 8))
            (block (loop
                (br_if 1 (i64.le_s (local.get 0) (i64.const 0)))
                (local.set 0 (i64.sub (local.get 0) (i64.const 1)))
                (br 0)))
            (local.get $sum))"#,
    )
}

/// More instructions than are executed at once.
const LONG: i64 = 1_000_000;

#[test]
fn a_call_that_is_too_long_to_be_executed_at_once_has_its_effects_once() {
    with_programs(programs(&counting()), async move |cpu, monitor| {
        for expected in 1..=20 {
            let loops = if expected % 3 == 0 { LONG } else { 0 };
            assert_eq!(call(&cpu, &monitor, "add", &[Value::BigInt(loops)]).await, Ok(Value::BigInt(expected)));
        }
        assert_eq!(call(&cpu, &monitor, "count", &[]).await, Ok(Value::BigInt(20)));
    });
}

#[test]
fn a_call_that_is_given_up_leaves_what_earlier_calls_of_its_transaction_wrote() {
    with_programs(programs(&counting()), async move |cpu, monitor| {
        let add = monitor.programs().find("add").expect("it is there");
        let mut transaction = monitor.begin();
        for (expected, loops) in [(1, 0), (2, LONG), (3, LONG), (4, 0)] {
            let added = add.call(&cpu, &[Value::BigInt(loops)], &mut transaction).await;
            assert_eq!(added, Ok(Value::BigInt(expected)));
        }
        transaction.commit(&cpu).await.expect("nobody else is there").durable(&cpu).await.expect("durable");
        assert_eq!(call(&cpu, &monitor, "count", &[]).await, Ok(Value::BigInt(4)));
    });
}

/// Rows of a quarter of a page each, so that they are on many pages.
const ROWS: i64 = 60;

/// `fill(count)` writes rows; `length(key)` returns the length of one.
fn filling() -> String {
    module(
        "fill(count bigint)\\nlength(key bigint) returns bigint",
        r#"(func $table_ (result i32) (call $table (i32.const 0) (i32.const 7)))
        (func (export "fill") (param i64)
            (block (loop
                (br_if 1 (i64.eqz (local.get 0)))
                (local.set 0 (i64.sub (local.get 0) (i64.const 1)))
                (i64.store (i32.const 64) (local.get 0))
                (call $put (call $table_) (i32.const 64) (i32.const 8) (i32.const 128) (i32.const 1000))
                (br 0))))
        (func (export "length") (param i64) (result i64)
            (i64.store (i32.const 64) (local.get 0))
            (i64.extend_i32_s (call $get (call $table_) (i32.const 64) (i32.const 8) (i32.const 128) (i32.const 1000))))"#,
    )
}

#[test]
fn a_call_whose_rows_are_on_the_disk_waits_for_them() {
    let (before, after) = (programs(&filling()), programs(&filling()));
    // Large: a start reads 4 MiB of the log, and what is read ahead behind the end of a small one are the rows.
    let server = Server::with_disk(1, DiskConfig::without_holes(64 << 20));
    // Two, so that the second has nothing in its cache.
    let [first, second] = [(); 2].map(|()| server.volume(ForcedUnitAccess::Never));
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, first).await.expect("a new database");
        let monitor = Monitor::new("test".to_owned(), database, before);
        call(&cpu, &monitor, "fill", &[Value::BigInt(ROWS)]).await.expect("filled");
        monitor.database().close(&cpu).await.expect("closed");
        let database = Database::open(&cpu, second).await.expect("the same database");
        let monitor = Monitor::new("test".to_owned(), database, after);
        let mut waited = 0;
        for key in 0..ROWS {
            let began = cpu.now();
            assert_eq!(call(&cpu, &monitor, "length", &[Value::BigInt(key)]).await, Ok(Value::BigInt(1000)));
            waited += i64::from(cpu.now() > began);
        }
        assert!((1..ROWS).contains(&waited), "of {ROWS} calls, {waited} waited for the disk");
    });
}
