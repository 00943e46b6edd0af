//! `awase load` against a server's bank.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::server::{Sandbox, attempt};

use crate::bank::Bank;

const MIX: &str = r#"
database = "bank"
terminals = 40
transactions = 600

[[transaction]]
name = "balance"
weight = 1
sql = "SELECT balance($1)"
arguments = [{ uniform = [1, 10] }]

[[transaction]]
name = "transfer"
weight = 3
sql = "SELECT transfer($1, $2, $3)"
arguments = [{ uniform = [1, 10] }, { uniform = [1, 10] }, { text = "1" }]

[[transaction]]
name = "poor"
weight = 1
sql = "SELECT transfer(1, 2, $1)"
arguments = [{ text = "1000000" }]

[[check]]
name = "a third party's balance stays"
sql = "SELECT balance(77)"

[[check]]
name = "it is 1000"
sql = "SELECT balance(78)"
expect = "1000"
"#;

fn load(bank: &Bank, mix: &str, flags: &[&str]) -> Output {
    load_at(&bank.host(), bank, mix, flags)
}

fn load_at(server: &str, bank: &Bank, mix: &str, flags: &[&str]) -> Output {
    let path = bank.sandbox.write("mix.toml", mix);
    let arguments = ["load", path.to_str().expect("UTF-8"), "--server", server, "--quiet"];
    attempt(env!("CARGO_BIN_EXE_awase"), &[&arguments, flags].concat())
}

fn parsed(output: &Output) -> Value {
    let [result, errors] = [&output.stdout, &output.stderr].map(|told| String::from_utf8_lossy(told));
    assert!(output.status.success(), "{errors}{result}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn sum_of_ten(bank: &Bank) -> i64 {
    let queries: Vec<String> = (1..=10).map(|account| format!("SELECT balance({account})")).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    bank.psql(&queries).lines().map(|line| line.parse::<i64>().expect("a balance")).sum()
}

#[test]
fn a_mix_runs_to_its_end_is_counted_and_checked() {
    let bank = Bank::open();
    let before = sum_of_ten(&bank);
    let picture = bank.sandbox.file("load.svg");
    let result = parsed(&load(&bank, MIX, &["--json", "--plot", picture.to_str().expect("UTF-8")]));
    let of = |index: usize, key: &str| result["transactions"][index][key].clone();
    let done: i64 = (0..3).map(|index| of(index, "done").as_i64().expect("a number")).sum();
    let refused = of(2, "errors")["P0001"].as_i64().expect("those who are poor");
    assert_eq!(done + refused, 600, "{result:#}");
    assert!(of(1, "done").as_i64() > of(0, "done").as_i64(), "by weight: {result:#}");
    assert_eq!(result["checks"][0]["right"], Value::Bool(true));
    assert_eq!(result["checks"][1]["found"], "1000");
    // One transfer in ten is from an account to itself, and moves nothing either.
    assert_eq!(sum_of_ten(&bank), before);
    assert!(std::fs::read_to_string(picture).expect("a picture").contains("</svg>"));
}

#[test]
fn an_open_loop_arrives_at_its_rate_however_long_the_server_takes() {
    let bank = Bank::open();
    let result = parsed(&load(&bank, MIX, &["--json", "--rate", "300", "--transactions", "600"]));
    let seconds = result["seconds"].as_f64().expect("a number");
    // 600 arrivals at 300 a second take 2 s; their standard deviation is 0.08 s.
    assert!(seconds > 1.6, "{result:#}");
}

#[test]
fn new_orders_and_payments_of_tpc_c_keep_its_consistency_conditions() {
    let sandbox = Sandbox::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let programs = sandbox.file("awase-data/programs/bank");
    std::fs::create_dir_all(&programs).expect("a directory");
    std::fs::copy(root.join("program/tpcc.wasm"), programs.join("tpcc.wasm")).expect("installed");
    let bank = Bank::start(sandbox, "");
    let shipped = |name: &str| std::fs::read_to_string(root.join("packaging/mixes").join(name)).expect("a mix");
    let result = parsed(&load(&bank, &shipped("tpcc-load.toml"), &["--json"]));
    assert_eq!(result["transactions"][0]["done"], 100, "{result:#}");
    let mix = shipped("tpcc.toml").replace("warm_up = \"1s\"", "");
    let result = parsed(&load(&bank, &mix, &["--json", "--transactions", "1500", "--terminals", "20"]));
    let right = result["checks"].as_array().expect("checks").iter().filter(|check| check["right"] == true).count();
    assert_eq!(right, 4, "{result:#}");
    let of = |index: usize, what: &str| result["transactions"][index][what].clone();
    assert!([0, 2, 3].iter().all(|index| of(*index, "errors") == json!({})), "{result:#}");
    assert!([0, 2, 3].iter().all(|index| of(*index, "done").as_u64() > Some(50)), "{result:#}");
    assert!(of(1, "done") == 0 && of(1, "errors")["P0001"].as_u64() > Some(0), "{result:#}");
    let told = bank.refusal("SELECT tpcc_new_order(11, 1, 1, 1, 1, false)");
    assert!(told.contains("tpcc_load"), "{told}");
}

/// A load of the mix with other `keys`. From its first second on `stall` has it, and what waits until it has run for so
/// many seconds. The result, and its 99th percentile.
fn load_with(bank: &Bank, keys: &str, stall: impl FnOnce(Pid, &mut dyn FnMut(u64))) -> (Value, Duration) {
    let path = bank.sandbox.write("mix.toml", &MIX.replace("terminals = 40\ntransactions = 600", keys));
    let mut command = Command::new(env!("CARGO_BIN_EXE_awase"));
    command.arg("load").arg(path).args(["--json", "--server", &bank.host()]);
    let mut load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("awase runs");
    let mut shown = 0;
    let mut lines = BufReader::new(load.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let mut wait_until = |second| {
        while shown < second {
            let line = lines.next().expect("it runs for so long");
            shown = line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a second");
        }
    };
    wait_until(1);
    stall(Pid::from_child(&load), &mut wait_until);
    let told: Vec<String> = lines.collect();
    let output = load.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{told:#?}");
    let result = parsed(&output);
    let micros = result["percentiles_micros"]["99"].as_u64().expect("a number");
    (result, Duration::from_micros(micros))
}

/// Terminals that wait for the server ask for nothing else meanwhile; what they would have asked for counts all the same.
#[test]
fn a_stall_shows_in_the_latencies_of_all_that_was_due_meanwhile() {
    let bank = Bank::open();
    let stall_until = |second| {
        let server = &bank.server;
        move |_, wait_until: &mut dyn FnMut(u64)| {
            server.signal(libc::SIGSTOP);
            wait_until(second);
            server.signal(libc::SIGCONT);
        }
    };
    let half = Duration::from_millis(500);
    let open = "terminals = 2\nrate = 400.0\nduration = \"3s\"";
    let (result, slow) = load_with(&bank, open, stall_until(2));
    assert!(slow > half, "{result:#}");
    // Until after the end.
    let (result, slow) = load_with(&bank, open, stall_until(4));
    assert!(slow > half && result["not_begun"].as_u64() > Some(100), "{result:#}");
    // What was due while the load itself was stopped, which thinks most of the time.
    let thoughtful = "terminals = 40\nthink_time = \"100ms\"\nduration = \"3s\"";
    let (result, slow) = load_with(&bank, thoughtful, |load, _| {
        kill_process(load, Signal::STOP).expect("stopped");
        std::thread::sleep(2 * half);
        kill_process(load, Signal::CONT).expect("continued");
    });
    assert!(slow > half && result["not_begun"] == 0, "{result:#}");
}

/// The end of the load comes, as a rule, just as something is due. Where the host lets the server wait so long that no terminal
/// may be idle, it is tried again.
#[test]
fn what_comes_due_at_the_end_beside_idle_terminals_was_not_kept_waiting() {
    let bank = Bank::in_memory();
    for _ in 0..5 {
        let (result, slow) = load_with(&bank, "terminals = 200\nrate = 100.0\nduration = \"2s\"", |_, _| {});
        // In a second, half of the terminals have something to do.
        if slow < Duration::from_secs(1) {
            assert!(result["transactions"][1]["done"].as_u64() > Some(0) && result["not_begun"] == 0, "{result:#}");
            return;
        }
    }
    panic!("the host let the server wait for seconds, five times");
}

/// As psql, from the environment or a password file.
#[test]
fn a_user_proves_that_it_knows_its_password() {
    let bank = Bank::open_with("[[user]]\nname = \"ann\"\npassword = \"pencil\"\n");
    let path = bank.sandbox.write("mix.toml", &MIX[..MIX.find("[[check]]").expect("checks")]);
    let run = |user: &str, variable: (&str, &str)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_awase"));
        command.arg("load").arg(&path).args(["--quiet", "--transactions", "60", "--terminals", "3", "--user", user]);
        command.args(["--server", &bank.host()]).env_remove("PGPASSWORD").env("PGPASSFILE", "/nonexistent");
        let output = command.env(variable.0, variable.1).output().expect("awase runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run("ann", ("PGPASSWORD", "pencil")), (true, String::new()));
    let file = bank.sandbox.write("pgpass", "localhost:5433:bank:ann:pencil\n");
    let name = file.to_str().expect("UTF-8");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("chmod");
    let (_, told) = run("ann", ("PGPASSFILE", name));
    assert!(told.contains("may be read by others: chmod 600"), "{told}");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    assert_eq!(run("ann", ("PGPASSFILE", name)), (true, String::new()));
    for (user, variable, what) in [
        ("ann", ("PGPASSWORD", "pencils"), "password authentication failed for user \"ann\" (28P01)"),
        ("bob", ("PGPASSWORD", "pencil"), "password authentication failed for user \"bob\" (28P01)"),
        ("ann", ("NOTHING", ""), "the server wants a password: set PGPASSWORD"),
        ("bob", ("PGPASSFILE", name), "the server wants a password: set PGPASSWORD"),
    ] {
        let (success, told) = run(user, variable);
        assert!(!success && told.contains(what), "{told}");
    }
}

#[test]
fn a_load_of_nothing_is_refused() {
    let bank = Bank::open();
    for arguments in [["--terminals", "0"], ["--transactions", "0"], ["--duration", "0s"], ["--rate", "0"]] {
        let output = load(&bank, MIX, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

#[test]
fn mistakes_and_wrong_results_are_told() {
    let bank = Bank::open();
    let message = |output: &Output| {
        assert!(!output.status.success());
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let wrong = MIX.replace("expect = \"1000\"", "expect = \"999\"");
    let told = message(&load(&bank, &wrong, &["--transactions", "50"]));
    assert!(told.contains("check it is 1000: WRONG: 1000 in place of 999"), "{told}");
    let misspelt = MIX.replace("expect = \"1000\"", "same_as = \"SELECT balances(1)\"");
    let told = message(&load(&bank, &misspelt, &["--transactions", "50"]));
    assert!(
        told.contains("the server refused \"SELECT balances(1)\"") && !told.contains(" transactions in "),
        "{told}"
    );
    let refused = MIX.replace("expect = \"1000\"", "same_as = \"SELECT transfer(1, 2, 9999999)\"");
    let told = message(&load(&bank, &refused, &["--transactions", "50"]));
    assert!(
        told.contains("check it is 1000: REFUSED: the server refused \"SELECT transfer(1, 2, 9999999)\""),
        "{told}"
    );
    assert!(
        told.contains(" transactions in ") && told.contains(": right ("),
        "the result and other checks are kept: {told}"
    );
    let failing = "[[transaction]]\nname = \"poor\"\nsql = \"SELECT transfer(1, 2, 1000000)\"\n";
    let told = message(&load(&bank, failing, &["--transactions", "50", "--database", "bank"]));
    assert!(told.contains("50 times poor failed with P0001") && told.contains("no transaction succeeded"), "{told}");
    let small = Bank::open_with("[limits]\nconnections = 16\n");
    let told = message(&load(&small, MIX, &[]));
    assert!(told.contains("(53300). A client gets at most half of the connections that there are"), "{told}");
    let unknown = MIX.replace("SELECT balance($1)", "SELECT balances($1)");
    let told = message(&load(&bank, &unknown, &[]));
    assert!(told.contains("the server refused \"SELECT balances($1)\"") && told.contains("42883"), "{told}");
    let told = message(&load(&bank, "terminals = 5", &[]));
    assert!(told.contains("mix.toml is not a mix") && told.contains("transaction"), "{told}");
    let told = message(&load_at("127.0.0.1:1", &bank, MIX, &[]));
    assert!(told.contains("cannot connect to 127.0.0.1:1"), "{told}");
    let told = message(&load(&bank, MIX, &["--database", "bar"]));
    assert!(told.contains("3D000"), "{told}");
}
