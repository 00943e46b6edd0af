//! What may be linked into Awase, and why it is.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, LicenseId};

use crate::{code, dependencies, members, name_of, none, read, root, sources};

/// Licences that may be linked into a program under MIT or Apache-2.0 without further duties than to name them.
const LICENCES: &[&str] = &["MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Unicode-3.0", "Unlicense", "Zlib"];

/// What Awase runs on; what only other platforms need is not linked, and perhaps not downloaded.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The registry that everything comes from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_dependency_has_its_reason_in_architecture_md() {
    let text = read("ARCHITECTURE.md");
    let rows = table_rows(&text, "| dependency | reason |");
    // A row may tell of several that come together.
    let names = |cell: &str| cell.split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let stated: BTreeMap<String, &str> =
        rows.iter().flat_map(|cells| names(cells[0]).into_iter().map(|name| (name, cells[1]))).collect();
    let members = members();
    let all = ["dependencies", "dev-dependencies", "build-dependencies"];
    let crates: BTreeSet<&str> = members.iter().map(|member| name_of(member)).collect();
    let used = members.iter().flat_map(|member| dependencies(member, &all));
    let used: BTreeSet<String> = used.filter(|name| !crates.contains(name.as_str())).collect();
    let mut wrong = Vec::new();
    for name in &used {
        if stated.get(name).is_none_or(|reason| reason.trim().is_empty()) {
            wrong.push(format!("ARCHITECTURE.md does not say why {name} is needed"));
        }
    }
    wrong.extend(
        stated
            .keys()
            .filter(|name| !used.contains(*name))
            .map(|name| format!("ARCHITECTURE.md says why {name} is needed, but nobody uses it")),
    );
    none(&wrong);
}

#[test]
fn every_dependency_of_a_crate_is_named_in_its_code() {
    let mut wrong = Vec::new();
    for member in members() {
        let code: String = sources(&member).iter().map(|(_, text)| code(text)).collect();
        let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let all = dependencies(&member, &["dependencies", "dev-dependencies", "build-dependencies"]);
        let unused = all.iter().filter(|name| !words.contains(name.replace('-', "_").as_str()));
        wrong.extend(unused.map(|name| format!("{member} does not use {name}")));
    }
    none(&wrong);
}

/// The crate of programs cannot depend on the database that executes them.
#[test]
fn tables_in_memory_have_the_limits_of_the_database() {
    let [database, memory] = ["services/transactions/src/store/mod.rs", "program/src/sys.rs"].map(read);
    let limit = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("const {name}: usize = ")).expect(name);
        rest.split(';').next().map(str::to_owned)
    };
    for name in ["KEY_BYTES_MAX", "ROW_BYTES_MAX", "TABLE_NAME_BYTES_MAX"] {
        assert_eq!(limit(&memory, name), limit(&database, name), "{name}");
    }
}

#[test]
fn every_dependency_comes_from_the_registry_under_an_allowed_licence() {
    let mut wrong = Vec::new();
    for package in packages() {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        // The crates of the workspace have no source.
        if !package["source"].is_null() && text("source") != REGISTRY {
            wrong.push(format!("{name} comes from {}", text("source")));
        }
        if !is_allowed(text("license")) {
            wrong.push(format!("{name} is licensed {:?}", text("license")));
        }
    }
    none(&wrong);
}

#[test]
fn the_check_of_licences_finds_what_it_looks_for() {
    for (expression, allowed) in [
        ("MIT", true),
        ("MIT OR GPL-3.0-only", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT AND GPL-3.0-only", false),
        ("AGPL-3.0-or-later", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression), allowed, "{expression:?}");
    }
}

/// Every package of Cargo.lock, as `cargo metadata` describes it.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", PLATFORM])
        .current_dir(root());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn is_allowed(licence: &str) -> bool {
    let allowed: BTreeSet<LicenseId> =
        LICENCES.iter().map(|name| spdx::license_id(name).expect("an SPDX identifier")).collect();
    Expression::parse_mode(licence, spdx::ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|required| required.license.id().is_some_and(|id| allowed.contains(&id)))
    })
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
