//! A database with programs from WebAssembly's text.

use std::sync::Arc;

use kernel::{ForcedUnitAccess, Processor};
use testkit::scene::disk::Server;
use transactions::program::{ModuleError, Program, Programs};
use transactions::store::Database;
use transactions::{CallError, Monitor, Value};

pub fn compile(text: &str) -> Result<(), ModuleError> {
    let bytes = wat::parse_str(text).expect("the test's module is right");
    Program::compile("test", &bytes).map(drop)
}

/// What a module needs to be a program: the imports, a memory and the description of its functions.
pub fn module(descriptions: &str, body: &str) -> String {
    format!(
        r#"(module
            (import "awase" "table" (func $table (param i32 i32) (result i32)))
            (import "awase" "get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
            (import "awase" "put" (func $put (param i32 i32 i32 i32 i32)))
            (import "awase" "delete" (func $delete (param i32 i32 i32)))
            (import "awase" "next" (func $next (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "awase" "argument" (func $argument (param i32 i32)))
            (import "awase" "is_null" (func $is_null (param i32) (result i32)))
            (import "awase" "reply" (func $reply (param i32 i32)))
            (import "awase" "null" (func $null))
            (import "awase" "abort" (func $abort (param i32 i32)))
            (import "awase" "panic" (func $panic (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "account")
            (@custom "awase" "{descriptions}")
            {body})"#
    )
}

/// A directory with one program.
pub fn programs(text: &str) -> Programs {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = wat::parse_str(text).expect("the test's module is right");
    std::fs::write(directory.path().join("test.wasm"), bytes).expect("written");
    let (programs, faults) = Programs::load(directory.path());
    assert_eq!(faults, []);
    programs
}

/// Runs `task` on a processor with a new database of these programs.
pub fn with_programs<T: 'static>(
    programs: Programs,
    task: impl AsyncFnOnce(Processor, Arc<Monitor>) -> T + 'static,
) -> T {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, volume).await.expect("a new database");
        task(cpu, Monitor::new("test".to_owned(), database, programs)).await
    })
}

pub async fn call(cpu: &Processor, monitor: &Monitor, name: &str, arguments: &[Value]) -> Result<Value, CallError> {
    let function = monitor.programs().find(name).expect("the function is there");
    monitor.call(cpu, &function, arguments).await
}

/// Calls the function `f` of a module.
pub fn call_once(text: &str, arguments: Vec<Value>) -> Result<Value, CallError> {
    with_programs(programs(text), async move |cpu, monitor| call(&cpu, &monitor, "f", &arguments).await)
}
