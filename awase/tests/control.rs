//! A running server is watched and told what to change: the control socket, `awase set`, one frame of `awase top`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use awase::config::SWITCHES;
use awase::control::client::Client;
use serde_json::{Value, json};
use testkit::server::{Place, Server};

/// A block as the load writes it.
const BLOCK: usize = 4096;

fn control(place: &Place) -> std::path::PathBuf {
    place.file("awase-data/control")
}

fn connect(place: &Place) -> Client {
    Client::connect(&control(place)).expect("a control socket")
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

/// Sends one line and takes what comes back.
fn say(place: &Place, line: &[u8]) -> Value {
    let mut stream = UnixStream::connect(control(place)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a bound");
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

/// Clients that write, flush and read back until they are told to end. Each sees what it wrote.
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

    /// Waits until each has done something more, so that what was just changed was under load.
    fn go_on(&self) {
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

/// The values that are named among those allowed, and one of those that are not, where there are any.
fn values_of(allowed: &str) -> Vec<String> {
    let words = allowed.split([' ', ',']).filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
    let mut values: Vec<String> = words.map(|word| word.trim_matches('"').to_owned()).collect();
    if allowed.contains("a number of blocks") {
        values.push("64".into());
    }
    values
}

#[test]
fn every_switch_is_changed_on_a_running_server_under_load_and_seen() {
    let place = Place::new();
    let server = place.serve(&[]);
    let mut client = connect(&place);
    let names: BTreeSet<String> = switches(&mut client).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, SWITCHES.iter().map(|key| key.name.to_owned()).collect());
    let load = Load::start(&server);
    for key in SWITCHES {
        let before = value(&mut client, key.name);
        for wanted in values_of(key.allowed).into_iter().chain([before]) {
            let (now, notes) = client.set(key.name, &wanted).expect("set");
            assert_eq!((&now, &value(&mut client, key.name)), (&wanted, &wanted), "{}", key.name);
            let is_told = notes.iter().any(|note| note.contains(key.name));
            let takes_new_memory = ["huge_pages", "registered_buffers"].contains(&key.name);
            assert!(is_told || !takes_new_memory || notes.is_empty(), "{}: {notes:?}", key.name);
            load.go_on();
        }
    }
    let (_, notes) = client.set("registered_buffers", "false").expect("set");
    assert!(notes[0].contains("memory that the cache takes from now on"), "{notes:?}");
    load.end();
    let status = client.status().expect("an answer");
    assert!(status["requests"].as_u64() > Some(100), "{status}");
}

#[test]
fn what_is_not_allowed_is_refused_with_the_message_of_the_configuration() {
    let place = Place::new();
    let _server = place.serve(&[]);
    for assignment in ["prioriti=off", "priority=maybe", "read_ahead=0", "quantum=2s", "nothing_like_it=1"] {
        let on_start = place.run(&["serve", "--switch", assignment]);
        let while_running = place.run(&["set", assignment]);
        assert_eq!((on_start.status.code(), while_running.status.code()), (Some(2), Some(2)), "{assignment}");
        let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (start, running) = (told(&on_start.stderr), told(&while_running.stderr));
        assert_eq!(running, start.replace("awase: --switch: ", "awase: set: "), "{assignment}");
    }
    let fraction = say(&place, b"{\"request\": \"set\", \"name\": \"priority\", \"value\": 0.5}\n");
    assert_eq!(error(&fraction), "set: switches.priority = a fraction is not allowed; allowed: true, false");
    let off = say(&place, b"{\"request\": \"set\", \"name\": \"priority\", \"value\": false}\n");
    assert_eq!(off["answer"], json!({ "name": "priority", "value": "false", "notes": [] }));
}

#[test]
fn set_changes_several_and_tells_what_they_are() {
    let place = Place::new();
    let _server = place.serve(&[]);
    let output = place.run(&["set", "read_ahead=64", "priority=off"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read_ahead = 64\npriority = false\n");
    let mut client = connect(&place);
    assert_eq!((value(&mut client, "read_ahead"), value(&mut client, "priority")), ("64".into(), "false".into()));
    let nobody = place.run(&["set", "--data", "elsewhere", "priority=off"]);
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(told.contains("no server is reached at elsewhere/control; --data DIR names"), "{told}");
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn reloading_sets_the_switches_that_the_file_changes_and_no_others() {
    let place = Place::new();
    let file = place.write("awase.toml", "[switches]\npriority = false\n");
    let mut server = place.serve(&["--config", file.to_str().expect("text")]);
    server.banner();
    let mut client = connect(&place);
    assert_eq!(value(&mut client, "priority"), "false");
    client.set("read_ahead", "8").expect("set");
    place.write("awase.toml", "[switches]\nquantum = \"24ms\"\n");
    server.signal(libc::SIGHUP);
    server.await_notice("READY=1");
    assert_eq!(server.banner(), "switches.priority = true\nswitches.quantum = \"24ms\"\n");
    let now = ["priority", "quantum", "read_ahead"].map(|name| value(&mut client, name));
    assert_eq!(now, ["true", "24ms", "8"], "what was set on the running server stays");
}

#[test]
fn the_socket_is_for_its_user_alone_and_goes_with_the_server() {
    let place = Place::new();
    let server = place.serve(&[]);
    let found = std::fs::metadata(control(&place)).expect("a socket");
    assert!(found.file_type().is_socket());
    assert_eq!(found.mode() & 0o777, 0o600);
    server.crash();
    assert!(control(&place).exists(), "a server that is killed leaves it");
    let server = place.serve(&[]);
    connect(&place).status().expect("the new server answers");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0.success());
    assert!(!control(&place).exists());
}

#[test]
fn there_is_no_socket_where_none_is_wanted_and_another_one_where_it_is() {
    let place = Place::new();
    let file = place.write("awase.toml", "[listen]\ncontrol = \"none\"\n");
    let file = file.to_str().expect("text");
    drop(place.serve(&["--config", file]));
    assert!(!control(&place).exists());
    place.write("awase.toml", "[listen]\ncontrol = \"over-here\"\n");
    let _server = place.serve(&["--config", file]);
    let output = place.run(&["top", "--once", "--socket", "over-here"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nothing_that_is_said_to_the_socket_harms_the_server() {
    let place = Place::new();
    let _server = place.serve(&[]);
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
        let answer = say(&place, nonsense);
        assert!(error(&answer).contains("allowed: "), "{answer}");
    }
    // Deep nesting is a classic way to exhaust the stack of a parser.
    assert!(error(&say(&place, &[&[b'['; 4000][..], b"\n"].concat())).contains("not an object"));
    let long = [&b"{\"request\": \""[..], &[b'x'; 5000], b"\"}\n"].concat();
    assert_eq!(error(&say(&place, &long)), "the request is longer than 4096 bytes");
    // One that leaves in the middle, and more than may be there.
    UnixStream::connect(control(&place)).expect("connected").write_all(b"{\"request\"").expect("sent");
    let crowd: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(control(&place)).expect("connected")).collect();
    let mut last = BufReader::new(crowd.last().expect("many").try_clone().expect("a descriptor"));
    assert_eq!(error(&answer(&mut last)), "16 clients are connected already; try again later");
    drop(crowd);
    // Their threads end when they see it: until then one may still be turned away.
    let status = || Client::connect(&control(&place)).and_then(|mut client| client.status());
    while status().is_err() {}
}

#[test]
fn top_shows_exports_processors_and_switches_once() {
    let place = Place::new();
    let uid = std::fs::metadata("/proc/self").expect("this process").uid();
    place.write("awase.toml", &format!("[[client]]\nname = \"build farm\"\nuid = {uid}\n"));
    let config = place.file("awase.toml");
    let exports = ["--export", "name=vm,kind=ram,size=32MiB", "--export", "name=other,kind=ram,size=1GiB"];
    let server = place.serve(&[&["--config", &config.to_string_lossy()], &exports[..]].concat());
    let mut client = testkit::nbd::Client::connect(&server.socket(), "vm").expect("connected");
    client.read(0, 4096).expect("read");
    let output = place.run(&["top", "--once"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["vm", "32.0 MiB", "other", "1GiB", "processors", "cache", "requests/s", "jobs", "build farm"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for key in SWITCHES {
        assert!(text.contains(key.name), "no {} in\n{text}", key.name);
    }
}

#[test]
fn connections_are_listed_with_who_has_what_and_what_each_did() {
    let place = Place::new();
    let server = place.serve(&["--processors", "2", "--export", "name=vm,kind=ram,size=32MiB"]);
    let mut control = connect(&place);
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
    let text = String::from_utf8(place.run(&["top", "--once"]).stdout).expect("text");
    let listed = text.lines().filter(|line| line.contains("  nbd  ") && line.contains("uid ") && line.ends_with("vm"));
    assert_eq!(listed.count(), 3, "{text}");
    drop(clients);
    while control.status().expect("an answer")["connected"] != json!([]) {}
}
