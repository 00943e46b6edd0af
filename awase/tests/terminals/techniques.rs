//! The techniques of the OLTP paper act on calls of functions: what is counted differs, what clients are told does not.

use awase::control::client::Client as Control;
use serde_json::Value;
use testkit::server::attempt;

use super::bank::Bank;
use super::client::{Client, message};

const CALLS: u64 = 20;

fn control(bank: &Bank) -> Control {
    Control::connect(&bank.sandbox.file("awase-data/control")).expect("the control socket")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Of all processors together.
fn counted(control: &mut Control, what: &str) -> u64 {
    let status = control.status().expect("the server's status");
    status["processors"].as_array().expect("processors").iter().map(|processor| number(&processor[what])).sum()
}

/// Calls of functions, those of them that failed, and those that were executed at once.
fn calls(control: &mut Control) -> [u64; 3] {
    let status = control.status().expect("the server's status");
    let functions = status["databases"][0]["functions"].as_array().expect("functions");
    ["calls", "failures", "at_once"].map(|key| functions.iter().map(|function| number(&function[key])).sum())
}

/// Functions, and tables, that were looked up by name.
fn lookups(control: &mut Control) -> [u64; 2] {
    let status = control.status().expect("the server's status");
    ["function_lookups", "table_lookups"].map(|key| number(&status["databases"][0][key]))
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

/// Calls with each value of a switch in turn: by how much a counter has moved each time, and that nothing else differs.
fn moved<const N: usize>(switch: &str, values: [&str; N], what: &str) -> [u64; N] {
    let bank = Bank::open();
    let mut control = control(&bank);
    let mut sum = 1000;
    values.map(|value| {
        control.set(switch, value).expect("set");
        let before = counted(&mut control, what);
        deposit(&bank);
        sum += CALLS;
        let moved = counted(&mut control, what) - before;
        assert_eq!(bank.psql(&["SELECT balance(1)"]).trim(), sum.to_string());
        moved
    })
}

#[test]
fn completions_are_waited_for_with_a_quantum_only() {
    let [off, fixed] = moved("quantum", ["off", "1ms"], "quantum_waits");
    assert!(off == 0 && fixed > 0, "{off}, {fixed}");
}

#[test]
fn tasks_run_at_once_after_completions_with_immediate_dispatch_only() {
    let [off, on] = moved("immediate_dispatch", ["false", "true"], "immediate_dispatches");
    // With each call at least its log was written.
    assert!(off == 0 && on >= CALLS, "{off}, {on}");
}

#[test]
fn replies_to_pipelined_calls_leave_in_one_send_with_look_ahead_and_each_by_itself_without() {
    let bank = Bank::open();
    let mut control = control(&bank);
    let mut client = Client::session(&bank);
    client.send(&[message(b'P', b"\0SELECT deposit(1, 1)\0\0\0"), message(b'S', b"")].concat());
    client.until_ready();
    let call = [message(b'B', b"\0\0\0\0\0\0\0\0"), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat();
    let [without, with] = ["false", "true"].map(|look_ahead| {
        control.set("look_ahead", look_ahead).expect("set");
        let before = counted(&mut control, "sends");
        client.send(&call.repeat(CALLS as usize));
        (0..CALLS).for_each(|_| assert!(client.until_ready().iter().any(|(kind, _)| *kind == b'D')));
        counted(&mut control, "sends") - before
    });
    // A send is counted a moment after its reply has come.
    assert!(without + 1 >= CALLS && with <= CALLS / 2, "{without}, {with}");
    assert_eq!(bank.psql(&["SELECT balance(1)"]), "1040\n");
}

#[test]
fn calls_are_executed_at_once_and_names_resolved_once_as_the_switches_say() {
    let bank = Bank::open();
    let mut control = control(&bank);
    // The program's table is known from the first call on.
    deposit(&bank);
    let mut sum = 1000 + CALLS;
    for (hottest_first, resolved_names) in [("true", "true"), ("true", "false"), ("false", "true"), ("false", "false")]
    {
        control.set("hottest_first", hottest_first).expect("set");
        control.set("resolved_names", resolved_names).expect("set");
        let (before, looked_up) = (calls(&mut control), lookups(&mut control));
        deposit(&bank);
        let (after, now) = (calls(&mut control), lookups(&mut control));
        let case = format!("hottest_first {hottest_first}, resolved_names {resolved_names}");
        let at_once = if hottest_first == "true" { CALLS } else { 0 };
        assert_eq!([0, 1, 2].map(|index| after[index] - before[index]), [CALLS, 0, at_once], "{case}");
        let [functions, tables] = [0, 1].map(|index| now[index] - looked_up[index]);
        match resolved_names {
            "true" => assert!(functions < CALLS / 4 && tables == 0, "{case}: {functions}, {tables}"),
            _ => assert!(functions >= CALLS && tables >= CALLS, "{case}: {functions}, {tables}"),
        }
        sum += CALLS;
        assert_eq!(bank.psql(&["SELECT balance(1)"]).trim(), sum.to_string());
    }
}

#[test]
fn a_call_that_aborts_is_executed_at_once_and_once() {
    let bank = Bank::open();
    let mut control = control(&bank);
    // The program is initialized, and its table known, from the first call on.
    bank.psql(&["SELECT balance(1)"]);
    let before = calls(&mut control);
    for _ in 0..3 {
        assert!(bank.refusal("SELECT transfer(1, 2, 1001)").contains("insufficient funds"));
    }
    let after = calls(&mut control);
    assert_eq!([0, 1, 2].map(|index| after[index] - before[index]), [3, 3, 3]);
}

#[test]
fn a_call_is_one_record_of_the_trace_and_unthinned_two_and_so_is_what_its_program_asks_for() {
    for (mode, of_call, of_request) in [("direct", 1, 0), ("unthinned", 2, 2)] {
        let bank = Bank::open();
        // The program is initialized from then on.
        bank.psql(&["SELECT balance(1)"]);
        control(&bank).set("trace", mode).expect("set");
        deposit(&bank);
        let mut trace = std::process::Command::new(env!("CARGO_BIN_EXE_awase"));
        let shown = trace.arg("trace").arg(bank.sandbox.file("awase-data/trace")).output().expect("awase trace");
        let text = String::from_utf8_lossy(&shown.stdout);
        let found = |event: &str| text.lines().filter(|line| line.contains(event)).count() as u64;
        assert_eq!(found("postgres.call "), 1 + of_call * CALLS, "{mode}: {text}");
        // A deposit asks its database four times.
        assert_eq!(found("requests 4 "), CALLS, "{mode}: {text}");
        assert_eq!(found("program.put "), of_request * CALLS, "{mode}: {text}");
    }
}
