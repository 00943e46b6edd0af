//! One program of all policies' tests: each of its own would be linked on its own.

mod access;
mod awake;
mod cache;
mod checkpoint;
mod coherence;
mod color;
mod delivery;
mod dispatch;
mod early;
mod gather;
mod idle;
mod membership;
mod pace;
mod pages;
mod quantum;
mod queue;
mod queue_fair;
mod queue_window;
mod readahead;
mod sizing;
mod trial;
mod usage;
mod writeback;

use std::path::Path;

#[test]
fn every_file_of_tests_is_compiled() {
    let modules = include_str!("policies.rs");
    for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").read_dir().expect("tests") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        let is_source = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        let is_here = name == "policies" || modules.contains(&format!("\nmod {name};\n"));
        assert!(!is_source || is_here, "{} is no module of policy/tests/policies/policies.rs", path.display());
    }
}
