//! Programs made with the guest crate, and those that are shipped: executed, against a model.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::random::Random;
use testkit::skip;
use transactions::program::{BANK, Program, ProgramError, Programs};
use transactions::{CallError, Value};

use crate::scene::{call, with_programs};

const ACCOUNTS: i64 = 1000;

const TPCB: &[u8] = include_bytes!("../../../../program/tpcb.wasm");
const TPCC: &[u8] = include_bytes!("../../../../program/tpcc.wasm");
const OLTP: &[u8] = include_bytes!("../../../../program/oltp.wasm");

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn loaded(name: &str, bytes: &[u8]) -> Programs {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(name), bytes).unwrap();
    let (programs, faults) = Programs::load(directory.path());
    assert_eq!(faults, []);
    programs
}

/// The guest crate's example `name`, built for WebAssembly as the shipped one is; `None` where the target is missing.
fn built(name: &str, features: &[&str]) -> Option<Vec<u8>> {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("wasm-{name}"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline", "--quiet", "--profile", "program", "--target", "wasm32-unknown-unknown"]);
    cargo.args(["--package", "awase-program", "--example", name]).args(features);
    let output = cargo.arg("--target-dir").arg(&target).current_dir(root()).output().expect("cargo runs");
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("target may not be installed") {
        return None;
    }
    assert!(output.status.success(), "{told}");
    Some(std::fs::read(target.join(format!("wasm32-unknown-unknown/program/examples/{name}.wasm"))).expect("built"))
}

/// Random calls of the bank, and what they must return.
fn assert_is_a_bank(programs: Programs, seed: u64) {
    with_programs(programs, async move |cpu, monitor| {
        let mut random = Random(seed);
        let mut model = vec![1000_i64; ACCOUNTS as usize + 1];
        let abort = |what: String| Err(CallError::Program(ProgramError::Abort(what)));
        for _ in 0..300 {
            // Few accounts, so that they meet; some that do not exist.
            let account = |random: &mut Random| random.below(10) as i64 + [0, ACCOUNTS - 5][random.below(2) as usize];
            let (payer, payee) = (account(&mut random), account(&mut random));
            let amount = random.below(1500) as i64 - 100;
            let missing = |account: i64| !(1..=ACCOUNTS).contains(&account);
            let unknown = |account: i64| abort(format!("there is no account {account}"));
            let negative = || abort(format!("the amount {amount} is negative"));
            let (name, arguments, expected) = match random.below(3) {
                0 => {
                    let known = |_: &_| model[payer as usize];
                    let expected = if missing(payer) { unknown(payer) } else { Ok(Value::BigInt(known(&()))) };
                    ("balance", vec![payer], expected)
                }
                1 if amount < 0 => ("deposit", vec![payer, amount], negative()),
                1 if missing(payer) => ("deposit", vec![payer, amount], unknown(payer)),
                1 => {
                    model[payer as usize] += amount;
                    ("deposit", vec![payer, amount], Ok(Value::BigInt(model[payer as usize])))
                }
                _ => {
                    let expected = if amount < 0 {
                        negative()
                    } else if missing(payer) {
                        unknown(payer)
                    } else if model[payer as usize] < amount {
                        abort(format!("account {payer} has only {}", model[payer as usize]))
                    } else if missing(payee) {
                        unknown(payee)
                    } else {
                        model[payer as usize] -= amount;
                        model[payee as usize] += amount;
                        Ok(Value::BigInt(model[payer as usize]))
                    };
                    ("transfer", vec![payer, payee, amount], expected)
                }
            };
            let arguments: Vec<Value> = arguments.into_iter().map(Value::BigInt).collect();
            assert_eq!(call(&cpu, &monitor, name, &arguments).await, expected, "{name} {arguments:?}");
        }
        let total = model[1..].iter().sum();
        assert_eq!(call(&cpu, &monitor, "total", &[]).await, Ok(Value::BigInt(total)));
    });
}

#[test]
fn the_shipped_bank_does_what_a_bank_does() {
    for seed in 0..4 {
        assert_is_a_bank(loaded("bank.wasm", BANK), seed);
    }
}

#[test]
fn concurrent_transfers_of_the_bank_make_and_lose_no_money() {
    with_programs(loaded("bank.wasm", BANK), async move |cpu, monitor| {
        let done = std::rc::Rc::new(std::cell::Cell::new(0));
        for task in 0..8 {
            let (cpu, monitor, done) = (cpu.clone(), monitor.clone(), done.clone());
            cpu.clone().spawn(async move {
                let mut random = Random(task);
                for _ in 0..30 {
                    let mut account = || Value::BigInt(1 + random.below(4) as i64);
                    let arguments = [account(), account(), Value::BigInt(1)];
                    call(&cpu, &monitor, "transfer", &arguments).await.expect("rich enough");
                }
                done.set(done.get() + 1);
            });
        }
        while done.get() < 8 {
            cpu.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(call(&cpu, &monitor, "total", &[]).await, Ok(Value::BigInt(1000 * ACCOUNTS)));
    });
}

#[test]
fn the_sources_of_the_shipped_programs_make_the_same_programs() {
    let described = |bytes: &[u8]| {
        let (_, functions) = Program::compile("shipped", bytes).expect("a program");
        let mut shown: Vec<String> = functions.iter().map(|function| function.signature().to_string()).collect();
        shown.sort();
        shown
    };
    for (name, shipped) in [("bank", BANK), ("tpcb", TPCB), ("tpcc", TPCC), ("oltp", OLTP)] {
        let Some(bytes) = built(name, &["--no-default-features"]) else {
            skip!("the Rust target wasm32-unknown-unknown is not installed (rustup target add wasm32-unknown-unknown)");
        };
        assert_eq!(described(&bytes), described(shipped), "{name}: make programs");
        if name == "bank" {
            assert_is_a_bank(loaded("bank.wasm", &bytes), 7);
        }
    }
}

#[test]
fn the_shipped_mixes_call_programs_that_keep_their_sums() {
    let call_of = |random: &mut Random, name: &str| match name {
        "tpcb" => [2_000_000, 100, 10, 9000].map(|most| Value::BigInt(random.below(most) as i64 - 1000)).to_vec(),
        _ => vec![Value::BigInt(random.below(10_000) as i64)],
    };
    for (program, bytes, functions) in [("tpcb.wasm", TPCB, &["tpcb"][..]), ("oltp.wasm", OLTP, &["heavy", "light"])] {
        with_programs(loaded(program, bytes), async move |cpu, monitor| {
            let mut random = Random(7);
            for _ in 0..50 {
                for name in functions {
                    let arguments = call_of(&mut random, name);
                    call(&cpu, &monitor, name, &arguments).await.expect("it does not fail");
                }
            }
            let (slices, name) = if program == "tpcb.wasm" { (-1..2000, "tpcb_accounts") } else { (0..10, "records") };
            let (mut sum, mut moved) = (0, 0);
            for slice in slices {
                let value = call(&cpu, &monitor, name, &[Value::BigInt(slice)]).await;
                let Ok(Value::BigInt(value)) = value else { panic!("{name}({slice}): {value:?}") };
                (sum, moved) = (sum + value, moved + value.abs());
            }
            assert!(moved > 0);
            let expected = match program {
                "tpcb.wasm" => {
                    let tellers = call(&cpu, &monitor, "tpcb_tellers", &[]).await;
                    assert_eq!(tellers, call(&cpu, &monitor, "tpcb_branches", &[]).await);
                    tellers
                }
                _ => Ok(Value::BigInt(0)),
            };
            assert_eq!(Ok(Value::BigInt(sum)), expected, "{program}");
        });
    }
}

#[test]
fn texts_structures_indexes_and_null_pass_between_clients_and_a_program_in_rust() {
    let Some(bytes) = built("guests", &[]) else {
        skip!("the Rust target wasm32-unknown-unknown is not installed (rustup target add wasm32-unknown-unknown)");
    };
    let text = |text: &str| Value::Text(text.to_owned());
    with_programs(loaded("guests.wasm", &bytes), async move |cpu, monitor| {
        let sign = async |name: &str, words: Value| call(&cpu, &monitor, "sign", &[text(name), words]).await;
        assert_eq!(sign("Ada", text("lovely")).await, Ok(Value::BigInt(1)));
        assert_eq!(sign("Grace", Value::Null).await, Ok(Value::BigInt(2)));
        assert_eq!(sign("Ada", text("again")).await, Ok(Value::BigInt(3)));
        let last = async |name: &str| call(&cpu, &monitor, "last_words", &[text(name)]).await;
        assert_eq!(last("Ada").await, Ok(text("again")));
        assert_eq!(last("Grace").await, Ok(Value::Null));
        assert_eq!(call(&cpu, &monitor, "forget", &[text("Ada")]).await, Ok(Value::BigInt(2)));
        assert_eq!(last("Ada").await, Ok(Value::Null));
        // A row that is too long, and a panic: a slice beyond the end.
        let long = sign("Ada", text(&"x".repeat(2000))).await;
        assert!(matches!(long, Err(CallError::Program(ProgramError::Store(_)))), "{long:?}");
    });
}

#[test]
fn a_function_may_have_the_name_of_one_of_the_standard_library_or_of_another_export() {
    let Some(bytes) = built("names", &[]) else {
        skip!("the Rust target wasm32-unknown-unknown is not installed (rustup target add wasm32-unknown-unknown)");
    };
    with_programs(loaded("names.wasm", &bytes), async move |cpu, monitor| {
        let number = Value::DoublePrecision;
        for (name, given, returned) in [
            ("round", vec![number(1.99)], number(1.95)),
            ("francs", vec![number(1.99)], number(2.0)),
            ("pow", vec![number(2.0), number(10.0)], number(1024.0)),
            ("log", vec![Value::BigInt(1), number(10.0), Value::BigInt(2)], Value::Null),
            ("memory", vec![Value::BigInt(1)], number(2.3)),
        ] {
            assert_eq!(call(&cpu, &monitor, name, &given).await, Ok(returned), "{name}");
        }
    });
}

/// The programs of these sources, in C; `None` where the compiler or the linker is missing.
fn compiled(sources: &[PathBuf]) -> Option<Programs> {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("c.wasm");
    let mut clang = Command::new("clang");
    clang.args(["--target=wasm32", "-Os", "-nostdlib", "-Wall", "-Wextra", "-Werror", "-Wl,--no-entry", "-o"]);
    match clang.arg(&out).args(sources).arg("-I").arg(root().join("program")).output() {
        Ok(output) if output.status.success() => Some(loaded("c.wasm", &std::fs::read(out).unwrap())),
        Ok(output) if Command::new("wasm-ld").arg("--version").output().is_ok() => {
            panic!("{}", String::from_utf8_lossy(&output.stderr))
        }
        _ => None,
    }
}

#[test]
fn in_c_too_a_function_may_have_the_name_of_one_of_a_library_or_of_another_export() {
    let directory = tempfile::tempdir().unwrap();
    let (program, library) = (directory.path().join("program.c"), directory.path().join("library.c"));
    let functions = r#"#include <awase.h>
        AWASE_FUNCTION(round, "round(amount double precision) returns double precision")
        double round(double amount) { return amount + 100; }
        AWASE_FUNCTION(francs, "francs(amount double precision) returns double precision")
        double francs(double amount) { return __builtin_round(amount); }
        AWASE_FUNCTION(memory, "memory() returns bigint")
        int64_t memory(void) { return 7; }
        AWASE_FUNCTION(trap, "trap(number bigint) returns bigint")
        int64_t trap(int64_t number) { __builtin_trap(); return number; }"#;
    std::fs::write(&program, functions).unwrap();
    // As an archive's, it counts only where there is no other of the name.
    let round = "__attribute__((weak)) double round(double amount) { return (int)(amount + 0.5); }";
    std::fs::write(&library, round).unwrap();
    let Some(programs) = compiled(&[program, library]) else { skip!("clang or lld is not installed") };
    with_programs(programs, async |cpu, monitor| {
        let given = [Value::DoublePrecision(1.75)];
        assert_eq!(call(&cpu, &monitor, "round", &given).await, Ok(Value::DoublePrecision(101.75)));
        assert_eq!(call(&cpu, &monitor, "francs", &given).await, Ok(Value::DoublePrecision(2.0)));
        assert_eq!(call(&cpu, &monitor, "memory", &[]).await, Ok(Value::BigInt(7)));
        let trapped = call(&cpu, &monitor, "trap", &[Value::BigInt(1)]).await.expect_err("it is no number");
        assert!(trapped.to_string().ends_with("(in trap)"), "{trapped}");
    });
}

#[test]
fn a_program_in_c_does_what_one_in_rust_does() {
    let Some(programs) = compiled(&[root().join("program/examples/counter.c")]) else {
        skip!("clang or lld is not installed");
    };
    with_programs(programs, async |cpu, monitor| {
        let count = async |name: &str, amount: i64| {
            call(&cpu, &monitor, "count", &[Value::Text(name.to_owned()), Value::BigInt(amount)]).await
        };
        assert_eq!(call(&cpu, &monitor, "first_counter", &[]).await, Ok(Value::Null));
        assert_eq!(count("pears", 3).await, Ok(Value::BigInt(3)));
        assert_eq!(count("pears", -1).await, Ok(Value::BigInt(2)));
        assert_eq!(count("apples", 7).await, Ok(Value::BigInt(7)));
        assert_eq!(call(&cpu, &monitor, "first_counter", &[]).await, Ok(Value::Text("apples".into())));
        let long = count(&"x".repeat(65), 1).await;
        assert_eq!(long, Err(CallError::Program(ProgramError::Abort("the name is too long".into()))));
    });
}
