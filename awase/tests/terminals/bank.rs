//! A server with a bank: accounts of which each has 1,000 at first.

use std::path::PathBuf;
use std::process::Output;

use testkit::server::{Sandbox, Server, attempt};

/// `balance`, `deposit` and `transfer`, and `spin`, which never ends by itself.
const BANK: &str = r#"(module
    (import "awase" "table" (func $table (param i32 i32) (result i32)))
    (import "awase" "get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
    (import "awase" "put" (func $put (param i32 i32 i32 i32 i32)))
    (import "awase" "argument" (func $argument (param i32 i32)))
    (import "awase" "reply" (func $reply (param i32 i32)))
    (import "awase" "abort" (func $abort (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "account")
    (data (i32.const 16) "insufficient funds")
    (@custom "awase" "balance(account bigint) returns bigint\ndeposit(account bigint, amount bigint) returns bigint\ntransfer(payer bigint, payee bigint, amount bigint)\nhalf(of double precision) returns double precision\nnot_(of boolean) returns boolean\nsame(words text) returns text\nbytes(content bytea) returns bytea\nspin()")
    (func $accounts (result i32) (call $table (i32.const 0) (i32.const 7)))
    (func $read (param $account i64) (result i64)
        (i64.store (i32.const 64) (local.get $account))
        (if (result i64) (i32.lt_s (call $get (call $accounts) (i32.const 64) (i32.const 8) (i32.const 72) (i32.const 8)) (i32.const 0))
            (then (i64.const 1000))
            (else (i64.load (i32.const 72)))))
    (func $write (param $account i64) (param $balance i64)
        (i64.store (i32.const 64) (local.get $account))
        (i64.store (i32.const 72) (local.get $balance))
        (call $put (call $accounts) (i32.const 64) (i32.const 8) (i32.const 72) (i32.const 8)))
    (func (export "balance") (param i64) (result i64) (call $read (local.get 0)))
    (func $deposit (export "deposit") (param i64 i64) (result i64)
        (local $sum i64)
        (local.set $sum (i64.add (call $read (local.get 0)) (local.get 1)))
        (call $write (local.get 0) (local.get $sum))
        (local.get $sum))
    (func (export "transfer") (param i64 i64 i64)
        (if (i64.lt_s (call $read (local.get 0)) (local.get 2))
            (then (call $abort (i32.const 16) (i32.const 18))))
        (drop (call $deposit (local.get 0) (i64.sub (i64.const 0) (local.get 2))))
        (drop (call $deposit (local.get 1) (local.get 2))))
    (func (export "half") (param f64) (result f64) (f64.div (local.get 0) (f64.const 2)))
    (func (export "not_") (param i32) (result i32) (i32.eqz (local.get 0)))
    (func (export "same") (param i32)
        (call $argument (i32.const 0) (i32.const 100)) (call $reply (i32.const 100) (local.get 0)))
    (func (export "bytes") (param i32)
        (call $argument (i32.const 0) (i32.const 100)) (call $reply (i32.const 100) (local.get 0)))
    (func (export "spin") (loop (br 0))))"#;

/// Puts the bank's program where a server looks for it.
pub fn install(sandbox: &Sandbox) {
    let programs = sandbox.file("awase-data/programs/bank");
    std::fs::create_dir_all(&programs).expect("a directory");
    let module = wat::parse_str(BANK).expect("the bank is right");
    std::fs::write(programs.join("bank.wasm"), module).expect("written");
}

pub struct Bank {
    pub sandbox: Sandbox,
    pub server: Server,
}

impl Bank {
    pub fn open() -> Bank {
        Bank::open_with("")
    }

    /// `more`: lines of the configuration.
    pub fn open_with(more: &str) -> Bank {
        Bank::start(Sandbox::new(), more)
    }

    /// Reached at this port, too.
    pub fn open_on(port: u16) -> Bank {
        Bank::serve(Sandbox::new(), "", &["--postgres", &format!("127.0.0.1:{port}")])
    }

    pub fn start(sandbox: Sandbox, more: &str) -> Bank {
        Bank::serve(sandbox, more, &[])
    }

    /// With changes beside.
    pub fn trial(sandbox: Sandbox) -> Bank {
        Bank::serve_at(sandbox, "", "path = \"bank.db\"\noverlay = true", &[])
    }

    /// Whose disk never lets it wait.
    pub fn in_memory() -> Bank {
        Bank::serve_at(Sandbox::new(), "", "kind = \"ram\"", &[])
    }

    fn serve(sandbox: Sandbox, more: &str, arguments: &[&str]) -> Bank {
        Bank::serve_at(sandbox, more, "path = \"bank.db\"", arguments)
    }

    /// `place`: lines that say where the database is.
    fn serve_at(sandbox: Sandbox, more: &str, place: &str, arguments: &[&str]) -> Bank {
        install(&sandbox);
        let database = format!("[[database]]\nname = \"bank\"\nsize = \"64MiB\"\n{place}\n");
        let config = sandbox.write("awase.toml", &format!("{more}\n{database}"));
        let server = sandbox.serve(&[&["--config", config.to_str().expect("UTF-8")], arguments].concat());
        Bank { sandbox, server }
    }

    /// The directory of its socket, as clients of PostgreSQL are told it.
    pub fn host(&self) -> String {
        self.sandbox.file("awase-data").display().to_string()
    }

    pub fn socket(&self) -> PathBuf {
        self.sandbox.file("awase-data/.s.PGSQL.5433")
    }

    /// Runs psql with these commands, each as if typed.
    pub fn try_psql(&self, commands: &[&str]) -> Output {
        let host = self.host();
        let mut arguments =
            vec!["-X", "-A", "-t", "-v", "VERBOSITY=verbose", "-U", "anybody", "-h", &host, "-p", "5433"];
        arguments.extend(commands.iter().flat_map(|command| ["-c", *command]));
        arguments.push("bank");
        attempt("psql", &arguments)
    }

    pub fn psql(&self, commands: &[&str]) -> String {
        let output = self.try_psql(commands);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{commands:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The message of a command that is refused.
    pub fn refusal(&self, command: &str) -> String {
        let output = self.try_psql(&[command]);
        assert!(!output.status.success(), "{command} was not refused");
        String::from_utf8(output.stderr).expect("text")
    }
}
