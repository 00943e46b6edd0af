//! The techniques of the OLTP paper act on calls of functions: what is counted differs, what clients are told does not.

use awase::control::client::Client;
use serde_json::Value;
use testkit::server::attempt;

use super::bank::Bank;

const CALLS: u64 = 20;

/// Calls that were executed at once; functions, and tables, that were looked up by name.
fn counted(control: &mut Client) -> [u64; 3] {
    let status = control.status().expect("the server's status");
    let database = &status["databases"][0];
    let number = |value: &Value| value.as_u64().expect("a number");
    let functions = database["functions"].as_array().expect("functions");
    let at_once = functions.iter().map(|function| number(&function["at_once"])).sum();
    [at_once, number(&database["function_lookups"]), number(&database["table_lookups"])]
}

/// Calls a function again and again, as a prepared statement.
fn deposit(bank: &Bank) {
    let script = bank.sandbox.write("deposit.sql", "SELECT deposit(1, 1);\n");
    let (host, script) = (bank.host(), script.display().to_string());
    let calls = CALLS.to_string();
    let output = attempt(
        "pgbench",
        &["-n", "-h", &host, "-p", "5433", "-M", "prepared", "-c", "1", "-t", &calls, "-f", &script, "bank"],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn calls_are_executed_at_once_and_names_resolved_once_as_the_switches_say() {
    let bank = Bank::open();
    let mut control = Client::connect(&bank.sandbox.file("awase-data/control")).expect("the control socket");
    // The program's table is known from the first call on.
    deposit(&bank);
    let mut sum = 1000 + CALLS;
    for (hottest_first, resolved_names) in [("true", "true"), ("true", "false"), ("false", "true"), ("false", "false")]
    {
        control.set("hottest_first", hottest_first).expect("set");
        control.set("resolved_names", resolved_names).expect("set");
        let before = counted(&mut control);
        deposit(&bank);
        let after = counted(&mut control);
        let [at_once, functions, tables] = [0, 1, 2].map(|index| after[index] - before[index]);
        let case = format!("hottest_first {hottest_first}, resolved_names {resolved_names}");
        assert_eq!(at_once, if hottest_first == "true" { CALLS } else { 0 }, "{case}");
        match resolved_names {
            "true" => assert!(functions < CALLS / 4 && tables == 0, "{case}: {functions}, {tables}"),
            _ => assert!(functions >= CALLS && tables >= CALLS, "{case}: {functions}, {tables}"),
        }
        sum += CALLS;
        assert_eq!(bank.psql(&["SELECT balance(1)"]).trim(), sum.to_string());
    }
}

#[test]
fn calls_are_in_the_trace() {
    let bank = Bank::open();
    deposit(&bank);
    let mut trace = std::process::Command::new(env!("CARGO_BIN_EXE_awase"));
    let shown = trace.arg("trace").arg(bank.sandbox.file("awase-data/trace")).args(["--event", "postgres.call"]);
    let shown = shown.output().expect("awase trace");
    let text = String::from_utf8_lossy(&shown.stdout);
    let calls = text.lines().filter(|line| line.contains("postgres.call")).count() as u64;
    assert_eq!(calls, CALLS, "{text}");
}
