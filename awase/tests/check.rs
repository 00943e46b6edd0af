//! `awase check` says what `awase serve` would refuse, and `serve` leaves nothing of what it refuses.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::server::{AWASE, Sandbox, await_that};

const NOWHERE: &str = "data = \"data\"\n[listen]\nmetrics = []\npostgres = []\nnfs = []\n";
const SOCKET: &str = "nbd = []\nnbd_unix = [\"nbd.sock\"]\npostgres_unix = [\"postgres.sock\"]\n";
const RAM: &str = "[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1MiB\"\n";

/// Far more than it takes.
const LONG: Duration = Duration::from_secs(20);

fn run(sandbox: &Sandbox, command: &str, configuration: &str) -> Output {
    sandbox.write("awase.toml", configuration);
    // A server that accepts it would run on.
    let mut program = Command::new("timeout");
    program.args(["30", &AWASE, command, "--config", "awase.toml"]).current_dir(sandbox.path());
    program.env_remove("NOTIFY_SOCKET").env("TMPDIR", sandbox.file("temporary")).output().expect("run awase")
}

/// What both say.
fn refusals(sandbox: &Sandbox, configuration: &str) -> [String; 2] {
    ["check", "serve"].map(|command| {
        let output = run(sandbox, command, configuration);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command}: {configuration}{errors}");
        errors
    })
}

#[test]
fn what_serve_would_refuse_is_found_by_check() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.file("file"), vec![7; 16 << 20]).expect("a file");
    let file = |rest: &str| format!("[[export]]\nname = \"f\"\nkind = \"file\"\n{rest}");
    let with_socket = |rest: &str| format!("{NOWHERE}{SOCKET}{rest}");
    let cases = [
        (format!("{NOWHERE}nbd = []\nnbd_unix = \"none/x\"\n{RAM}"), "listen.nbd_unix cannot be served: unix:none/x"),
        (format!("{NOWHERE}nbd = []\nnbd_unix = \"file\"\n{RAM}"), "unix:file exists and is not a socket"),
        (with_socket(&format!("control = \"/\"\n{RAM}")), "listen.control cannot be served: unix:/ exists"),
        (format!("{NOWHERE}nbd = \"192.0.2.1:1\"\nnbd_unix = []\n{RAM}"), "listen.nbd cannot be served: 192.0.2.1:1"),
        (
            format!("data = \"data\"\n[listen]\nnbd = []\nnbd_unix = [\"nbd.sock\"]\nmetrics = \"192.0.2.1:1\"\n{RAM}"),
            "listen.metrics cannot be served: 192.0.2.1:1",
        ),
        (
            format!("{NOWHERE}nbd = [\"127.0.0.1:1\", \"0.0.0.0:1\"]\n{RAM}"),
            "listen.nbd holds 0.0.0.0:1, which overlaps 127.0.0.1:1",
        ),
        (with_socket("[[database]]\nname = \"b\"\npath = \"file\"\n"), "holds something else"),
        (with_socket(&file("path = \"\\u0000\"\nsize = \"1MiB\"\ncreate = true\n")), "export \"f\" path"),
        (with_socket(&file("path = \"file/x\"\nsize = \"1MiB\"\ncreate = true\n")), "export \"f\" path"),
        (with_socket(&format!("{RAM}overlay = true\n")), "export \"r\" overlay = true: no temporary file in"),
    ];
    // Where a socket of IPv6 takes clients of IPv4, too.
    let is_alone = fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|set| set.trim() == "1");
    let of_both = (!is_alone).then(|| {
        let both = format!("{NOWHERE}nbd = [\"[::]:1\", \"127.0.0.1:1\"]\n{RAM}");
        (both, "listen.nbd holds 127.0.0.1:1, which overlaps [::]:1")
    });
    for (configuration, message) in cases.into_iter().chain(of_both) {
        for errors in refusals(&sandbox, &configuration) {
            assert!(errors.contains(message), "{configuration}{errors}");
        }
    }
    let mut left: Vec<_> =
        fs::read_dir(sandbox.path()).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    left.retain(|name| name != "data" && name != "awase.toml");
    assert_eq!(left, ["file"]);
}

#[test]
fn the_addresses_of_what_is_served_by_default_are_its_own() {
    let sandbox = Sandbox::new();
    let with = |nfs: &str, metrics: &str| {
        format!("data = \"data\"\n[listen]\nnbd = \"127.0.0.1:7\"\n{nfs}postgres = []\nmetrics = {metrics}\n")
    };
    for (configuration, message) in [
        (with("nfs = \"127.0.0.1:9\"\n", "\"127.0.0.1:9\""), "listen.metrics holds 127.0.0.1:9, which listen.nfs has"),
        (with("nfs = \"127.0.0.1:7\"\n", "[]"), "listen.nfs holds 127.0.0.1:7, which listen.nbd has already"),
    ] {
        for errors in refusals(&sandbox, &configuration) {
            assert!(errors.contains(message), "{configuration}{errors}");
        }
    }
}

#[test]
fn a_size_that_the_host_refuses_leaves_no_file() {
    let sandbox = Sandbox::new();
    let size = "path = \"d.img\"\nsize = \"1EiB\"\ncreate = true\n";
    let output = run(&sandbox, "serve", &format!("{NOWHERE}{SOCKET}[[export]]\nname = \"f\"\nkind = \"file\"\n{size}"));
    if output.status.code() != Some(2) {
        testkit::skip!("the host has files of 1 EiB");
    }
    assert!(!sandbox.file("d.img").exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn files_that_were_made_for_what_is_refused_are_gone_and_others_stay() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.file("old.img"), vec![7; 1 << 20]).expect("a file");
    let file = |name: &str, rest: &str| {
        format!("[[export]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}.img\"\nsize = \"1MiB\"\n{rest}")
    };
    let database = "[[database]]\nname = \"b\"\npath = \"b.db\"\nsize = \"64MiB\"\ncreate = true\n";
    let made = file("new", "create = true\n") + &file("old", "create = true\n") + database;
    let unusable = "[[database]]\nname = \"c\"\npath = \"c.db\"\nsize = \"64MiB\"\nprograms = \"old.img/c\"\n";
    let refused =
        [(file("missing", ""), "missing.img does not exist"), (unusable.into(), "old.img/c\" cannot be made")];
    let refused = refused.map(|(rest, message)| (format!("{NOWHERE}{SOCKET}{made}{rest}"), message));
    let assert_left = |after: &str| {
        let is_there = |name: &&str| sandbox.file(name).exists();
        let names = ["new.img", "old.img", "missing.img", "b.db", "c.db"];
        assert_eq!(names.into_iter().filter(is_there).collect::<Vec<_>>(), ["old.img"], "{after}");
        assert!(fs::read(sandbox.file("old.img")).expect("read") == vec![7; 1 << 20], "{after}");
    };
    for (configuration, message) in &refused {
        let output = run(&sandbox, "serve", configuration);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(message), "{errors}");
        assert_left(message);
    }
    sandbox.write("awase.toml", &format!("{NOWHERE}{SOCKET}{RAM}"));
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--config", "awase.toml"]);
    let mut server = sandbox.start(command);
    for (configuration, message) in &refused {
        sandbox.write("awase.toml", configuration);
        server.signal(libc::SIGHUP);
        server.await_error(message);
        server.await_error("the configuration was not changed");
        server.forget_errors();
        assert_left(message);
    }
    sandbox.write("awase.toml", &format!("{NOWHERE}{SOCKET}{made}"));
    server.signal(libc::SIGHUP);
    await_that("they are there", || ["new.img", "b.db"].iter().all(|name| sandbox.file(name).exists()));
    server.end();
    assert!(["new.img", "b.db"].iter().all(|name| sandbox.file(name).exists()), "what was accepted stays");
}

#[test]
fn an_empty_file_that_serve_would_give_its_size_is_right() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.file("d.img"), []).expect("an empty file");
    let file = "[[export]]\nname = \"f\"\nkind = \"file\"\npath = \"d.img\"\nsize = \"1MiB\"\ncreate = true\n";
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{file}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(sandbox.file("d.img")).expect("there").len(), 0, "nothing was changed");
}

#[test]
fn a_control_socket_that_nobody_asked_for_and_serve_could_not_make_is_right() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("data");
    sandbox.write("data/control", "in its place");
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{RAM}"));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_table_without_keys_is_refused_unless_it_is_a_section() {
    let sandbox = Sandbox::new();
    let directory = "[[export]]\nname = \"f\"\nkind = \"directory\"\npath = \"f\"\n";
    let client = "[[client]]\nname = \"c\"\naddress = \"::1\"\n";
    for (rest, message) in [
        (format!("{directory}clients = {{}}\n"), "awase.toml:13: export \"f\" clients = a table is not allowed"),
        (format!("{RAM}read_only = {{}}\n"), "export \"r\" read_only = a table is not allowed"),
        (format!("{RAM}nonsense = {{}}\n"), "export \"r\" nonsense is not a known key"),
        (format!("{RAM}[export.fault]\n"), "export \"r\" fault is not a known key"),
        (format!("{RAM}[limit]\n"), "limit is not a known key"),
        (format!("{RAM}[limits.connections]\n"), "limits.connections = a table is not allowed"),
        (format!("{RAM}{client}uid = {{}}\n"), "client \"c\" uid = a table is not allowed"),
    ] {
        let [errors, _] = refusals(&sandbox, &format!("{NOWHERE}{SOCKET}{rest}"));
        assert!(errors.contains(message), "{rest}{errors}");
    }
    let sections = "[switches]\n[limits]\n[cluster]\npeers = {}\n[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = 512\n[export.faults]\n";
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{sections}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thousands_of_exports_are_read_at_once() {
    let sandbox = Sandbox::new();
    let one = |number| {
        format!("[[export]]\nname = \"{number}\"\nkind = \"file\"\npath = \"{number}\"\nsize = 512\ncreate = true\n")
    };
    let all: String = (0..10_000).map(one).collect();
    let began = Instant::now();
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{all}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    // Each is compared with all before it.
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{all}{}", one(3)));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("awase.toml:60009: export \"3\" name is taken already by the export of awase.toml:27"),
        "{errors}"
    );
}
