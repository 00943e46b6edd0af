//! `awase trace` with a real server and a real client.

use std::path::PathBuf;
use std::process::Output;

use testkit::nbd::Client;
use testkit::server::{Sandbox, Server, await_that, client, nfs_port};

/// Serves a file without holes.
fn serve(sandbox: &Sandbox) -> Server {
    serve_with(sandbox, "trace=direct")
}

/// The same, with a switch.
fn serve_with(sandbox: &Sandbox, switch: &str) -> Server {
    sandbox.write("image", &"contents".repeat((1 << 20) / 8));
    sandbox.serve(&["--export", "name=d,kind=file,path=image,size=1MiB", "--switch", switch])
}

/// The file in memory that the link in the data directory leads to.
fn file(sandbox: &Sandbox) -> PathBuf {
    std::fs::read_link(sandbox.file("awase-data/trace")).expect("a link to the trace")
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn trace(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let output = sandbox.run(&[&["trace"], arguments].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

/// Reads all of the export.
fn read(server: &Server) {
    client("nbdcopy", &[&server.uri("d"), "null:"]);
}

fn reads(text: &str) -> usize {
    text.lines().filter(|line| line.contains("nbd.read")).count()
}

#[test]
fn a_trace_is_read_while_the_server_runs_and_after_it_was_killed() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox);
    read(&server);
    let live = reads(&trace(&sandbox, &["--event", "nbd.read"]));
    assert!(live >= 1);
    server.signal(libc::SIGKILL);
    let (status, _, _) = server.wait();
    assert!(!status.success());
    assert_eq!(reads(&trace(&sandbox, &["--event", "nbd.read"])), live);
}

#[test]
fn events_are_filtered_by_client_and_duration() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox);
    read(&server);
    let all = trace(&sandbox, &["--event", "nbd.read"]);
    let of_client = |line: &str| line.split_whitespace().nth(2).unwrap_or_default().to_owned();
    let first = all.lines().map(of_client).find(|client| client.starts_with('c')).expect("a client");
    let of_first = trace(&sandbox, &["--event", "nbd.read", "--client", &first[1..]]);
    assert!(reads(&of_first) > 0);
    assert!(of_first.lines().all(|line| !line.contains("nbd.read") || of_client(line) == first), "{of_first}");
    assert_eq!(reads(&trace(&sandbox, &["--event", "nbd.read", "--slower", "3600s"])), 0);
}

#[test]
fn the_breakdown_names_stages_and_perfetto_gets_valid_json() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox);
    read(&server);
    let breakdown = trace(&sandbox, &["--breakdown"]);
    assert!(breakdown.contains("nbd.read") && breakdown.contains("reading on the device"), "{breakdown}");
    trace(&sandbox, &["--perfetto", "trace.json"]);
    let text = std::fs::read_to_string(sandbox.file("trace.json")).expect("written");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let events = json["traceEvents"].as_array().expect("events");
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(named("nbd.read") > 0 && named("thread_name") > 1);
    let is_timed = |event: &&serde_json::Value| event["ph"] == "M" || event["ts"].as_f64().is_some_and(f64::is_finite);
    assert_eq!(events.iter().filter(is_timed).count(), events.len());
}

#[test]
fn a_trace_is_removed_at_an_orderly_end_or_by_the_second_start_after_a_kill() {
    let sandbox = Sandbox::new();
    let previous = || std::fs::read_link(sandbox.file("awase-data/trace.previous"));
    let first = serve(&sandbox);
    read(&first);
    let left = file(&sandbox);
    let live = reads(&trace(&sandbox, &["--event", "nbd.read"]));
    first.crash();
    assert!(left.exists() && previous().is_err());
    let second = serve(&sandbox);
    let present = file(&sandbox);
    assert!(present != left && present.exists());
    // An immediate restart does not destroy the killed server's trace.
    assert_eq!(previous().expect("a link"), left);
    let before = trace(&sandbox, &["awase-data/trace.previous", "--event", "nbd.read"]);
    assert!(live > 0 && reads(&before) == live && reads(&trace(&sandbox, &["--event", "nbd.read"])) == 0, "{before}");
    second.crash();
    let third = serve(&sandbox);
    assert!(!left.exists() && present.exists() && previous().expect("a link") == present);
    let own = file(&sandbox);
    third.end();
    assert!(!own.exists() && std::fs::read_link(sandbox.file("awase-data/trace")).is_err());
    assert!(present.exists());
    std::fs::remove_file(present).expect("no later server removes it");
}

#[test]
fn files_of_the_user_that_are_called_as_a_trace_stay() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("awase-data");
    let theirs = sandbox.write("awase-data/trace", "mine");
    let errors = serve(&sandbox).end();
    assert_eq!(std::fs::read_to_string(&theirs).expect("their file"), "mine");
    assert!(errors.contains("awase trace will not find what is recorded"), "{errors}");
    std::fs::remove_file(theirs).expect("removed");
    let theirs = sandbox.write("awase-data/trace.previous", "mine");
    serve(&sandbox).crash();
    let left = file(&sandbox);
    let errors = serve(&sandbox).end();
    assert_eq!(std::fs::read_to_string(theirs).expect("their file"), "mine");
    assert!(errors.contains("trace.previous is no link to a trace"), "{errors}");
    assert!(file(&sandbox) == left && left.exists(), "the trace of the killed server");
}

#[test]
fn a_second_server_leaves_the_trace_of_the_first_where_it_is() {
    let sandbox = Sandbox::new();
    let first = serve(&sandbox);
    read(&first);
    let own = file(&sandbox);
    let other = sandbox.serve(&["--nbd-unix", "other.sock", "--export", "name=r,kind=ram,size=1MiB"]);
    assert_eq!(file(&sandbox), own);
    let errors = other.end();
    assert!(errors.contains("leads to that of another server, which runs"), "{errors}");
    assert!(errors.contains("awase top and awase set cannot reach this server"), "{errors}");
    assert!(reads(&trace(&sandbox, &["--event", "nbd.read"])) > 0);
    first.end();
}

#[test]
fn a_trace_is_private_and_without_names_or_content_of_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.file("shared")).expect("a directory");
    std::fs::write(sandbox.file("shared/classified.txt"), "a secret content ".repeat(1000)).expect("a file");
    let export = "name=s,kind=directory,secure=false,path=shared,mount=/s,squash=no_root_squash";
    let mut server = sandbox.serve(&["--nfs", "127.0.0.1:0", "--export", export, "--switch", "trace=direct"]);
    let mut client = nfs_client(&server.banner());
    let root = client.mount("/s").expect("mounted");
    let file = client.lookup(&root, "classified.txt").expect("an answer").expect("found");
    client.read(&file, 0, 4096).expect("read");
    let path = self::file(&sandbox);
    let bytes = std::fs::read(&path).expect("the trace");
    for secret in ["classified", "a secret content", "shared"] {
        assert!(!bytes.windows(secret.len()).any(|at| at == secret.as_bytes()), "{secret}");
    }
    // The authentication code of a handle would let others open the file.
    let code = &file.data[8..24];
    for part in code.chunks(8).chain(code.windows(4)) {
        assert!(!bytes.windows(part.len()).any(|at| at == part), "{part:x?}");
    }
    let mode = std::fs::metadata(&path).expect("the trace").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A client of the directories of the server with this banner.
fn nfs_client(banner: &str) -> testkit::nfs::Client {
    testkit::nfs::Client::connect(nfs_port(banner)).expect("connect")
}

#[test]
fn events_are_filtered_by_export_and_by_combined_filters() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.file("shared")).expect("a directory");
    std::fs::write(sandbox.file("shared/file"), [7; 8192]).expect("a file");
    let export = "name=s,kind=directory,secure=false,path=shared,mount=/s,squash=no_root_squash";
    let disks = ["--export", "name=a,kind=ram,size=1MiB,delay=1ms", "--export", "name=b,kind=ram,size=1MiB,delay=2ms"];
    let rest = ["--nfs", "127.0.0.1:0", "--export", export, "--switch", "trace=direct", "--switch", "read_ahead=off"];
    let mut server = sandbox.serve(&[&disks[..], &rest].concat());
    let mut nfs = nfs_client(&server.banner());
    let root = nfs.mount("/s").expect("mounted");
    let file = nfs.lookup(&root, "file").expect("an answer").expect("found");
    nfs.read(&file, 4096, 4096).expect("read");
    for (disk, blocks) in [("a", 5), ("b", 3)] {
        let mut client = Client::connect(&server.socket(), disk).expect("connect");
        for block in 0..blocks {
            client.read(block * 4096, 4096).expect("read");
        }
    }
    let count = |arguments: &[&str], name: &str| {
        trace(&sandbox, arguments).lines().filter(|line| line.split_whitespace().any(|word| word == name)).count()
    };
    for name in ["nbd.read", "cache.miss", "queue.waited", "device.read"] {
        assert_eq!((count(&["--export", "a"], name), count(&["--export", "b"], name)), (5, 3), "{name}");
        assert_eq!(count(&[], name) - count(&["--export", "/s"], name), 8, "{name}");
    }
    // A directory is named with or without its slash, and events below the protocol belong to it, too.
    assert_eq!((count(&["--export", "s"], "nfs.read"), count(&["--export", "/s"], "nfs.read")), (1, 1));
    assert!(count(&["--export", "s"], "device.read") > 0 && count(&["--export", "s"], "file.opened") == 1);
    let line = trace(&sandbox, &["--export", "s", "--event", "nfs.read"]);
    assert!(line.contains("offset 4096  bytes 4096  export /s"), "{line}");
    // Each filter excludes some events.
    let all = ["--export", "b", "--event", "nbd.read", "--slower", "1ms", "--last", "3600s"];
    let slow = trace(&sandbox, &all);
    assert_eq!(reads(&slow), 3, "{slow}");
    let client = slow.split_whitespace().nth(2).expect("a client").to_owned();
    assert_eq!(reads(&trace(&sandbox, &[&all[..], &["--client", &client]].concat())), 3);
    assert_eq!(reads(&trace(&sandbox, &["--export", "a", "--event", "nbd.read", "--slower", "3600s"])), 0);
    assert_eq!(reads(&trace(&sandbox, &[&all[..6], &["--last", "0s"]].concat())), 0);
    let breakdown = trace(&sandbox, &["--export", "b", "--breakdown"]);
    assert!(breakdown.contains("nbd.read") && !breakdown.contains("nfs.read"), "{breakdown}");
    // Unknown names are reported with those that exist.
    for (arguments, named) in [(["--export", "c"], "\"a\", \"b\", \"/s\""), (["--client", "nobody"], "there are c")] {
        let output = sandbox.run(&[&["trace"], &arguments[..]].concat());
        assert!(!output.status.success() && text_of(&output).contains(named), "{}", text_of(&output));
    }
}

#[test]
fn files_that_are_no_trace_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("garbage", &"garbage ".repeat(1000));
    for (arguments, wanted) in [
        (&["trace"] as &[&str], "cannot read a trace"),
        (&["trace", "garbage"], "no trace of Awase"),
        (&["trace", "."], "not a regular file"),
    ] {
        let output = sandbox.run(arguments);
        assert!(!output.status.success() && text_of(&output).contains(wanted), "{arguments:?}: {}", text_of(&output));
    }
}

#[test]
fn an_unknown_event_is_reported_with_the_names_of_events() {
    let sandbox = Sandbox::new();
    let _server = serve(&sandbox);
    let output = sandbox.run(&["trace", "--event", "nbd.raed"]);
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("nbd.raed") && text.contains("nbd.read"), "{text}");
}

#[test]
fn tracing_can_be_switched_on_at_run_time() {
    let sandbox = Sandbox::new();
    let server = serve_with(&sandbox, "trace=off");
    read(&server);
    assert_eq!(trace(&sandbox, &[]), "");
    assert!(sandbox.run(&["set", "trace=direct"]).status.success());
    read(&server);
    assert!(reads(&trace(&sandbox, &[])) > 0);
}

#[test]
fn events_of_connections_and_exports_are_recorded() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    let sandbox = Sandbox::new();
    let configuration = |name: &str| {
        let text = format!(
            "[limits]\nconnections = 1\nstall_timeout = \"1s\"\n\n[[export]]\nname = \"{name}\"\nkind = \"ram\"\nsize = \"1MiB\"\n"
        );
        sandbox.write("awase.toml", &text)
    };
    let file = configuration("first");
    let server = sandbox.serve(&["--config", file.to_str().expect("text"), "--switch", "trace=direct"]);
    let count = |name: &str, arguments: &[&str]| {
        let text = trace(&sandbox, &[&["--event", name], arguments].concat());
        text.lines().filter(|line| line.contains(name)).count()
    };
    // A client with unknown flags, which is disconnected.
    let mut hostile = UnixStream::connect(server.socket()).expect("connected");
    hostile.write_all(&[0xff; 64]).expect("sent");
    // Unread input makes the close a reset.
    let _ = hostile.read_to_end(&mut Vec::new());
    // The next is served once the first is no longer counted; while it is connected, all others are refused.
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
    // A client that stalls within a request.
    drop(client);
    let mut stalled = stall(&server, "first");
    let _ = stalled.read_to_end(&mut Vec::new());
    let stalls = trace(&sandbox, &["--event", "connection.stalled", "--export", "first"]);
    assert!(stalls.contains("waited_ms "), "{stalls}");
    configuration("second");
    server.signal(libc::SIGHUP);
    await_that("an export was removed", || !trace(&sandbox, &["--event", "export.removed"]).is_empty());
    assert_eq!(
        (count("export.added", &["--export", "second"]), count("export.removed", &["--export", "first"])),
        (1, 1)
    );
}

/// Negotiates an export and sends a part of a request.
fn stall(server: &Server, export: &str) -> std::os::unix::net::UnixStream {
    use std::io::{Read as _, Write as _};
    let hello = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()];
    loop {
        let mut stream = std::os::unix::net::UnixStream::connect(server.socket()).expect("connected");
        let (mut greeting, mut agreed) = ([0; 18], [0; 10]);
        // Refused while earlier connections are still counted.
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
fn evictions_and_throttled_writers_are_recorded() {
    let sandbox = Sandbox::new();
    let export = "name=slow,kind=ram,size=64MiB,delay=50ms";
    let server = sandbox.serve(&["--memory", "8MiB", "--export", export, "--switch", "trace=direct"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    for part in 0..32 {
        client.write(part << 20, &[1; 1 << 20]).expect("written");
    }
    client.flush().expect("flushed");
    let events = |name: &str| trace(&sandbox, &["--export", "slow", "--event", name]);
    assert!(events("write_back.writer_held_back").contains("dirty "), "32 MiB do not fit into 8");
    let evicted = trace(&sandbox, &["--event", "cache.evicted"]);
    assert!(evicted.contains("blocks "), "{evicted}");
}
