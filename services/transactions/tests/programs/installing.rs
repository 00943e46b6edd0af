//! Programs come and go while others are called.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use transactions::Value;
use transactions::program::{FaultError, ModuleError, Programs, install};

use crate::scene::{call, module, with_programs};

fn write(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(name), wat::parse_str(text).expect("the test's module is right")).expect("written");
}

/// `name() returns bigint` that returns `value`.
fn constant(name: &str, value: i64) -> String {
    format!("(module (func (export \"{name}\") (result i64) (i64.const {value})))")
}

#[test]
fn a_file_that_is_no_program_does_not_keep_others_from_being_loaded() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("broken.wasm"), b"no module").unwrap();
    fs::write(directory.path().join("Wrong-Name.wasm"), b"").unwrap();
    fs::write(directory.path().join("notes.txt"), b"not looked at").unwrap();
    write(directory.path(), "good.wasm", &constant("good", 1));
    let (programs, faults) = Programs::load(directory.path());
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("Wrong-Name.wasm: the name of a program's file is one as SQL has them"), "{told:?}");
    assert!(told[1].contains("broken.wasm: it is no WebAssembly module"), "{told:?}");
    assert!(programs.find("good").is_some());
}

#[test]
fn a_directory_that_is_not_there_is_told() {
    let (programs, faults) = Programs::load(Path::new("/nowhere/programs"));
    assert!(faults[0].to_string().contains("/nowhere/programs: it cannot be read"), "{faults:?}");
    assert!(programs.functions().is_empty());
}

#[test]
fn a_broken_new_version_leaves_the_former_one() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "one.wasm", &constant("one", 1));
    let (programs, faults) = Programs::load(directory.path());
    assert_eq!(faults, []);
    let generation = programs.generation();
    fs::write(directory.path().join("one.wasm"), b"\0asm").unwrap();
    let faults = programs.reload();
    assert!(
        faults[0].former && faults[0].to_string().ends_with("the version that was loaded before stays"),
        "{faults:?}"
    );
    assert!(programs.find("one").is_some() && programs.generation() > generation);
    fs::remove_file(directory.path().join("one.wasm")).unwrap();
    assert_eq!(programs.reload(), []);
    assert!(programs.find("one").is_none());
}

#[test]
fn two_programs_cannot_have_a_function_of_one_name() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(directory.path(), "first.wasm", &constant("f", 1));
    write(elsewhere.path(), "second.wasm", &constant("f", 2));
    let refused = install(&elsewhere.path().join("second.wasm"), directory.path()).err().expect("it is refused");
    assert_eq!(refused.what, FaultError::Function { function: "f".into(), program: "first".into() });
    assert!(!directory.path().join("second.wasm").exists());

    write(directory.path(), "second.wasm", &constant("f", 2));
    let (programs, faults) = Programs::load(directory.path());
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(programs.find("f").unwrap().program().name(), "first");
}

#[test]
fn what_would_keep_the_compiler_for_long_is_not_installed() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Each local may have a value of its own in each loop.
    let (locals, loops) = (20_000, 4_000);
    let reads: String = (2..locals).map(|local| format!("(drop (local.get {local}))")).collect();
    let body = "(loop (br_if 0 (local.get 1)))".repeat(loops) + &reads;
    let locals = "i64 ".repeat(locals);
    let text = format!(r#"(module (func (export "f") (param i64) (local i32 {locals}) {body}))"#);
    write(elsewhere.path(), "long.wasm", &text);
    let refused = install(&elsewhere.path().join("long.wasm"), directory.path()).err().expect("it is refused");
    assert_eq!(refused.what, FaultError::Module(ModuleError::TooComplex));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn installing_replaces_the_former_version_and_leaves_nothing_else() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for value in [1, 2] {
        write(elsewhere.path(), "p.wasm", &constant("f", value));
        let (program, functions) = install(&elsewhere.path().join("p.wasm"), directory.path()).expect("installed");
        assert_eq!((program.name(), functions.len()), ("p", 1));
    }
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["p.wasm"]);
    let (programs, _) = Programs::load(directory.path());
    with_programs(programs, async |cpu, monitor| {
        assert_eq!(call(&cpu, &monitor, "f", &[]).await, Ok(Value::BigInt(2)));
    });
}

#[test]
fn a_call_under_way_ends_with_the_version_that_it_began_with() {
    let directory = tempfile::tempdir().unwrap();
    // Long enough to be interrupted many times.
    let slow = |value: i64| {
        let body = format!(
            r#"(func (export "f") (result i64) (local $n i32)
                (loop (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 1000000))))
                (i64.const {value}))"#
        );
        module("f() returns bigint", &body)
    };
    write(directory.path(), "p.wasm", &slow(1));
    let (programs, faults) = Programs::load(directory.path());
    assert_eq!(faults, []);
    let (path, next) = (directory.path().to_owned(), slow(2));
    with_programs(programs, async move |cpu, monitor| {
        let returned = Rc::new(Cell::new(None));
        let (result, other, own) = (Rc::clone(&returned), cpu.clone(), monitor.clone());
        cpu.spawn(async move { result.set(Some(call(&other, &own, "f", &[]).await)) });
        for _ in 0..5 {
            cpu.yield_now().await;
        }
        assert!(returned.take().is_none(), "the call has ended already");
        write(&path, "p.wasm", &next);
        assert_eq!(monitor.programs().reload(), []);
        assert_eq!(call(&cpu, &monitor, "f", &[]).await, Ok(Value::BigInt(2)));
        loop {
            match returned.take() {
                Some(returned) => break assert_eq!(returned, Ok(Value::BigInt(1))),
                None => cpu.yield_now().await,
            }
        }
    });
}
