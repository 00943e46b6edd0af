//! psql and pgbench.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use testkit::server::{AWASE, Sandbox, attempt};

use crate::bank::Bank;

#[test]
fn functions_are_called_and_their_effects_are_kept_over_a_restart_and_a_crash() {
    let bank = Bank::open();
    let results = bank.psql(&["SELECT balance(1)", "SELECT transfer(1, 2, 100)", "SELECT balance(1), balance(2) AS b"]);
    assert_eq!(results, "1000\n\n900|1100\n");
    assert_eq!(bank.psql(&["CALL deposit(1, 5)", "SELECT * FROM deposit(1, -5)"]), "905\n900\n");
    let Bank { sandbox, server } = bank;
    assert_eq!(server.end(), "");
    let bank = Bank::start(sandbox, "");
    assert_eq!(bank.psql(&["SELECT transfer(2, 1, 50)"]), "\n");
    let Bank { sandbox, server } = bank;
    server.crash();
    let bank = Bank::start(sandbox, "");
    assert_eq!(bank.psql(&["SELECT balance(1), balance(2)"]), "950|1050\n");
}

#[test]
fn a_trial_leaves_no_trace_but_for_what_is_kept() {
    let bank = Bank::open();
    bank.psql(&["SELECT deposit(1, 1)"]);
    let Bank { sandbox, server } = bank;
    server.end();
    let bank = Bank::trial(sandbox);
    bank.psql(&["SELECT deposit(1, 10)"]);
    let kept = bank.sandbox.run(&["keep", "bank"]);
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
    assert_eq!(bank.psql(&["SELECT deposit(1, 100)"]), "1111\n");
    let Bank { sandbox, server } = bank;
    server.end();
    let bank = Bank::start(sandbox, "");
    assert_eq!(bank.psql(&["SELECT balance(1)"]), "1011\n");
}

#[test]
fn statements_between_begin_and_commit_are_one_transaction() {
    let bank = Bank::open();
    let sum = "SELECT balance(1) , balance(2)";
    bank.psql(&["BEGIN; SELECT deposit(1, 10); ROLLBACK"]);
    assert_eq!(bank.psql(&[sum]), "1000|1000\n");
    assert_eq!(
        bank.psql(&["BEGIN", "SELECT deposit(1, 10)", "SELECT balance(1)", "COMMIT", sum]).lines().last(),
        Some("1010|1000")
    );
    // Several statements of one query are one transaction, too.
    let refused = bank.try_psql(&["SELECT deposit(1, 1); SELECT transfer(1, 2, 1000000)"]);
    assert!(!refused.status.success());
    assert_eq!(bank.psql(&[sum]), "1010|1000\n");
    // After a failure nothing is executed, and COMMIT says that it was none.
    let script = bank.sandbox.write(
        "failing.sql",
        "BEGIN;\nSELECT deposit(1, 1);\nSELECT transfer(1, 2, 1000000);\nSELECT balance(1);\nCOMMIT;\n",
    );
    let output = attempt(
        "psql",
        &["-X", "-h", &bank.host(), "-p", "5433", "-v", "VERBOSITY=verbose", "-f", path(&script), "bank"],
    );
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(errors.contains("P0001") && errors.contains("25P02") && said.ends_with("ROLLBACK\n"), "{said}{errors}");
    assert_eq!(bank.psql(&[sum]), "1010|1000\n");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn what_is_not_served_gets_a_code_and_a_message_that_says_what_is() {
    let bank = Bank::open();
    for (command, state, words) in [
        ("SELECT transfer(1, 2, 1000000)", "P0001", "insufficient funds"),
        ("SELECT transfers(1, 2)", "42883", "transfer(payer bigint, payee bigint, amount bigint)"),
        ("SELECT transfer(1, 2)", "42883", "takes 3 arguments, not 2"),
        ("SELECT balance('one')", "22P02", "argument \"account\" of balance"),
        ("SELECT balance(1.5)", "42804", "cannot be used as bigint"),
        ("SELECT balance($1)", "42P02", "there is no parameter $1"),
        ("SELECT spin()", "57014", "longer than it may"),
        ("INSERT INTO t VALUES (1)", "0A000", "Served: SELECT f(...)"),
        ("SELECT aid FROM pgbench_accounts", "42703", "Served: SELECT f(...)"),
        ("SELEKT 1", "42601", "syntax error at or near"),
        ("SET client_encoding = 'LATIN1'", "22023", "Served: UTF8"),
        ("SET nothing = 1", "42704", "unrecognized configuration parameter"),
    ] {
        let message = bank.refusal(command);
        assert!(message.contains(&format!("ERROR:  {state}:")) && message.contains(words), "{command}: {message}");
    }
    assert_eq!(
        bank.psql(&["SHOW transaction_isolation", "SELECT 1 AS one, 'x', NULL, true"]),
        "serializable\n1|x||t\n"
    );
}

#[test]
fn values_of_all_types_arrive_and_return() {
    let bank = Bank::open();
    let query =
        "SELECT half(3), half('-1e300'), not_(true), same('Grüße, ''you'''), bytes('\\x00ff'), balance(7::smallint)";
    assert_eq!(bank.psql(&[query]), "1.5|-5e+299|f|Grüße, 'you'|\\x00ff|1000\n");
    assert!(bank.refusal("SELECT same(NULL)").contains("words of same may not be NULL"));
}

#[test]
fn a_database_that_does_not_exist_is_refused_with_the_names_of_those_that_do() {
    let bank = Bank::open();
    let output = attempt("psql", &["-X", "-h", &bank.host(), "-p", "5433", "-c", "SELECT 1", "bnak"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("database \"bnak\" does not exist") && errors.contains("\"bank\""), "{errors}");
}

#[test]
fn users_must_know_their_passwords_where_there_are_users() {
    let bank = Bank::open_with("[[user]]\nname = \"ann\"\npassword = \"pencil\"\n");
    let connect = |user: &str, password: &str| {
        let uri = format!("postgres://{user}:{password}@/bank?host={}&port=5433", bank.host());
        let output = attempt("psql", &["-X", "-A", "-t", "-w", "-c", "SELECT current_user", &uri]);
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(connect("ann", "pencil").0, "ann\n");
    for (user, password) in [("ann", "pencils"), ("bob", "pencil")] {
        let (_, errors) = connect(user, password);
        assert!(errors.contains(&format!("password authentication failed for user \"{user}\"")), "{errors}");
    }
    let (_, errors) = connect("ann", "");
    assert!(errors.contains("no password supplied"), "{errors}");
}

/// The sum over all accounts stays what it was, whatever the protocol.
#[test]
fn pgbench_transfers_in_every_mode_and_no_money_is_lost() {
    let bank = Bank::open();
    let accounts = 20;
    let script = bank.sandbox.write(
        "transfer.sql",
        &format!("\\set a random(1, {accounts})\n\\set b random(1, {accounts})\nSELECT transfer(:a, :b, 1);\n"),
    );
    let block = bank.sandbox.write(
        "block.sql",
        &format!("\\set a random(1, {accounts})\nBEGIN;\nSELECT deposit(:a, 1);\nSELECT deposit(:a, -1);\nEND;\n"),
    );
    let pipeline = bank.sandbox.write(
        "pipeline.sql",
        "\\startpipeline\nSELECT transfer(1, 2, 1);\nSELECT transfer(2, 1, 1);\nSELECT balance(1);\n\\endpipeline\n",
    );
    let host = bank.host();
    for (mode, script, transactions) in [
        ("simple", &script, "50"),
        ("extended", &script, "50"),
        ("prepared", &script, "50"),
        ("prepared", &block, "20"),
        ("extended", &pipeline, "20"),
    ] {
        let output = attempt(
            "pgbench",
            &[
                "-n",
                "-h",
                &host,
                "-p",
                "5433",
                "-M",
                mode,
                "-c",
                "8",
                "-t",
                transactions,
                "--max-tries=1000",
                "-f",
                path(script),
                "bank",
            ],
        );
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && said.contains("number of failed transactions: 0 "),
            "{mode}: {said}{errors}"
        );
    }
    let balances: Vec<_> = (1..=accounts).map(|account| format!("SELECT balance({account})")).collect();
    let sum: i64 = bank.psql(&[&balances.join(";")]).lines().map(|line| line.parse::<i64>().expect("a balance")).sum();
    assert_eq!(sum, i64::from(accounts) * 1000);
}

#[test]
fn databases_are_added_by_a_reload_and_users_take_effect() {
    let mut bank = Bank::open();
    let config = bank.sandbox.file("awase.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let more =
        "[[database]]\nname = \"shop\"\nkind = \"ram\"\nsize = \"64MiB\"\n[[user]]\nname = \"ann\"\npassword = \"p\"\n";
    bank.sandbox.write("awase.toml", &(text + more));
    bank.sandbox.write("awase-data/programs/bank/broken.wasm", "no module");
    bank.server.signal(libc::SIGHUP);
    bank.server.await_notice("RELOADING=1");
    bank.server.await_notice("READY=1");
    let uri = format!("postgres://ann:p@/shop?host={}&port=5433", bank.host());
    let output = attempt("psql", &["-X", "-A", "-t", "-c", "SELECT current_database()", &uri]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "shop\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(bank.refusal("SELECT 1").contains("password"));
    bank.server.signal(libc::SIGTERM);
    let (_, said, _) = bank.server.wait();
    let fault = "database \"bank\": awase-data/programs/bank/broken.wasm: it is no WebAssembly module";
    assert!(said.contains(fault) && said.contains("user \"ann\" may connect\n"), "{said}");
}

/// Without its flags of sockets.
const SERVE: [&str; 9] = ["serve", "--nbd", "none", "--nfs", "none", "--metrics", "none", "--config", "awase.toml"];
const DISK: &str = "[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1MiB\"\n";
const DATABASE: &str = "[[database]]\nname = \"bank\"\nkind = \"ram\"\nsize = \"64MiB\"\n";
const USER: &str = "[[user]]\nname = \"ann\"\npassword = \"p\"\n";

/// Of a server that is reached at this address.
fn at(address: &str, tables: &[&str]) -> String {
    let listen = format!("[listen]\npostgres = \"{address}:0\"\npostgres_unix = \"awase-data/.s.PGSQL.5433\"\n");
    listen + &tables.concat()
}

#[test]
fn users_stay_while_other_hosts_reach_a_database_that_is_open() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", &at("0.0.0.0", &[DISK, DATABASE, USER]));
    let mut command = Command::new(&*AWASE);
    command.args(SERVE);
    let server = sandbox.start(command);
    let mut bank = Bank { sandbox, server };
    for (address, tables) in [("0.0.0.0", &[DISK][..]), ("127.0.0.1", &[DISK, DATABASE])] {
        bank.sandbox.write("awase.toml", &at(address, tables));
        bank.server.forget_errors();
        bank.server.signal(libc::SIGHUP);
        bank.server.await_notice("RELOADING=1");
        bank.server.await_notice("READY=1");
        assert!(bank.refusal("SELECT 1").contains("password"), "{address}");
        bank.server.await_error("listen.postgres is open at 0.0.0.0:");
        bank.server.await_error("the configuration was not changed");
    }
}

#[test]
fn a_socket_of_systemd_that_other_hosts_reach_needs_users() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", &[DISK, DATABASE].concat());
    let socket: OwnedFd = TcpListener::bind("0.0.0.0:0").expect("bind").into();
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=postgres exec \"$0\" \"$@\" 3<&0 </dev/null";
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-c", script, &AWASE]).args(SERVE).stdin(socket).current_dir(sandbox.path());
    let output = command.output().expect("run awase");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("which other hosts reach, and there are no users"), "{errors}");
}

#[test]
fn programs_are_not_installed_silently_where_the_server_does_not_load_them() {
    let bank = Bank::open();
    let module = "awase-data/programs/bank/bank.wasm";
    let install = |more: &[&str]| {
        let output = bank.sandbox.run(&[&["program", "install", module], more].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(install(&[]), (true, String::new()));
    std::fs::write(bank.sandbox.file("awase-data/programs/bank/wrong.wasm"), "").expect("written");
    for elsewhere in [["--database", "shop"], ["--programs", "elsewhere"]] {
        let (is_done, errors) = install(&elsewhere);
        let says = "loads no programs from there: \"bank\" has its own in ";
        assert!(!is_done && errors.contains(says) && errors.contains("/awase-data/programs/bank"), "{errors}");
        assert!(errors.contains("awase: database \"bank\": ") && errors.contains("wrong.wasm: "), "{errors}");
    }
}

#[test]
fn what_is_no_database_is_refused_with_a_message_and_left_alone() {
    let sandbox = Sandbox::new();
    let path = sandbox.file("precious.img");
    std::fs::write(&path, vec![7; 64 << 20]).expect("written");
    let config = sandbox.write("awase.toml", "[[database]]\nname = \"a\"\npath = \"precious.img\"\n");
    let output =
        sandbox.run(&["serve", "--postgres", "none", "--metrics", "none", "--config", config.to_str().expect("UTF-8")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("database \"a\" path cannot be used: it holds something else"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    assert!(std::fs::read(&path).expect("read").iter().all(|byte| *byte == 7));
}
