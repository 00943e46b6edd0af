//! The rules of the house that a compiler does not check (ARCHITECTURE.md tells them).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which crate may use which: the arrows of the drawing.
const ARROWS: &[(&str, &[&str])] = &[
    ("policy", &[]),
    ("machine", &["policy"]),
    ("kernel", &["machine", "policy"]),
    ("nbd", &["kernel", "machine", "policy"]),
    ("nfs", &["kernel", "machine", "policy"]),
    ("awase", &["nbd", "nfs", "kernel", "machine", "policy"]),
    ("sim", &["machine", "policy"]),
    ("testkit", &["sim", "kernel", "machine", "policy"]),
    ("lab", &["testkit", "sim", "awase", "kernel", "machine", "policy"]),
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
    let crates: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    let drawn: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for member in members() {
        let Some(allowed) = drawn.get(name_of(&member)) else {
            wrong.push(format!("crate {member} is not drawn"));
            continue;
        };
        for used in dependencies(&member, &["dependencies", "build-dependencies"]) {
            if crates.contains(used.as_str()) && !allowed.contains(&used.as_str()) {
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

#[test]
fn every_crate_obeys_the_lints_of_the_workspace() {
    let obeys = |member: &String| {
        let manifest = manifest(member);
        manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
    };
    none(&members().into_iter().filter(|member| !obeys(member)).collect::<Vec<_>>());
}

#[test]
fn every_dependency_has_its_reason_in_architecture_md() {
    let text = read("ARCHITECTURE.md");
    let rows = table_rows(&text, "| dependency | reason |");
    // A row may tell of several that come together.
    let names = |cell: &str| cell.split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let told: BTreeMap<String, &str> =
        rows.iter().flat_map(|cells| names(cells[0]).into_iter().map(|name| (name, cells[1]))).collect();
    let members = members();
    let all = ["dependencies", "dev-dependencies", "build-dependencies"];
    let crates: BTreeSet<&str> = members.iter().map(|member| name_of(member)).collect();
    let used = members.iter().flat_map(|member| dependencies(member, &all));
    let used: BTreeSet<String> = used.filter(|name| !crates.contains(name.as_str())).collect();
    let mut wrong = Vec::new();
    for name in &used {
        if told.get(name).is_none_or(|reason| reason.trim().is_empty()) {
            wrong.push(format!("ARCHITECTURE.md does not say why {name} is needed"));
        }
    }
    wrong.extend(
        told.keys()
            .filter(|name| !used.contains(*name))
            .map(|name| format!("ARCHITECTURE.md says why {name} is needed, but nobody uses it")),
    );
    none(&wrong);
}

#[test]
fn every_type_of_event_is_recorded_somewhere() {
    let crates = ["kernel", "services/nbd", "services/nfs"].iter().flat_map(|member| sources(&format!("{member}/src")));
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

#[test]
fn the_switches_in_the_readme_are_those_of_the_program() {
    let table = awase::config::switch_table();
    assert!(read("README.md").contains(&table), "README.md should hold this table:\n\n{table}");
}

#[test]
fn the_configuration_reference_is_that_of_the_program() {
    let reference = awase::config::reference();
    assert!(
        read("docs/configuration.md") == reference,
        "docs/configuration.md is out of date; `make docs` (awase config --reference) writes it"
    );
}

#[test]
fn the_example_configuration_is_valid() {
    let text = read("packaging/awase.toml");
    let name = "packaging/awase.toml";
    awase::config::Config::parse(name, &text).unwrap_or_else(|problems| panic!("{problems}"));
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
    members.iter().map(|member| member.as_str().expect("a name").to_owned()).collect()
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

/// The cells of the rows below the table head `head`.
fn table_rows<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let rows = text.lines().skip_while(|line| *line != head).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "no table {head:?}");
    rows
}
