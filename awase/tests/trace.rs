//! `awase trace` with a real server and a real client.

mod server;

use std::path::PathBuf;
use std::process::Output;

use server::{Place, Server, client};

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
fn a_trace_goes_with_its_server_and_a_successor_clears_away_that_of_one_that_was_killed() {
    let place = Place::new();
    let first = serve(&place);
    let left = file(&place);
    first.crash();
    assert!(left.exists());
    let second = serve(&place);
    let present = file(&place);
    assert!(present != left && present.exists() && !left.exists());
    second.signal(libc::SIGTERM);
    assert!(second.wait().0.success());
    assert!(!present.exists() && std::fs::read_link(place.file("awase-data/trace")).is_err());
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
