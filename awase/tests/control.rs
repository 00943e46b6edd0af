//! The control socket of a running server, `awase set`, one frame of `awase top`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use awase::config::SWITCHES;
use awase::control::client::Client;
use serde_json::{Value, json};
use testkit::server::{AWASE, Sandbox, Server};

const BLOCK: usize = 4096;

fn control(sandbox: &Sandbox) -> std::path::PathBuf {
    sandbox.file("awase-data/control")
}

fn connect(sandbox: &Sandbox) -> Client {
    Client::connect(&control(sandbox)).expect("a control socket")
}

fn switches(client: &mut Client) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().expect("text").to_owned();
    let rows = client.switches().expect("an answer");
    rows.as_array().expect("a list").iter().map(|row| (text(row, "name"), text(row, "value"))).collect()
}

fn value(client: &mut Client, name: &str) -> String {
    let found = switches(client).into_iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("no switch {name}")).1
}

/// Sends one line and receives the answer.
fn ask(sandbox: &Sandbox, line: &[u8]) -> Value {
    let mut stream = UnixStream::connect(control(sandbox)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    stream.write_all(line).expect("sent");
    answer(&mut BufReader::new(stream))
}

fn answer(from: &mut impl BufRead) -> Value {
    let mut line = String::new();
    from.read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("not refused: {answer}"))
}

/// Clients that write, flush and read back until stopped. Each must read what it wrote.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(server: &Server) -> Load {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..3u64).map(|number| {
            let mut client = testkit::nbd::Client::connect(&server.socket(), "disk").expect("connected");
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            thread::spawn(move || {
                let mut round = 0u64;
                while !stop.load(Ordering::SeqCst) {
                    round += 1;
                    let at = (number * 4096 + round % 512) * BLOCK as u64;
                    let bytes = vec![(round % 251) as u8; BLOCK];
                    match round % 3 {
                        0 => client.write_stable(at, &bytes).expect("written"),
                        _ => client.write(at, &bytes).expect("written"),
                    }
                    if round.is_multiple_of(5) {
                        client.flush().expect("flushed");
                    }
                    assert!(client.read(at, BLOCK as u32).expect("read") == bytes, "what was written is read");
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                client.disconnect().expect("ended in order");
            })
        });
        let clients = clients.collect();
        Load { stop, rounds, clients }
    }

    /// Waits for further rounds, so that a change just made is exercised by the load.
    fn await_rounds(&self) {
        let aim = self.rounds.load(Ordering::SeqCst) + 20;
        while self.rounds.load(Ordering::SeqCst) < aim {
            assert!(!self.clients.iter().any(thread::JoinHandle::is_finished), "a client failed");
            thread::yield_now();
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().for_each(|client| client.join().expect("a client"));
    }
}

/// The allowed values that are words, and one number where numbers are allowed.
fn values_of(allowed: &str) -> Vec<String> {
    let words = allowed.split([' ', ',']).filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
    let mut values: Vec<String> = words.map(|word| word.trim_matches('"').to_owned()).collect();
    if allowed.contains("a number of blocks") {
        values.push("64".into());
    }
    values
}

#[test]
fn every_switch_can_be_changed_under_load() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&[]);
    let mut client = connect(&sandbox);
    let names: BTreeSet<String> = switches(&mut client).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, SWITCHES.iter().map(|key| key.name.to_owned()).collect());
    let load = Load::start(&server);
    for key in SWITCHES.iter() {
        let before = value(&mut client, key.name);
        for wanted in values_of(&key.allowed).into_iter().chain([before]) {
            let (now, notes) = client.set(key.name, &wanted).expect("set");
            assert_eq!((&now, &value(&mut client, key.name)), (&wanted, &wanted), "{}", key.name);
            let is_noted = notes.iter().any(|note| note.contains(key.name));
            let takes_new_memory = ["huge_pages", "registered_buffers"].contains(&key.name);
            assert!(is_noted || !takes_new_memory || notes.is_empty(), "{}: {notes:?}", key.name);
            load.await_rounds();
        }
    }
    let (_, notes) = client.set("registered_buffers", "false").expect("set");
    assert!(notes[0].contains("memory that the cache takes from now on"), "{notes:?}");
    load.end();
    let status = client.status().expect("an answer");
    assert!(status["requests"].as_u64() > Some(100), "{status}");
}

#[test]
fn a_refused_value_has_the_message_of_the_configuration() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    for assignment in ["prioriti=off", "priority=maybe", "read_ahead=0", "quantum=2s", "nothing_like_it=1"] {
        let on_start = sandbox.run(&["serve", "--switch", assignment]);
        let while_running = sandbox.run(&["set", assignment]);
        assert_eq!((on_start.status.code(), while_running.status.code()), (Some(2), Some(2)), "{assignment}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (start, running) = (text(&on_start.stderr), text(&while_running.stderr));
        assert_eq!(running, start.replace("awase: --switch: ", "awase: set: "), "{assignment}");
    }
    let fraction = ask(&sandbox, b"{\"request\": \"set\", \"name\": \"priority\", \"value\": 0.5}\n");
    assert_eq!(error(&fraction), "set: switches.priority = a fraction is not allowed; allowed: true, false");
    let off = ask(&sandbox, b"{\"request\": \"set\", \"name\": \"priority\", \"value\": false}\n");
    assert_eq!(off["answer"], json!({ "name": "priority", "value": "false", "notes": [] }));
}

#[test]
fn set_changes_several_switches_and_prints_their_values() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    let output = sandbox.run(&["set", "read_ahead=64", "priority=off"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read_ahead = 64\npriority = false\n");
    let mut client = connect(&sandbox);
    assert_eq!((value(&mut client, "read_ahead"), value(&mut client, "priority")), ("64".into(), "false".into()));
    let output = sandbox.run(&["set", "--data", "elsewhere", "priority=off"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("no server is reached at elsewhere/control; --data DIR names"), "{errors}");
    assert_eq!(output.status.code(), Some(1));
}

/// A pipe that nobody reads any more (`| head`) is no error, a full disk is one; neither keeps a command from its work.
#[test]
fn what_a_command_prints_may_be_lost_but_not_what_it_does() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    let closed = || Stdio::from(std::io::pipe().expect("a pipe").1);
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").expect("/dev/full"));
    let (commands, set) =
        (["check", "config", "top --once", "trace", "iotest --count 10"], "set priority=off look_ahead=off");
    for (output, code, told) in
        [(&closed as &dyn Fn() -> Stdio, 0, ""), (&full, 1, "awase: cannot write to standard output: ")]
    {
        for line in commands.into_iter().chain([set]) {
            let mut command = Command::new(&*AWASE);
            command.args(line.split(' ')).current_dir(sandbox.path()).stdout(output()).stderr(Stdio::piped());
            let ended = command.spawn().expect("awase").wait_with_output().expect("its end");
            let errors = String::from_utf8_lossy(&ended.stderr);
            assert!(
                ended.status.code() == Some(code) && errors.starts_with(told),
                "{line}: {}, {errors}",
                ended.status
            );
        }
        let mut client = connect(&sandbox);
        for name in ["priority", "look_ahead"] {
            assert_eq!(value(&mut client, name), "false");
            client.set(name, "on").expect("set");
        }
    }
}

#[test]
fn reloading_sets_only_the_switches_whose_configuration_changed() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("awase.toml", "[switches]\npriority = false\n");
    let mut server = sandbox.serve(&["--config", file.to_str().expect("text")]);
    server.banner();
    let mut client = connect(&sandbox);
    assert_eq!(value(&mut client, "priority"), "false");
    client.set("read_ahead", "8").expect("set");
    sandbox.write("awase.toml", "[switches]\nquantum = \"24ms\"\n");
    server.signal(libc::SIGHUP);
    server.await_notice("READY=1");
    assert_eq!(server.banner(), "switches.priority = true\nswitches.quantum = \"24ms\"\n");
    let now = ["priority", "quantum", "read_ahead"].map(|name| value(&mut client, name));
    assert_eq!(now, ["true", "24ms", "8"], "what was set on the running server stays");
}

#[test]
fn the_socket_is_private_to_its_user_and_removed_at_the_end() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&[]);
    let found = std::fs::metadata(control(&sandbox)).expect("a socket");
    assert!(found.file_type().is_socket());
    assert_eq!(found.mode() & 0o777, 0o600);
    server.crash();
    assert!(control(&sandbox).exists(), "a killed server leaves it");
    let server = sandbox.serve(&[]);
    connect(&sandbox).status().expect("the new server answers");
    server.end();
    assert!(!control(&sandbox).exists());
}

#[test]
fn the_socket_can_be_disabled_or_placed_elsewhere() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("awase.toml", "[listen]\ncontrol = \"none\"\n");
    let file = file.to_str().expect("text");
    drop(sandbox.serve(&["--config", file]));
    assert!(!control(&sandbox).exists());
    sandbox.write("awase.toml", "[listen]\ncontrol = \"elsewhere\"\n");
    let _server = sandbox.serve(&["--config", file]);
    let output = sandbox.run(&["top", "--once", "--socket", "elsewhere"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn malformed_requests_to_the_socket_are_refused() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    for nonsense in [
        &b"\n"[..],
        b"status\n",
        b"[]\n",
        b"{\n",
        b"\xff\xfe\x00\n",
        b"{\"request\": 7}\n",
        b"{\"request\": \"end\"}\n",
        b"{\"request\": \"set\"}\n",
        b"{\"request\": \"set\", \"name\": \"priority\"}\n",
        b"{\"request\": \"set\", \"name\": \"priority\", \"value\": {\"a\": [1, 2]}}\n",
    ] {
        let answer = ask(&sandbox, nonsense);
        assert!(error(&answer).contains("allowed: "), "{answer}");
    }
    // Deep nesting is a classic way to exhaust the stack of a parser.
    assert!(error(&ask(&sandbox, &[&[b'['; 4000][..], b"\n"].concat())).contains("not a JSON object"));
    let long = [&b"{\"request\": \""[..], &[b'x'; 5000], b"\"}\n"].concat();
    assert_eq!(error(&ask(&sandbox, &long)), "the request is longer than 4096 bytes");
    // A client that disconnects within a request, and more clients than are allowed.
    UnixStream::connect(control(&sandbox)).expect("connected").write_all(b"{\"request\"").expect("sent");
    let crowd: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(control(&sandbox)).expect("connected")).collect();
    let mut last = BufReader::new(crowd.last().expect("many").try_clone().expect("a descriptor"));
    assert_eq!(error(&answer(&mut last)), "16 clients are connected already; try again later");
    drop(crowd);
    // Until their threads have ended, a new client may still be refused.
    let status = || Client::connect(&control(&sandbox)).and_then(|mut client| client.status());
    while status().is_err() {}
}

#[test]
fn of_several_switches_none_is_set_if_one_is_wrong() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&["--export", "name=vm,kind=ram,size=32MiB"]);
    for wrong in ["prioriti=on", "quantum=never"] {
        let output = sandbox.run(&["set", "priority=off", wrong]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(wrong.split_once('=').expect("a name").0), "{errors}");
        assert_eq!(value(&mut connect(&sandbox), "priority"), "true");
    }
}

#[test]
fn top_once_prints_exports_processors_and_switches() {
    let sandbox = Sandbox::new();
    let uid = std::fs::metadata("/proc/self").expect("this process").uid();
    sandbox.write("awase.toml", &format!("[[client]]\nname = \"build farm\"\nuid = {uid}\n"));
    let config = sandbox.file("awase.toml");
    let exports = ["--export", "name=vm,kind=ram,size=32MiB", "--export", "name=other,kind=ram,size=1GiB"];
    let server = sandbox.serve(&[&["--config", &config.to_string_lossy()], &exports[..]].concat());
    let mut client = testkit::nbd::Client::connect(&server.socket(), "vm").expect("connected");
    client.read(0, 4096).expect("read");
    let output = sandbox.run(&["top", "--once"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["vm", "32.0 MiB", "other", "1GiB", "processors", "cache", "requests/s", "jobs", "build farm"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for key in SWITCHES.iter() {
        assert!(text.contains(key.name), "no {} in\n{text}", key.name);
    }
}

#[test]
fn connections_are_listed_with_client_export_and_counters() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&["--processors", "2", "--export", "name=vm,kind=ram,size=32MiB"]);
    let mut control = connect(&sandbox);
    assert_eq!(control.status().expect("an answer")["connected"], json!([]));
    let mut clients: Vec<_> =
        (0..3).map(|_| testkit::nbd::Client::connect(&server.socket(), "vm").expect("connected")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for block in 0..=number as u64 {
            client.read(block * 4096, 4096).expect("read");
        }
    }
    let status = control.status().expect("an answer");
    let rows = status["connected"].as_array().expect("a list");
    assert_eq!(rows.len(), 3, "{status}");
    for (number, row) in rows.iter().enumerate() {
        let wanted = number as u64 + 1;
        assert_eq!((&row["number"], &row["requests"]), (&json!(wanted), &json!(wanted)), "{row}");
        assert_eq!((&row["protocol"], &row["export"]), (&json!("nbd"), &json!("vm")), "{row}");
        assert!(row["client"].as_str().is_some_and(|client| client.starts_with("uid ")), "{row}");
        assert!(row["sent_bytes"].as_u64() >= Some((wanted - 1) * 4096) && row["age_s"].as_f64() >= Some(0.0), "{row}");
        assert!(row["received_bytes"].as_u64() >= Some(wanted * 28) && row["processor"].as_u64() < Some(2), "{row}");
    }
    let text = String::from_utf8(sandbox.run(&["top", "--once"]).stdout).expect("text");
    let listed = text.lines().filter(|line| line.contains("  nbd  ") && line.contains("uid ") && line.ends_with("vm"));
    assert_eq!(listed.count(), 3, "{text}");
    drop(clients);
    while control.status().expect("an answer")["connected"] != json!([]) {}
}
