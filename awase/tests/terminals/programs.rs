//! `awase program`: what it says of programs, and new versions under the hands of terminals.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testkit::server::{AWASE, Sandbox};

use crate::bank::Bank;
use crate::client::{Client, query};

/// A program `press` whose function returns a number.
fn press(declaration: &str, parameters: &str, edition: i64) -> Vec<u8> {
    let body = format!("(func (export \"edition\") {parameters} (result i64) (i64.const {edition}))");
    let module = format!("(module (memory (export \"memory\") 1) (@custom \"awase\" \"{declaration}\") {body})");
    wat::parse_str(module).expect("a module")
}

fn install(sandbox: &Sandbox, module: &[u8]) {
    std::fs::write(sandbox.file("press.wasm"), module).expect("written");
    let output = sandbox.run(&["program", "install", "press.wasm"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether it is content, what it shows, and what it complains of.
fn program(sandbox: &Sandbox, arguments: &[&str]) -> (bool, String, String) {
    let output = sandbox.run(&[&["program"], arguments].concat());
    let [shown, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    (output.status.success(), shown, errors)
}

#[test]
fn check_shows_the_functions_of_what_is_right_and_says_what_is_wrong_with_the_rest() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("press.wasm"), press("edition() returns bigint", "", 1)).expect("written");
    std::fs::write(sandbox.file("text.wasm"), "SELECT 1").expect("written");
    std::fs::write(sandbox.file("lies.wasm"), press("price() returns bigint", "", 1)).expect("written");
    let shown = "press\n  edition() returns bigint\n";
    assert_eq!(program(&sandbox, &["check", "press.wasm"]), (true, shown.into(), String::new()));
    let (is_right, shown_too, errors) =
        program(&sandbox, &["check", "none.wasm", "text.wasm", "lies.wasm", "press.wasm"]);
    assert_eq!((is_right, shown_too.as_str()), (false, shown));
    let told: Vec<&str> = errors.lines().collect();
    assert_eq!(told.len(), 3, "{errors}");
    assert!(told[0].starts_with("awase: none.wasm: it cannot be read: "), "{errors}");
    assert!(told[1].starts_with("awase: text.wasm: it is no WebAssembly module"), "{errors}");
    assert!(told[2].starts_with("awase: lies.wasm: ") && told[2].contains("price"), "{errors}");
}

#[test]
fn list_shows_the_programs_of_a_database_and_says_which_are_broken() {
    let sandbox = Sandbox::new();
    install(&sandbox, &press("edition() returns bigint", "", 1));
    assert_eq!(program(&sandbox, &["list"]), (true, "press\n  edition() returns bigint\n".into(), String::new()));
    install(&sandbox, &press("edition(of bigint) returns bigint", "(param i64)", 2));
    let shown = "press\n  edition(of bigint) returns bigint\n";
    assert_eq!(program(&sandbox, &["list"]), (true, shown.into(), String::new()));
    assert_eq!(program(&sandbox, &["list", "--database", "shop"]).1, "");
    std::fs::write(sandbox.file("awase-data/programs/bank/broken.wasm"), "").expect("written");
    let (is_right, shown_too, errors) = program(&sandbox, &["list"]);
    assert_eq!((is_right, shown_too.as_str()), (false, shown));
    assert!(errors.contains("programs/bank/broken.wasm: it is no WebAssembly module"), "{errors}");
}

/// Ends the terminals, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn terminals_that_call_get_the_old_version_or_the_new_one_and_no_error() {
    const EDITIONS: i64 = 8;
    let bank = Bank::open();
    let edition = |number| press("edition() returns bigint", "", number);
    install(&bank.sandbox, &edition(1));
    let is_over = AtomicBool::new(false);
    let call = || {
        let mut client = Client::session(&bank);
        let mut seen = 1;
        while !is_over.load(Ordering::SeqCst) {
            let found = client.number("SELECT edition()").expect("no error");
            assert!((seen..=EDITIONS).contains(&found), "{found} after {seen}");
            seen = found;
        }
    };
    thread::scope(|scope| {
        let over = Over(&is_over);
        let terminals: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        let mut beside = Client::session(&bank);
        for number in 2..=EDITIONS {
            install(&bank.sandbox, &edition(number));
            // Who calls after the command has ended has the new one.
            assert_eq!(beside.number("SELECT edition()"), Ok(number));
        }
        drop(over);
        terminals.into_iter().for_each(|terminal| terminal.join().expect("it saw what it must"));
    });
}

#[test]
fn what_is_installed_is_loaded_although_standard_output_is_full() {
    let bank = Bank::open();
    std::fs::write(bank.sandbox.file("press.wasm"), press("edition() returns bigint", "", 1)).expect("written");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut command = Command::new(&*AWASE);
    command.args(["program", "install", "press.wasm"]).current_dir(bank.sandbox.path()).stdout(full);
    assert_eq!(command.status().expect("awase").code(), Some(1));
    assert_eq!(Client::session(&bank).number("SELECT edition()"), Ok(1));
}

#[test]
fn a_transaction_ends_with_the_version_of_its_programs_that_it_began_with() {
    let bank = Bank::open();
    install(&bank.sandbox, &press("edition() returns bigint", "", 1));
    let (mut in_block, mut beside) = (Client::session(&bank), Client::session(&bank));
    in_block.send(&query("BEGIN"));
    in_block.until_ready();
    assert_eq!(in_block.number("SELECT edition()"), Ok(1));
    install(&bank.sandbox, &press("edition(of bigint) returns bigint", "(param i64)", 2));
    assert_eq!(beside.number("SELECT edition(7)"), Ok(2));
    assert_eq!(beside.number("SELECT edition()"), Err("42883".to_owned()));
    assert_eq!(in_block.number("SELECT edition()"), Ok(1));
    in_block.send(&query("COMMIT"));
    in_block.until_ready();
    assert_eq!(in_block.number("SELECT edition(7)"), Ok(2));
}

#[test]
fn a_program_whose_file_is_removed_is_reported_by_a_reload() {
    let mut bank = Bank::open();
    install(&bank.sandbox, &press("edition() returns bigint", "", 1));
    std::fs::remove_file(bank.sandbox.file("awase-data/programs/bank/press.wasm")).expect("removed");
    bank.server.signal(libc::SIGHUP);
    bank.server.await_notice("RELOADING=1");
    bank.server.await_notice("READY=1");
    bank.server.signal(libc::SIGTERM);
    let (status, output, errors) = bank.server.wait();
    assert!(status.success(), "{status}: {errors}");
    assert!(output.contains("database \"bank\": the program press is gone, with its functions\n"), "{output}");
}
