//! The rules of the house that a compiler does not check (ARCHITECTURE.md states them).

mod circles;
mod dependencies;
mod documents;
mod install;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Any crate in `services/`.
const SERVICE: &str = "services";

/// Which crate may use which: the arrows of the drawing.
const ARROWS: &[(&str, &[&str])] = &[
    ("policy", &[]),
    ("shm", &[]),
    ("machine", &["policy"]),
    ("kernel", &["machine", "policy"]),
    (SERVICE, &["kernel", "machine", "policy"]),
    ("awase", &[SERVICE, "kernel", "machine", "policy", "shm"]),
    ("program", &[]),
    ("sim", &["machine", "policy"]),
    ("testkit", &["sim", "kernel", "machine", "policy"]),
    ("papers", &["sim", "machine", "policy"]),
    ("lab", &["papers", "testkit", "sim", "awase", "kernel", "machine", "policy", "shm"]),
];

/// Most lines of a source file.
const LINES_MAX: usize = 500;

/// Files that are longer, and why.
const LONGER: &[(&str, &str)] = &[];

/// What no policy may name: clocks, threads, locks, I/O, chance, waiting.
const FORBIDDEN_IN_POLICY: &[&str] = &[
    "SystemTime",
    "std::thread",
    "std::sync",
    "std::fs",
    "std::net",
    "std::io",
    "std::os",
    "std::process",
    "std::env",
    "std::{",
    "core::{",
    "rand::",
    "use rand",
    "async fn",
    "async move",
    "async {",
    ".await",
    "println!",
    "unsafe",
    "libc",
];

/// What a read or a write of a connection that is made goes through, from the wire to the disk.
const PATH_OF_A_REQUEST: &[&str] = &[
    "services/nbd/src/transmission.rs",
    "services/nbd/src/command.rs",
    "services/nfs/src/transmission.rs",
    "services/nfs/src/record.rs",
    "services/nfs/src/rpc.rs",
    "services/nfs/src/hot.rs",
    "services/nfs/src/procedure/content.rs",
    "services/nfs/src/procedure/attributes.rs",
    "services/nfs/src/procedure/permission.rs",
    "kernel/src/connection/inbound.rs",
    "kernel/src/connection/scatter.rs",
    "kernel/src/connection/outbound.rs",
    "kernel/src/tree/files.rs",
    "kernel/src/volume/load.rs",
    "kernel/src/volume/read.rs",
    "kernel/src/volume/write.rs",
    "kernel/src/volume/write_out.rs",
    "kernel/src/volume/flush.rs",
    "kernel/src/cache/mod.rs",
    "kernel/src/cache/index.rs",
    "kernel/src/cache/shard.rs",
    "kernel/src/queue.rs",
    "kernel/src/device/file.rs",
    "kernel/src/operation.rs",
];

#[test]
fn arrows_between_crates_point_only_as_drawn() {
    let members = members();
    let place =
        |member: &str| if member.starts_with("services/") { SERVICE.to_owned() } else { name_of(member).to_owned() };
    let places: BTreeMap<&str, String> = members.iter().map(|member| (name_of(member), place(member))).collect();
    let drawn: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for member in &members {
        let Some(allowed) = drawn.get(place(member).as_str()) else {
            wrong.push(format!("crate {member} is not drawn"));
            continue;
        };
        for used in dependencies(member, &["dependencies", "build-dependencies"]) {
            if places.get(used.as_str()).is_some_and(|place| !allowed.contains(&place.as_str())) {
                wrong.push(format!("{member} -> {used} is not drawn"));
            }
        }
    }
    none(&wrong);
}

#[test]
fn policies_have_no_clock_thread_lock_io_or_chance() {
    let mut wrong = Vec::new();
    for (path, text) in sources("policy/src").into_iter().filter(|(path, _)| !is_of_tests(path)) {
        for word in forbidden_in_policy(&text) {
            wrong.push(format!("{path} names {word}"));
        }
    }
    none(&wrong);
}

#[test]
fn the_check_of_policies_finds_what_it_looks_for() {
    for (text, found) in [
        ("use std::time::Instant;", vec!["std::time other than Duration"]),
        ("use std::time::{Duration, Instant};", vec!["std::time other than Duration"]),
        ("use std::sync::Mutex;", vec!["std::sync"]),
        ("use std::{fs, io};", vec!["std::{"]),
        ("use std::time::Duration; // std::time::Instant is what a machine has", vec![]),
    ] {
        assert_eq!(forbidden_in_policy(text), found, "{text}");
    }
}

/// OLTP-5: exports, files and clients are numbers and pointers once a connection is made. Names are looked up where a client
/// asks for one: when it connects or mounts, and in LOOKUP.
#[test]
fn nothing_that_a_read_or_write_passes_through_handles_a_name() {
    let mut wrong = Vec::new();
    for path in PATH_OF_A_REQUEST {
        if handles_names(&read(path)) {
            wrong.push(format!("{path} handles names or strings"));
        }
    }
    none(&wrong);
}

#[test]
fn the_check_for_names_finds_what_it_looks_for() {
    assert!(handles_names("fn find(exports: &[Export], name: &[u8]) {}"));
    assert!(handles_names("let wanted: &str = export;"));
    assert!(handles_names("struct Slot { of: String }"));
    assert!(!handles_names("fn structured() {} // a name, a String"));
}

#[test]
fn no_source_file_is_longer_than_fits_in_a_head() {
    let mut wrong = Vec::new();
    let mut long = BTreeSet::new();
    for member in members() {
        for (path, text) in sources(&member) {
            let lines = text.lines().count();
            if lines > LINES_MAX {
                long.insert(path.clone());
                if !LONGER.iter().any(|(listed, _)| *listed == path) {
                    wrong.push(format!("{path} has {lines} lines, more than {LINES_MAX}"));
                }
            }
        }
    }
    let stale = LONGER.iter().filter(|(path, _)| !long.contains(*path));
    wrong.extend(stale.map(|(path, _)| format!("{path} is listed as long and is not")));
    none(&wrong);
}

/// `println!` and `eprintln!` panic when what they write to is closed or full: a server, or mount, that panics loses what is
/// not written yet, and a command leaves undone what it was to do.
#[test]
fn the_product_writes_to_standard_output_and_error_only_where_that_may_fail() {
    let product = members().into_iter().filter(|member| !["lab", "papers"].contains(&member.as_str()));
    let product = product.filter(|member| !member.starts_with("proof/"));
    let files = product.flat_map(|member| sources(&format!("{member}/src")));
    let is_macro = |code: &str| code.contains("print!(") || code.contains("println!(");
    let prints = |(path, text): &(String, String)| !is_of_tests(path) && is_macro(&code_outside_tests(text));
    none(&files.filter(prints).map(|(path, _)| format!("{path} uses println! or eprintln!")).collect::<Vec<_>>());
}

#[test]
fn every_crate_obeys_the_lints_of_the_workspace() {
    let obeys = |member: &String| {
        let manifest = manifest(member);
        manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
    };
    none(&members().into_iter().filter(|member| !obeys(member)).collect::<Vec<_>>());
}

#[test]
fn every_type_of_event_is_recorded_somewhere() {
    let crates = ["kernel", "services/nbd", "services/nfs", "services/dsm", "services/transactions"]
        .iter()
        .flat_map(|member| sources(&format!("{member}/src")));
    let recording: String =
        crates.filter(|(path, _)| !path.contains("/trace/") && !is_of_tests(path)).map(|(_, text)| text).collect();
    let recorded: BTreeSet<&str> = recording
        .split("Event::")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next())
        .collect();
    let all = kernel::trace::Event::all().map(|event| format!("{event:?}"));
    none(&all.filter(|event| !recorded.contains(event.as_str())).collect::<Vec<_>>());
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn manifest(member: &str) -> toml::Table {
    read(&format!("{member}/Cargo.toml")).parse().unwrap_or_else(|error| panic!("{member}/Cargo.toml: {error}"))
}

fn members() -> Vec<String> {
    let workspace: toml::Table = read("Cargo.toml").parse().expect("the workspace's manifest");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    let mut all = Vec::new();
    for member in members.iter().map(|member| member.as_str().expect("a name")) {
        let Some(directory) = member.strip_suffix("/*") else {
            all.push(member.to_owned());
            continue;
        };
        let entries = fs::read_dir(root().join(directory)).expect("a directory of crates");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        all.extend(names.map(|name| format!("{directory}/{name}")));
    }
    all
}

/// How manifests call the crate in a directory.
fn name_of(member: &str) -> &str {
    member.rsplit('/').next().unwrap_or(member)
}

/// Names of what a crate depends on, as its manifest writes them.
fn dependencies(member: &str, sections: &[&str]) -> Vec<String> {
    let manifest = manifest(member);
    let tables = sections.iter().filter_map(|section| manifest.get(*section).and_then(toml::Value::as_table));
    tables.flat_map(|table| table.keys().cloned()).collect()
}

/// Is it a file of a module that only tests are made with?
fn is_of_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// All Rust files below `directory`, by their path in the workspace.
fn sources(directory: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut ahead = vec![root().join(directory)];
    while let Some(directory) = ahead.pop() {
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in entries {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                ahead.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source text");
                let name = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push((name, text));
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {directory}");
    found
}

/// The text without comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The code before the file's tests, which come last.
fn code_outside_tests(text: &str) -> String {
    let code = code(text);
    code.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

fn forbidden_in_policy(text: &str) -> Vec<&'static str> {
    let code = code(text);
    let mut found: Vec<_> = FORBIDDEN_IN_POLICY.iter().copied().filter(|word| code.contains(word)).collect();
    let of_time = code.split("std::time").skip(1);
    if of_time.into_iter().any(|rest| !rest.starts_with("::Duration")) {
        found.push("std::time other than Duration");
    }
    found
}

/// Does code outside of tests have to do with names or strings?
fn handles_names(text: &str) -> bool {
    let code = code_outside_tests(text);
    let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| ["str", "String", "name"].contains(&word))
}
