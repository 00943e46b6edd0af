//! A program that misbehaves ends alone, with a message that says why, and changes nothing.

use std::sync::Arc;

use kernel::Processor;
use transactions::program::{MEMORY_BYTES_MAX, ModuleError, Program, ProgramError};
use transactions::store::StoreError;
use transactions::{CallError, Monitor, Value};

use crate::scene::{call, call_once, compile, module, programs, with_programs};

/// The error of a call of `f() returns bigint` with this body, and, that `f` wrote a row before is undone.
fn failure(body: &str) -> ProgramError {
    let text = module(
        "f() returns bigint\\nrows() returns bigint",
        &format!(
            r#"(func $f (export "f") (result i64)
                (call $put (call $table (i32.const 0) (i32.const 7)) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1))
                {body})
            (func (export "rows") (result i64)
                (i64.extend_i32_s (call $get (call $table (i32.const 0) (i32.const 7)) (i32.const 0) (i32.const 1)
                    (i32.const 100) (i32.const 10))))"#
        ),
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        let failed = call(&cpu, &monitor, "f", &[]).await;
        assert_eq!(call(&cpu, &monitor, "rows", &[]).await, Ok(Value::BigInt(-1)), "the failed call left a row");
        match failed {
            Err(CallError::Program(error)) => error,
            other => panic!("{other:?}"),
        }
    })
}

fn trap(body: &str) -> String {
    match failure(body) {
        ProgramError::Trap(what) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_trap_is_told_with_its_reason_and_the_function() {
    for (body, what) in [
        ("unreachable", "f: it came to an instruction `unreachable` (in f)"),
        ("(i64.div_s (i64.const 1) (i64.const 0))", "f: integer divide by zero (in f)"),
        ("(i64.load (i32.const -8))", "f: out of bounds memory access (in f)"),
        ("(i64.trunc_f64_s (f64.const nan))", "f: invalid conversion to integer (in f)"),
        ("(call $panic (i32.const 0) (i32.const 7)) (i64.const 0)", "f: account (in f)"),
    ] {
        assert_eq!(trap(body), what);
    }
}

#[test]
fn an_infinite_loop_ends() {
    assert_eq!(failure("(loop (br 0)) (i64.const 0)"), ProgramError::Timeout);
}

#[test]
fn a_loop_of_calls_of_the_host_ends() {
    for call in ["(call $reply (i32.const 0) (i32.const 1000))", "(call $null)", "(drop (call $is_null (i32.const 0)))"]
    {
        assert_eq!(failure(&format!("(loop {call} (br 0)) (i64.const 0)")), ProgramError::Timeout);
    }
}

#[test]
fn a_transaction_that_reads_or_writes_without_end_is_too_long() {
    let too_long = ProgramError::Store(StoreError::TransactionTooLong);
    let read = "(drop (call $get (i32.const 0) (i32.const 0) (i32.const 7) (i32.const 100) (i32.const 10)))";
    let write = "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
        (call $put (i32.const 0) (i32.const 0) (i32.const 7) (i32.const 0) (i32.const 1024))";
    for body in [read, write] {
        assert_eq!(failure(&format!("(loop {body} (br 0)) (i64.const 0)")), too_long);
    }
}

#[test]
fn a_loop_of_long_copies_ends() {
    let grow = "(drop (memory.grow (i32.const 200)))";
    let copy = "(memory.copy (i32.const 0) (i32.const 65536) (i32.const 13000000))";
    assert_eq!(failure(&format!("{grow} (loop {copy} (br 0)) (i64.const 0)")), ProgramError::Timeout);
}

#[test]
fn endless_recursion_ends() {
    let text = module(
        "f() returns bigint",
        r#"(func $deeper (result i64) (i64.add (i64.const 1) (call $deeper)))
        (func (export "f") (result i64) (call $deeper))"#,
    );
    let told =
        "f: its stack is full: endless recursion? (in deeper, called by deeper, called by deeper, called by deeper)";
    assert_eq!(call_once(&text, vec![]), Err(ProgramError::Trap(told.to_owned()).into()));
}

#[test]
fn more_memory_than_a_call_may_have_is_refused() {
    assert_eq!(failure("(drop (memory.grow (i32.const 1000))) (i64.const 0)"), ProgramError::Memory(MEMORY_BYTES_MAX));
    let text = module("f()", r#"(func (export "f"))"#)
        .replace("(memory (export \"memory\") 1)", "(memory (export \"memory\") 300)");
    assert!(matches!(compile(&text), Err(ModuleError::Invalid(_))));
}

#[test]
fn wild_pointers_are_told_and_read_and_write_nothing() {
    let table = "(call $table (i32.const 0) (i32.const 7))";
    for (body, what) in [
        ("(drop (call $table (i32.const 65530) (i32.const 7)))", "the table's name lies outside of its memory"),
        ("(drop (call $table (i32.const -1) (i32.const 7)))", "the table's name lies outside of its memory"),
        (
            "(drop (call $get (i32.const 0) (i32.const -4) (i32.const 8) (i32.const 0) (i32.const 0)))",
            "the key lies outside of its memory",
        ),
        (
            "(drop (call $get (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 65000) (i32.const -1)))",
            "the room for the row lies outside of its memory",
        ),
        (
            "(call $put (i32.const 0) (i32.const 0) (i32.const 7) (i32.const 65535) (i32.const 2))",
            "the row lies outside of its memory",
        ),
        ("(call $delete (i32.const 0) (i32.const 65536) (i32.const 1))", "the key lies outside of its memory"),
        (
            "(drop (call $next (i32.const 0) (i32.const 65536) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0)))",
            "the key lies outside of its memory",
        ),
        ("(call $reply (i32.const 65536) (i32.const 1))", "what it returns lies outside of its memory"),
        ("(call $abort (i32.const 65536) (i32.const 1))", "the message lies outside of its memory"),
        ("(call $argument (i32.const 7) (i32.const 0))", "there is no text or bytea in the argument that it asks for"),
        (
            "(call $delete (i32.const 7) (i32.const 0) (i32.const 1))",
            "it has asked for no table by name that would be number 7",
        ),
        (
            "(drop (call $next (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)
                (i32.const 0) (i32.const 0)))",
            "there are no flags 0x20 of next",
        ),
    ] {
        let told = trap(&format!("(drop {table}) {body} (i64.const 0)"));
        assert!(told.starts_with(&format!("f: {what}")), "{body}: {told}");
    }
}

#[test]
fn keys_rows_and_names_that_are_too_long_are_refused_before_they_are_copied() {
    let store = |body: &str| match failure(&format!("{body} (i64.const 0)")) {
        ProgramError::Store(error) => error,
        other => panic!("{other:?}"),
    };
    let put = |key: u32, row: u32| {
        format!("(call $put (i32.const 0) (i32.const 0) (i32.const {key}) (i32.const 0) (i32.const {row}))")
    };
    assert_eq!(store(&put(513, 1)), StoreError::KeyTooLong(513));
    assert_eq!(store(&put(1, 1025)), StoreError::RowTooLong(1025));
    assert_eq!(store(&put(1, u32::MAX)), StoreError::RowTooLong(u32::MAX as usize));
    assert_eq!(store("(drop (call $table (i32.const 0) (i32.const 65)))"), StoreError::TableName);
    assert_eq!(store("(drop (call $table (i32.const 0) (i32.const 0)))"), StoreError::TableName);
}

#[test]
fn a_reply_that_is_too_long_is_refused() {
    let told = trap("(call $reply (i32.const 0) (i32.const 1048577)) (i64.const 0)");
    assert!(told.starts_with("f: it returns 1048577 bytes; at most 1048576 are possible"), "{told}");
}

#[test]
fn an_abort_is_told_in_the_programs_words() {
    let aborted = failure("(call $abort (i32.const 0) (i32.const 7)) (i64.const 0)");
    assert_eq!(aborted, ProgramError::Abort("account".to_owned()));
    assert_eq!(aborted.to_string(), "account");
}

#[test]
fn the_monitors_own_table_is_not_the_programs() {
    let text = module(
        "f()",
        r#"(data (i32.const 200) "awase.programs")
        (func (export "f") (drop (call $table (i32.const 200) (i32.const 14))))"#,
    );
    let Err(CallError::Program(ProgramError::Trap(told))) = call_once(&text, vec![]) else { panic!("it succeeded") };
    assert!(told.starts_with("f: the table awase.programs is the monitor's own"), "{told}");
}

#[test]
fn many_tables_in_one_call_are_refused() {
    let body = "(loop (drop (call $table (i32.const 0) (i32.const 7))) (br 0)) (i64.const 0)";
    assert_eq!(failure(body), ProgramError::Tables(256));
}

/// How many turns another task has during a call of `f`; at most 1000.
async fn turns_during(cpu: &Processor, monitor: &Monitor) -> (u32, Result<Value, CallError>) {
    let turns = std::rc::Rc::new(std::cell::Cell::new(0_u32));
    let (counted, other) = (std::rc::Rc::clone(&turns), cpu.clone());
    cpu.spawn(async move {
        for _ in 0..1000 {
            other.yield_now().await;
            counted.set(counted.get() + 1);
        }
    });
    let called = call(cpu, monitor, "f", &[]).await;
    (turns.get(), called)
}

#[test]
fn others_go_on_while_a_program_loops() {
    let is_null = "(drop (call $is_null (i32.const 0)))";
    let get = "(drop (call $get (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 100) (i32.const 10)))";
    // Some 90,000 units of fuel, less than a slice.
    let long = "(local.set $n (i32.const 11000))
        (loop (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))";
    for body in [String::new(), is_null.to_owned(), format!("{long} {is_null}"), format!("{long} {get}")] {
        let text = module(
            "f()",
            &format!(
                r#"(func (export "f") (local $n i32)
                    (drop (call $table (i32.const 0) (i32.const 7)))
                    (loop {body} (br 0)))"#
            ),
        );
        with_programs(programs(&text), async move |cpu, monitor| {
            let (turns, called) = turns_during(&cpu, &monitor).await;
            assert_eq!(called, Err(ProgramError::Timeout.into()), "{body}");
            assert!(turns >= 100, "another task had {turns} turns only: {body}");
        });
    }
}

/// `fill` puts 5,000 rows and deletes them; then a function `f`, whose local variable is `$n`, asks for the first row.
fn with_deleted_rows(f: &str, test: impl AsyncFnOnce(Processor, Arc<Monitor>) + 'static) {
    let next = "(drop (call $next (local.get $table) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 12) (i32.const 100) (i32.const 100)))";
    let text = module(
        "fill()\\nf() returns bigint",
        &format!(
            r#"(func (export "fill") (local $table i32) (local $n i32)
                (local.set $table (call $table (i32.const 0) (i32.const 7)))
                (local.set $n (i32.const 5000))
                (loop
                    (i32.store (i32.const 8) (local.get $n))
                    (call $put (local.get $table) (i32.const 8) (i32.const 4) (i32.const 0) (i32.const 1))
                    (call $delete (local.get $table) (i32.const 8) (i32.const 4))
                    (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
            (func (export "f") (result i64) (local $table i32) (local $n i32)
                (local.set $table (call $table (i32.const 0) (i32.const 7)))
                {}
                (i64.const 0))"#,
            f.replace("$first", next)
        ),
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        assert_eq!(call(&cpu, &monitor, "fill", &[]).await, Ok(Value::Null));
        test(cpu, monitor).await;
    });
}

#[test]
fn others_go_on_while_a_program_looks_for_the_first_row_behind_many_that_are_deleted() {
    with_deleted_rows("$first", async |cpu, monitor| {
        let (turns, called) = turns_during(&cpu, &monitor).await;
        assert_eq!(called, Ok(Value::BigInt(0)));
        assert!(turns >= 10, "another task had {turns} turns only");
    });
}

#[test]
fn a_program_that_passes_over_deleted_rows_again_and_again_ends() {
    // With most of its fuel used up: 29,880,000 of 30,000,000.
    let copy = |bytes| format!("(memory.copy (i32.const 0) (i32.const 65536) (i32.const {bytes}))");
    let copies = [copy(13_000_000), copy(13_000_000), copy(3_880_000)].concat();
    let body = format!(
        "(drop (memory.grow (i32.const 200))) {copies} (local.set $n (i32.const 100))
        (loop $first (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"
    );
    with_deleted_rows(&body, async |cpu, monitor| {
        assert_eq!(call(&cpu, &monitor, "f", &[]).await, Err(ProgramError::Timeout.into()));
    });
}

#[test]
fn a_start_function_that_loops_ends() {
    let text = module("f()", r#"(func $begin (loop (br 0))) (start $begin) (func (export "f"))"#);
    assert_eq!(call_once(&text, vec![]), Err(ProgramError::Timeout.into()));
}

#[test]
fn each_call_begins_with_a_new_memory() {
    let text = module(
        "f() returns bigint",
        r#"(func (export "f") (result i64)
            (i64.store (i32.const 1024) (i64.add (i64.load (i32.const 1024)) (i64.const 1)))
            (i64.load (i32.const 1024)))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        for _ in 0..3 {
            assert_eq!(call(&cpu, &monitor, "f", &[]).await, Ok(Value::BigInt(1)));
        }
    });
}

#[test]
fn what_is_no_program_is_refused_with_what_is_wrong() {
    let refused = |text: &str| compile(text).expect_err("it is no program").to_string();
    for (text, what) in [
        ("(module)".to_owned(), "it has no function that could be called"),
        (
            r#"(module (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32))))"#.to_owned(),
            "it imports random_get from wasi_snapshot_preview1; a program has only the module awase, with table, get,",
        ),
        (r#"(module (import "awase" "clock" (func)))"#.to_owned(), "it imports clock from awase"),
        (
            r#"(module (import "awase" "get" (func)) (memory (export "memory") 1) (func (export "f")))"#.to_owned(),
            "incompatible import type for `awase::get`",
        ),
        (r#"(module (import "awase" "null" (func)) (func (export "f")))"#.to_owned(), "it does not export its memory"),
        (r#"(module (func (export "f") (param i32)))"#.to_owned(), "the function f are not all i64 or f64"),
        (r#"(module (func (export "F")))"#.to_owned(), "\"F\" cannot be a name"),
        (module("g()", r#"(func (export "f"))"#), "it describes the function g, but does not export it"),
        (module("f()\\nf()", r#"(func (export "f"))"#), "it has the function f twice"),
        (r#"(module (func (export "f")) (func (export "awase:f")))"#.to_owned(), "it has the function f twice"),
        (
            module("f(a bigint, b text null) returns boolean", r#"(func (export "f") (result i64) (i64.const 0))"#),
            "must be of the type (i64, i32) -> (i32) in WebAssembly, and is () -> (i64)",
        ),
        (module("f(a int)", r#"(func (export "f"))"#), "\"int\" is no type"),
        (module("\\ff", r#"(func (export "f"))"#), "the section \"awase\" is not text"),
        (module("f()\\ninit()", r#"(func (export "f")) (func (export "init"))"#), "the function init must neither"),
        (module("f()", r#"(func (export "f")) (func (export "init") (param i64))"#), "the function init must neither"),
    ] {
        let told = refused(&text);
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn no_part_and_no_corruption_of_a_module_does_harm() {
    // The code is its last section.
    let text = r#"(module (@custom "awase" (before first) "f() returns bigint") (func (export "f") (result i64) (i64.const 5)))"#;
    let bytes = wat::parse_str(text).unwrap();
    assert!(Program::compile("test", &bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(Program::compile("test", &bytes[..end]).is_err(), "the first {end} bytes");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        // Some changes, as of a constant, make another program.
        let _ = Program::compile("test", &changed);
    }
}
