//! `awase trace` with a real server and a real client.

use std::path::PathBuf;
use std::process::Output;

use testkit::nbd::Client;
use testkit::server::{Place, Server, await_that, client};

/// Serves a file of which every block holds something.
fn serve(place: &Place) -> Server {
    serve_with(place, "trace=direct")
}

/// The same, with a switch.
fn serve_with(place: &Place, switch: &str) -> Server {
    place.write("image", &"contents".repeat((1 << 20) / 8));
    place.serve(&["--export", "name=d,kind=file,path=image,size=1MiB", "--switch", switch])
}

/// The file in memory to which the data directory leads.
fn file(place: &Place) -> PathBuf {
    std::fs::read_link(place.file("awase-data/trace")).expect("a link to the trace")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn trace(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(&[&["trace"], arguments].concat());
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Reads all of the export.
fn read(server: &Server) {
    client("nbdcopy", &[&server.uri("d"), "null:"]);
}

fn reads(text: &str) -> usize {
    text.lines().filter(|line| line.contains("nbd.read")).count()
}

#[test]
fn what_a_server_did_is_read_while_it_runs_and_after_it_was_killed() {
    let place = Place::new();
    let server = serve(&place);
    read(&server);
    let live = reads(&trace(&place, &["--event", "nbd.read"]));
    assert!(live >= 1);
    server.signal(libc::SIGKILL);
    let (status, _, _) = server.wait();
    assert!(!status.success());
    assert_eq!(reads(&trace(&place, &["--event", "nbd.read"])), live);
}

#[test]
fn filters_choose_by_client_and_by_time_taken() {
    let place = Place::new();
    let server = serve(&place);
    read(&server);
    let all = trace(&place, &["--event", "nbd.read"]);
    let of_client = |line: &str| line.split_whitespace().nth(2).unwrap_or_default().to_owned();
    let first = all.lines().map(of_client).find(|client| client.starts_with('c')).expect("a client");
    let of_first = trace(&place, &["--event", "nbd.read", "--client", &first[1..]]);
    assert!(reads(&of_first) > 0);
    assert!(of_first.lines().all(|line| !line.contains("nbd.read") || of_client(line) == first), "{of_first}");
    assert_eq!(reads(&trace(&place, &["--event", "nbd.read", "--slower", "3600s"])), 0);
}

#[test]
fn where_the_time_went_is_told_and_perfetto_gets_what_it_reads() {
    let place = Place::new();
    let server = serve(&place);
    read(&server);
    let breakdown = trace(&place, &["--breakdown"]);
    assert!(breakdown.contains("nbd.read") && breakdown.contains("reading on the device"), "{breakdown}");
    trace(&place, &["--perfetto", "trace.json"]);
    let text = std::fs::read_to_string(place.file("trace.json")).expect("written");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let events = json["traceEvents"].as_array().expect("events");
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(named("nbd.read") > 0 && named("thread_name") > 1);
    let is_timed = |event: &&serde_json::Value| event["ph"] == "M" || event["ts"].as_f64().is_some_and(f64::is_finite);
    assert_eq!(events.iter().filter(is_timed).count(), events.len());
}

#[test]
fn a_trace_goes_with_its_server_and_that_of_one_that_was_killed_with_the_start_after_the_next() {
    let place = Place::new();
    let previous = || std::fs::read_link(place.file("awase-data/trace.previous"));
    let first = serve(&place);
    read(&first);
    let left = file(&place);
    let live = reads(&trace(&place, &["--event", "nbd.read"]));
    first.crash();
    assert!(left.exists() && previous().is_err());
    let second = serve(&place);
    let present = file(&place);
    assert!(present != left && present.exists());
    // Who starts a server again at once can still see what the one before did.
    assert_eq!(previous().expect("kept"), left);
    let before = trace(&place, &["awase-data/trace.previous", "--event", "nbd.read"]);
    assert!(live > 0 && reads(&before) == live && reads(&trace(&place, &["--event", "nbd.read"])) == 0, "{before}");
    second.crash();
    let third = serve(&place);
    assert!(!left.exists() && present.exists() && previous().expect("kept") == present);
    let own = file(&place);
    third.signal(libc::SIGTERM);
    assert!(third.wait().0.success());
    assert!(!own.exists() && std::fs::read_link(place.file("awase-data/trace")).is_err());
    assert!(present.exists());
    std::fs::remove_file(present).expect("nobody else clears it away");
}

#[test]
fn a_trace_is_for_its_user_only_and_holds_neither_names_of_files_nor_what_is_in_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    std::fs::create_dir(place.file("shared")).expect("a directory");
    std::fs::write(place.file("shared/classified.txt"), "a secret content ".repeat(1000)).expect("a file");
    let export = "name=s,kind=directory,secure=false,path=shared,mount=/s,squash=no_root_squash";
    let mut server = place.serve(&["--nfs", "127.0.0.1:0", "--export", export, "--switch", "trace=direct"]);
    let mut client = nfs_client(&server.banner());
    let root = client.mount("/s").expect("mounted");
    let file = client.lookup(&root, "classified.txt").expect("an answer").expect("there");
    client.read(&file, 0, 4096).expect("read");
    let path = self::file(&place);
    let bytes = std::fs::read(&path).expect("the trace");
    for secret in ["classified", "a secret content", "shared"] {
        assert!(!bytes.windows(secret.len()).any(|at| at == secret.as_bytes()), "{secret}");
    }
    // The code in a handle that proves that we gave it out would open the file for others.
    let code = &file.data[8..24];
    for part in code.chunks(8).chain(code.windows(4)) {
        assert!(!bytes.windows(part.len()).any(|at| at == part), "{part:x?}");
    }
    let mode = std::fs::metadata(&path).expect("the trace").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A client of the directories of a server that said this.
fn nfs_client(banner: &str) -> testkit::nfs::Client {
    let said = banner.split_once("?nfsport=").and_then(|(_, rest)| rest.split_once('&'));
    let port = said.and_then(|(port, _)| port.parse().ok()).unwrap_or_else(|| panic!("no port in:\n{banner}"));
    testkit::nfs::Client::connect(port).expect("connect")
}

#[test]
fn filters_choose_by_export_of_disks_and_directories_and_all_filters_together() {
    let place = Place::new();
    std::fs::create_dir(place.file("shared")).expect("a directory");
    std::fs::write(place.file("shared/file"), [7; 8192]).expect("a file");
    let export = "name=s,kind=directory,secure=false,path=shared,mount=/s,squash=no_root_squash";
    let disks = ["--export", "name=a,kind=ram,size=1MiB,delay=1ms", "--export", "name=b,kind=ram,size=1MiB,delay=2ms"];
    let rest = ["--nfs", "127.0.0.1:0", "--export", export, "--switch", "trace=direct", "--switch", "read_ahead=off"];
    let mut server = place.serve(&[&disks[..], &rest].concat());
    let mut nfs = nfs_client(&server.banner());
    let root = nfs.mount("/s").expect("mounted");
    let file = nfs.lookup(&root, "file").expect("an answer").expect("there");
    nfs.read(&file, 4096, 4096).expect("read");
    for (disk, blocks) in [("a", 5), ("b", 3)] {
        let mut client = Client::connect(&server.socket(), disk).expect("connect");
        for block in 0..blocks {
            client.read(block * 4096, 4096).expect("read");
        }
    }
    let count = |arguments: &[&str], name: &str| {
        trace(&place, arguments).lines().filter(|line| line.split_whitespace().any(|word| word == name)).count()
    };
    for name in ["nbd.read", "cache.miss", "queue.waited", "device.read"] {
        assert_eq!((count(&["--export", "a"], name), count(&["--export", "b"], name)), (5, 3), "{name}");
        assert_eq!(count(&[], name) - count(&["--export", "/s"], name), 8, "{name}");
    }
    // A directory is found with and without its slash, with what is done for it below.
    assert_eq!((count(&["--export", "s"], "nfs.read"), count(&["--export", "/s"], "nfs.read")), (1, 1));
    assert!(count(&["--export", "s"], "device.read") > 0 && count(&["--export", "s"], "file.opened") == 1);
    let line = trace(&place, &["--export", "s", "--event", "nfs.read"]);
    assert!(line.contains("offset 4096  bytes 4096  export /s"), "{line}");
    // Each of the filters takes some away.
    let all = ["--export", "b", "--event", "nbd.read", "--slower", "1ms", "--last", "3600s"];
    let slow = trace(&place, &all);
    assert_eq!(reads(&slow), 3, "{slow}");
    let client = slow.split_whitespace().nth(2).expect("a client").to_owned();
    assert_eq!(reads(&trace(&place, &[&all[..], &["--client", &client]].concat())), 3);
    assert_eq!(reads(&trace(&place, &["--export", "a", "--event", "nbd.read", "--slower", "3600s"])), 0);
    assert_eq!(reads(&trace(&place, &[&all[..6], &["--last", "0s"]].concat())), 0);
    let breakdown = trace(&place, &["--export", "b", "--breakdown"]);
    assert!(breakdown.contains("nbd.read") && !breakdown.contains("nfs.read"), "{breakdown}");
    // What there is not is said, with what there is.
    for (arguments, named) in [(["--export", "c"], "\"a\", \"b\", \"/s\""), (["--client", "nobody"], "there are c")] {
        let output = place.run(&[&["trace"], &arguments[..]].concat());
        assert!(!output.status.success() && said(&output).contains(named), "{}", said(&output));
    }
}

#[test]
fn what_is_no_trace_is_said() {
    let place = Place::new();
    place.write("garbage", &"garbage ".repeat(1000));
    for (arguments, wanted) in [
        (&["trace"] as &[&str], "cannot read a trace"),
        (&["trace", "garbage"], "no trace of Awase"),
        (&["trace", "."], "not a regular file"),
    ] {
        let output = place.run(arguments);
        assert!(!output.status.success() && said(&output).contains(wanted), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn a_name_that_no_event_has_is_answered_with_those_there_are() {
    let place = Place::new();
    let _server = serve(&place);
    let output = place.run(&["trace", "--event", "nbd.raed"]);
    let text = said(&output);
    assert!(!output.status.success() && text.contains("nbd.raed") && text.contains("nbd.read"), "{text}");
}

#[test]
fn a_server_that_traces_nothing_begins_when_it_is_told_to() {
    let place = Place::new();
    let server = serve_with(&place, "trace=off");
    read(&server);
    assert_eq!(trace(&place, &[]), "");
    assert!(place.run(&["set", "trace=direct"]).status.success());
    read(&server);
    assert!(reads(&trace(&place, &[])) > 0);
}

#[test]
fn what_happens_to_clients_and_exports_is_recorded() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    let place = Place::new();
    let configuration = |name: &str| {
        let text = format!(
            "[limits]\nconnections = 1\nstall_timeout = \"1s\"\n\n[[export]]\nname = \"{name}\"\nkind = \"ram\"\nsize = \"1MiB\"\n"
        );
        place.write("awase.toml", &text)
    };
    let file = configuration("first");
    let server = place.serve(&["--config", file.to_str().expect("text"), "--switch", "trace=direct"]);
    let count = |name: &str, arguments: &[&str]| {
        let text = trace(&place, &[&["--event", name], arguments].concat());
        text.lines().filter(|line| line.contains(name)).count()
    };
    // One that knows no client's flags, and is gone when it was told so.
    let mut hostile = UnixStream::connect(server.socket()).expect("connected");
    hostile.write_all(&[0xff; 64]).expect("sent");
    // What it sent and nobody read makes a reset of the end.
    let _ = hostile.read_to_end(&mut Vec::new());
    // The next is served when the first is forgotten, and until it goes all others are sent away.
    let mut client = loop {
        match Client::connect(&server.socket(), "first") {
            Ok(client) => break client,
            Err(_) => assert_eq!(count("connection.malformed", &[]), 1),
        }
    };
    assert!(Client::connect(&server.socket(), "first").is_err());
    client.read(0, 4096).expect("read");
    assert_eq!((count("connection.malformed", &[]), count("connection.negotiated", &["--export", "first"])), (1, 1));
    assert!(count("connection.turned_away", &[]) >= 1);
    assert_eq!((count("export.added", &["--export", "first"]), count("export.removed", &[])), (1, 0));
    // One that stops in the middle of a request.
    drop(client);
    let mut stalled = stop_in_the_middle(&server, "first");
    let _ = stalled.read_to_end(&mut Vec::new());
    let told = trace(&place, &["--event", "connection.stalled", "--export", "first"]);
    assert!(told.contains("waited_ms "), "{told}");
    configuration("second");
    server.signal(libc::SIGHUP);
    await_that("an export was removed", || !trace(&place, &["--event", "export.removed"]).is_empty());
    assert_eq!(
        (count("export.added", &["--export", "second"]), count("export.removed", &["--export", "first"])),
        (1, 1)
    );
}

/// Agrees on an export and sends a part of a request.
fn stop_in_the_middle(server: &Server, export: &str) -> std::os::unix::net::UnixStream {
    use std::io::{Read as _, Write as _};
    let hello = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()];
    loop {
        let mut stream = std::os::unix::net::UnixStream::connect(server.socket()).expect("connected");
        let (mut greeting, mut agreed) = ([0; 18], [0; 10]);
        // Until those before are forgotten, it is sent away.
        let is_served = stream.read_exact(&mut greeting).is_ok()
            && stream.write_all(&[&hello.concat()[..], export.as_bytes()].concat()).is_ok()
            && stream.read_exact(&mut agreed).is_ok();
        if is_served {
            stream.write_all(&[0x25, 0x60, 0x95, 0x13, 0]).expect("sent");
            return stream;
        }
    }
}

#[test]
fn what_leaves_the_cache_and_who_waits_for_room_is_recorded() {
    let place = Place::new();
    let export = "name=slow,kind=ram,size=64MiB,delay=5ms";
    let server = place.serve(&["--memory", "8MiB", "--export", export, "--switch", "trace=direct"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    for part in 0..32 {
        client.write(part << 20, &[1; 1 << 20]).expect("written");
    }
    client.flush().expect("flushed");
    let told = |name: &str| trace(&place, &["--export", "slow", "--event", name]);
    assert!(told("write_back.writer_held_back").contains("dirty "), "32 MiB do not fit into 8");
    let evicted = trace(&place, &["--event", "cache.evicted"]);
    assert!(evicted.contains("blocks "), "{evicted}");
}
