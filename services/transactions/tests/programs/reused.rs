//! Whatever a call does to its instance, the next one of its program on that processor does not see it.

use transactions::Value;

use crate::scene::{call, module, programs, with_programs};

/// `seen()` returns what is in all that an instance has, and changes it as the others do. What else the module has, what else
/// `$change` does, and what else is in `seen`.
type More = (&'static str, &'static str, &'static str);

fn changing((declared, changed, seen): More, pages: u64) -> String {
    let last = (pages << 16) - 8;
    let body = format!(
        r#"(global $variable (mut i64) (i64.const 1))
        (global $exported (export "exported") (mut f64) (f64.const 10))
        {declared}
        (func $change
            (i64.store (i32.const 0) (i64.const -1))
            (i64.store (i32.const 1024) (i64.const -1))
            (i64.store (i32.const {last}) (i64.const -1))
            (global.set $variable (i64.const -1))
            (global.set $exported (f64.const -1))
            {changed})
        (func (export "seen") (result i64)
            (i64.load8_u (i32.const 0))
            (i64.add (i64.load (i32.const 1024)))
            (i64.add (i64.load (i32.const {last})))
            (i64.add (i64.shl (i64.extend_i32_u (memory.size)) (i64.const 10)))
            (i64.add (global.get $variable))
            (i64.add (i64.trunc_f64_s (global.get $exported)))
            {seen}
            (call $change))
        (func (export "grow") (drop (memory.grow (i32.const 1))) (i64.store (i32.const {last}) (i64.const -1)) (call $change))
        (func (export "trap") (call $change) unreachable)
        (func (export "long") (call $change) (loop (br 0)))
        (func (export "refuse") (call $change) (call $abort (i32.const 0) (i32.const 1)))
        (func (export "nothing") (call $change) (call $null))"#
    );
    let names = ["seen() returns bigint", "grow()", "trap()", "long()", "refuse()", "nothing() returns text null"];
    module(&names.join("\\n"), &body).replace(r#""memory") 1"#, &format!(r#""memory") {pages}"#))
}

/// 'a' in the data, pages of memory, and both variables.
const fn new(pages: u64) -> i64 {
    b'a' as i64 + ((pages as i64) << 10) + 1 + 10
}

const PLAIN: More = ("", "", "");

/// What cannot be restored, which makes `seen` 100 more.
const OTHERS: [More; 4] = [
    (
        "(table 1 funcref) (elem (i32.const 0) $hundred) (func $hundred (result i64) (i64.const 100))
        (func $zero (result i64) (i64.const 0)) (elem declare func $zero)",
        "(table.set (i32.const 0) (ref.func $zero))",
        "(i64.add (call_indirect (result i64) (i32.const 0)))",
    ),
    (
        r#"(data $segment "d")"#,
        "(data.drop $segment)",
        "(memory.init $segment (i32.const 2048) (i32.const 0) (i32.const 1)) (i64.add (i64.load8_u (i32.const 2048)))",
    ),
    (
        "(global $function (mut funcref) (ref.null func)) (func $some) (elem declare func $some)",
        "(global.set $function (ref.func $some))",
        "(i64.add (i64.mul (i64.extend_i32_u (ref.is_null (global.get $function))) (i64.const 100)))",
    ),
    (
        "(global $started (mut i64) (i64.const 0)) (start $start) (func $start (global.set $started (i64.const 100)))",
        "(global.set $started (i64.const 0))",
        "(i64.add (global.get $started))",
    ),
];

#[test]
fn no_call_sees_what_another_changed() {
    let plain = [1, 2, 17, 32, 33].map(|pages| (PLAIN, pages, new(pages)));
    let others = OTHERS.map(|more| (more, 1, new(1) + 100));
    for (more, pages, expected) in plain.into_iter().chain(others) {
        with_programs(programs(&changing(more, pages)), async move |cpu, monitor| {
            for name in ["seen", "grow", "seen", "trap", "long", "refuse", "nothing", "seen", "grow"] {
                for _ in 0..2 {
                    let called = call(&cpu, &monitor, name, &[]).await;
                    let seen = call(&cpu, &monitor, "seen", &[]).await;
                    assert_eq!(seen, Ok(Value::BigInt(expected)), "after {name}, {pages} pages, {more:?}");
                    assert_eq!(called.is_err(), ["trap", "long", "refuse"].contains(&name), "{name}: {called:?}");
                }
            }
        });
    }
}
