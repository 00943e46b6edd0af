//! What a function is given and returns.

use transactions::program::ProgramError;
use transactions::{CallError, Value};

use crate::scene::{call, call_once, module, programs, with_programs};

#[test]
fn values_of_each_type_go_in_and_come_out() {
    let text = module(
        "b(a boolean) returns boolean\\ni(a bigint) returns bigint\\nd(a double precision) returns double precision\\nt(a text) returns text\\ny(n bigint, a bytea) returns bytea\\nv()",
        r#"(func (export "b") (param i32) (result i32) (i32.eqz (local.get 0)))
        (func (export "i") (param i64) (result i64) (i64.add (local.get 0) (i64.const 1)))
        (func (export "d") (param f64) (result f64) (f64.mul (local.get 0) (f64.const 2)))
        (func (export "t") (param i32)
            (call $argument (i32.const 0) (i32.const 100)) (call $reply (i32.const 100) (local.get 0)))
        (func (export "y") (param i64 i32)
            (call $argument (i32.const 1) (i32.const 100)) (call $reply (i32.const 101) (i32.sub (local.get 1) (i32.const 1))))
        (func (export "v"))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        for (name, given, returned) in [
            ("b", vec![Value::Bool(true)], Value::Bool(false)),
            ("i", vec![Value::BigInt(i64::MAX)], Value::BigInt(i64::MIN)),
            ("d", vec![Value::DoublePrecision(-0.75)], Value::DoublePrecision(-1.5)),
            ("t", vec![Value::Text("Größe".into())], Value::Text("Größe".into())),
            ("t", vec![Value::Text(String::new())], Value::Text(String::new())),
            ("y", vec![Value::BigInt(0), Value::Bytea(vec![1, 0, 255])], Value::Bytea(vec![0, 255])),
            ("v", vec![], Value::Null),
        ] {
            assert_eq!(call(&cpu, &monitor, name, &given).await, Ok(returned), "{name}");
        }
    });
}

#[test]
fn null_goes_in_and_out_where_the_function_says_so_and_is_refused_elsewhere() {
    let text = module(
        "n(b bigint, a bigint null) returns bigint null\\nf(a bigint) returns bigint",
        r#"(func (export "n") (param i64 i64) (result i64)
            (if (call $is_null (i32.const 1)) (then (call $null))) (local.get 1))
        (func (export "f") (param i64) (result i64) (call $null) (i64.const 1))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        assert_eq!(call(&cpu, &monitor, "n", &[Value::BigInt(1), Value::Null]).await, Ok(Value::Null));
        assert_eq!(call(&cpu, &monitor, "n", &[Value::BigInt(1), Value::BigInt(7)]).await, Ok(Value::BigInt(7)));
        let refused = ProgramError::Abort("a of f may not be NULL".to_owned());
        assert_eq!(call(&cpu, &monitor, "f", &[Value::Null]).await, Err(refused.into()));
        let wrong = ProgramError::Trap("f: it returned NULL".to_owned());
        assert_eq!(call(&cpu, &monitor, "f", &[Value::BigInt(0)]).await, Err(wrong.into()));
    });
}

#[test]
fn arguments_of_another_number_or_type_are_refused() {
    let text = module("f(a bigint)", r#"(func (export "f") (param i64))"#);
    for (given, told) in [
        (vec![], "f(a bigint) returns void was called with 0 arguments"),
        (vec![Value::Text("1".into())], "a of f must be bigint"),
    ] {
        assert_eq!(call_once(&text, given), Err(ProgramError::Abort(told.to_owned()).into()));
    }
}

#[test]
fn a_text_that_clients_could_not_have_is_a_failure() {
    let text = module(
        "f(a bytea) returns text\\ng() returns text",
        r#"(func (export "f") (param i32)
            (call $argument (i32.const 0) (i32.const 100)) (call $reply (i32.const 100) (local.get 0)))
        (func (export "g"))"#,
    );
    for (given, told) in [
        (vec![0xff], "f: it returned a text that is not UTF-8"),
        (vec![b'a', 0], "f: it returned a text with a zero byte"),
    ] {
        let failed: CallError = ProgramError::Trap(told.to_owned()).into();
        assert_eq!(call_once(&text, vec![Value::Bytea(given)]), Err(failed));
    }
    with_programs(programs(&text), async move |cpu, monitor| {
        let failed = ProgramError::Trap("g: it returned nothing".to_owned());
        assert_eq!(call(&cpu, &monitor, "g", &[]).await, Err(failed.into()));
    });
}

#[test]
fn a_module_without_description_has_the_functions_of_numbers() {
    let text = r#"(module (func (export "f") (param i64 f64) (result f64)
        (f64.add (f64.convert_i64_s (local.get 0)) (local.get 1))))"#;
    with_programs(programs(text), async move |cpu, monitor| {
        let function = monitor.programs().find("f").unwrap();
        assert_eq!(function.signature().to_string(), "f(a1 bigint, a2 double precision) returns double precision");
        let sum = monitor.call(&cpu, &function, &[Value::BigInt(2), Value::DoublePrecision(0.5)]).await;
        assert_eq!(sum, Ok(Value::DoublePrecision(2.5)));
    });
}

#[test]
fn a_function_is_exported_under_a_name_of_its_own_or_as_before_under_its_name() {
    let text = module(
        "own() returns bigint\\nplain() returns bigint\\nmemory() returns bigint\\nfails()",
        r#"(func (export "awase:own") (result i64) (i64.const 1))
        (func (export "own") (result f64) (f64.const 2))
        (func (export "plain") (result i64) (i64.const 3))
        (func (export "awase:memory") (result i64) (i64.const 4))
        (func (export "awase:init"))
        (func (export "init") (param i64))
        (func $awase:fails (export "awase:fails") (unreachable))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        for (name, returned) in [("own", 1), ("plain", 3), ("memory", 4)] {
            assert_eq!(call(&cpu, &monitor, name, &[]).await, Ok(Value::BigInt(returned)), "{name}");
        }
        let failed = "fails: it came to an instruction `unreachable` (in fails)".to_owned();
        assert_eq!(call(&cpu, &monitor, "fails", &[]).await, Err(ProgramError::Trap(failed).into()));
    });
    let undescribed = r#"(module (func (export "awase:f")) (func (export "g")) (func (export "awase:init")))"#;
    let functions = programs(undescribed).functions();
    let shown: Vec<String> = functions.iter().map(|function| function.signature().to_string()).collect();
    assert_eq!(shown, ["f() returns void", "g() returns void"]);
}

#[test]
fn rows_are_written_read_deleted_and_found_in_both_directions() {
    // k(at): the key 'a' + at. scan returns the key's last byte, or -1.
    let text = module(
        "p(at bigint)\\ng(at bigint) returns bigint\\nx(at bigint)\\ns(low bigint, high bigint, flags bigint) returns bigint",
        r#"(func $t (result i32) (call $table (i32.const 0) (i32.const 7)))
        (func $k (param $room i32) (param $at i64) (result i32)
            (i32.store8 (local.get $room) (i32.wrap_i64 (local.get $at))) (local.get $room))
        (func (export "p") (param i64)
            (call $put (call $t) (call $k (i32.const 100) (local.get 0)) (i32.const 1) (i32.const 100) (i32.const 1)))
        (func (export "g") (param i64) (result i64)
            (i64.extend_i32_s (call $get (call $t) (call $k (i32.const 100) (local.get 0)) (i32.const 1)
                (i32.const 200) (i32.const 10))))
        (func (export "x") (param i64) (call $delete (call $t) (call $k (i32.const 100) (local.get 0)) (i32.const 1)))
        (func (export "s") (param i64 i64 i64) (result i64)
            (if (i32.lt_s (call $next (call $t) (call $k (i32.const 100) (local.get 0)) (i32.const 1)
                    (call $k (i32.const 101) (local.get 1)) (i32.const 1) (i32.wrap_i64 (local.get 2))
                    (i32.const 200) (i32.const 100)) (i32.const 0))
                (then (return (i64.const -1))))
            (i64.load8_u (i32.const 204)))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        let bigints = |given: &[i64]| given.iter().map(|value| Value::BigInt(*value)).collect::<Vec<_>>();
        for at in [10, 20, 30] {
            call(&cpu, &monitor, "p", &bigints(&[at])).await.unwrap();
        }
        assert_eq!(call(&cpu, &monitor, "g", &bigints(&[20])).await, Ok(Value::BigInt(1)));
        let (low_excluded, high_excluded, no_low, no_high, backwards) = (1, 2, 4, 8, 16);
        for (low, high, flags, found) in [
            (10, 30, 0, 10),
            (10, 30, low_excluded, 20),
            (10, 30, backwards, 30),
            (10, 30, backwards | high_excluded, 20),
            (11, 19, 0, -1),
            (30, 10, 0, -1),
            (20, 20, 0, 20),
            (20, 20, low_excluded | high_excluded, -1),
            (25, 0, no_high, 30),
            (25, 5, no_low | no_high, 10),
            (25, 25, no_low | backwards, 20),
        ] {
            let got = call(&cpu, &monitor, "s", &bigints(&[low, high, flags])).await;
            assert_eq!(got, Ok(Value::BigInt(found)), "{low} {high} {flags}");
        }
        call(&cpu, &monitor, "x", &bigints(&[20])).await.unwrap();
        assert_eq!(call(&cpu, &monitor, "g", &bigints(&[20])).await, Ok(Value::BigInt(-1)));
        assert_eq!(call(&cpu, &monitor, "s", &bigints(&[10, 30, low_excluded])).await, Ok(Value::BigInt(30)));
    });
}

#[test]
fn init_is_executed_once_in_a_database() {
    let text = module(
        "f() returns bigint",
        r#"(func $t (result i32) (call $table (i32.const 0) (i32.const 7)))
        (func $rows (result i32)
            (call $get (call $t) (i32.const 0) (i32.const 1) (i32.const 100) (i32.const 100)))
        (func (export "init")
            (call $put (call $t) (i32.const 0) (i32.const 1) (i32.const 100)
                (i32.add (i32.const 1) (select (i32.const 0) (call $rows) (i32.lt_s (call $rows) (i32.const 0))))))
        (func (export "f") (result i64) (i64.extend_i32_s (call $rows)))"#,
    );
    with_programs(programs(&text), async move |cpu, monitor| {
        // In a transaction that is given up, it is undone with the rest.
        let function = monitor.programs().find("f").unwrap();
        let mut transaction = monitor.begin();
        assert_eq!(function.call(&cpu, &[], &mut transaction).await, Ok(Value::BigInt(1)));
        drop(transaction);
        assert!(monitor.programs().find("init").is_none());
        for _ in 0..3 {
            assert_eq!(call(&cpu, &monitor, "f", &[]).await, Ok(Value::BigInt(1)));
        }
    });
}
