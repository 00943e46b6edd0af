//! The program that terminals call, and what its functions return.

use testkit::serial::{Key, Seen, Version};

/// Rows say their version and the one that they replaced: `look`, `write` and `remove` return what was there, `scan` all
/// of a range. Accounts have 100 at first. `spin` never ends by itself.
pub const PROGRAM: &str = r#"(module
    (import "awase" "table" (func $table (param i32 i32) (result i32)))
    (import "awase" "get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
    (import "awase" "put" (func $put (param i32 i32 i32 i32 i32)))
    (import "awase" "delete" (func $delete (param i32 i32 i32)))
    (import "awase" "next" (func $next (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "awase" "reply" (func $reply (param i32 i32)))
    (import "awase" "null" (func $null))
    (import "awase" "abort" (func $abort (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "rows")
    (data (i32.const 8) "accounts")
    (data (i32.const 16) "insufficient funds")
    (@custom "awase" "look(key bigint) returns bytea null\nwrite(key bigint, version bigint, bytes bigint) returns bytea null\nremove(key bigint) returns bytea null\nscan(low bigint, high bigint) returns bytea\ntransfer(payer bigint, payee bigint, amount bigint)\ntotal(accounts bigint) returns bigint\nspin()")

    ;; The key is at 64, what was found at 72, what is written at 96.
    (func $find (param $table i32) (param $key i64) (param $room i32) (result i32)
        (i32.store8 (i32.const 64) (i32.wrap_i64 (local.get $key)))
        (call $get (local.get $table) (i32.const 64) (i32.const 1) (i32.const 72) (local.get $room)))
    (func $rows (result i32) (call $table (i32.const 0) (i32.const 4)))
    (func $tell (param $found i32)
        (if (i32.lt_s (local.get $found) (i32.const 0))
            (then (call $null))
            (else (call $reply (i32.const 72) (i32.const 16)))))
    (func (export "look") (param i64)
        (call $tell (call $find (call $rows) (local.get 0) (i32.const 16))))
    (func (export "write") (param i64 i64 i64)
        (local $rows i32) (local $found i32)
        (local.set $rows (call $rows))
        (local.set $found (call $find (local.get $rows) (local.get 0) (i32.const 16)))
        (i64.store (i32.const 96) (local.get 1))
        (if (i32.ge_s (local.get $found) (i32.const 0))
            (then (i64.store (i32.const 104) (i64.load (i32.const 72)))))
        (call $put (local.get $rows) (i32.const 64) (i32.const 1) (i32.const 96) (i32.wrap_i64 (local.get 2)))
        (call $tell (local.get $found)))
    (func (export "remove") (param i64)
        (local $rows i32) (local $found i32)
        (local.set $rows (call $rows))
        (local.set $found (call $find (local.get $rows) (local.get 0) (i32.const 16)))
        (call $delete (local.get $rows) (i32.const 64) (i32.const 1))
        (call $tell (local.get $found)))

    ;; Entries of 21 bytes: the length of the key, the key, version and the one before.
    (func (export "scan") (param i64 i64)
        (local $rows i32) (local $at i32) (local $flags i32)
        (local.set $rows (call $rows))
        (i32.store8 (i32.const 64) (i32.wrap_i64 (local.get 0)))
        (i32.store8 (i32.const 65) (i32.wrap_i64 (local.get 1)))
        (local.set $at (i32.const 1024))
        (local.set $flags (i32.const 2))
        (block $end (loop $more
            (br_if $end (i32.lt_s
                (call $next (local.get $rows) (i32.const 64) (i32.const 1) (i32.const 65) (i32.const 1)
                    (local.get $flags) (local.get $at) (i32.const 21))
                (i32.const 0)))
            (i32.store8 (i32.const 64) (i32.load8_u (i32.add (local.get $at) (i32.const 4))))
            (local.set $flags (i32.const 3))
            (local.set $at (i32.add (local.get $at) (i32.const 21)))
            (br $more)))
        (call $reply (i32.const 1024) (i32.sub (local.get $at) (i32.const 1024))))

    (func $accounts (result i32) (call $table (i32.const 8) (i32.const 8)))
    (func $balance (param $accounts i32) (param $account i64) (result i64)
        (if (result i64)
            (i32.lt_s (call $find (local.get $accounts) (local.get $account) (i32.const 8)) (i32.const 0))
            (then (i64.const 100))
            (else (i64.load (i32.const 72)))))
    (func $add (param $accounts i32) (param $account i64) (param $amount i64)
        (i64.store (i32.const 96)
            (i64.add (call $balance (local.get $accounts) (local.get $account)) (local.get $amount)))
        (call $put (local.get $accounts) (i32.const 64) (i32.const 1) (i32.const 96) (i32.const 8)))
    (func (export "transfer") (param i64 i64 i64)
        (local $accounts i32)
        (local.set $accounts (call $accounts))
        (if (i64.lt_s (call $balance (local.get $accounts) (local.get 0)) (local.get 2))
            (then (call $abort (i32.const 16) (i32.const 18))))
        (call $add (local.get $accounts) (local.get 0) (i64.sub (i64.const 0) (local.get 2)))
        (call $add (local.get $accounts) (local.get 1) (local.get 2)))
    (func (export "total") (param i64) (result i64)
        (local $accounts i32) (local $sum i64)
        (local.set $accounts (call $accounts))
        (loop $more
            (local.set 0 (i64.sub (local.get 0) (i64.const 1)))
            (local.set $sum (i64.add (local.get $sum) (call $balance (local.get $accounts) (local.get 0))))
            (br_if $more (i64.gt_s (local.get 0) (i64.const 0))))
        (local.get $sum))
    (func (export "spin") (loop (br 0))))"#;

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("\\x").expect("a bytea");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn row(bytes: &[u8]) -> Seen {
    let over = Some(Version(word(bytes, 8))).filter(|over| over.0 != 0);
    Seen { version: Version(word(bytes, 0)), over }
}

/// What `look`, `write` or `remove` found.
pub fn found(value: Option<&str>) -> Option<Seen> {
    value.map(|text| row(&unhex(text)))
}

/// What `scan` found.
pub fn entries(value: Option<&str>) -> Vec<(Key, Seen)> {
    let bytes = unhex(value.expect("never NULL"));
    bytes.chunks_exact(21).map(|entry| (u64::from(entry[4]), row(&entry[5..]))).collect()
}
