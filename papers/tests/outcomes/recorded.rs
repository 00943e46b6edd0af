//! Every experiment gives what it gave when it was recorded.

use std::fs;
use std::path::{Path, PathBuf};

use papers::recorded;

use super::published;

/// Set to 1, it records anew instead.
const RECORD: &str = "AWASE_RECORD";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded")
}

#[test]
fn no_table_drifts_from_its_recorded_result() {
    let record = std::env::var_os(RECORD).is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    for outcome in published() {
        let name = outcome.order.name();
        let path = directory().join(format!("{name}.csv"));
        if record {
            fs::write(&path, recorded::text(&outcome.results)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            continue;
        }
        match fs::read_to_string(&path) {
            Ok(text) => {
                let drifts = recorded::drifts(&text, &outcome.results);
                wrong.extend(drifts.iter().map(|drift| format!("{name}, {drift}")));
            }
            Err(error) => wrong.push(format!("{name} is not recorded: {}: {error}", path.display())),
        }
    }
    assert!(
        wrong.is_empty(),
        "\n  {}\nIf that is meant: {RECORD}=1 cargo test -p awase-papers --test outcomes recorded, look at the differences \
         (git diff papers/recorded) and commit them\n",
        wrong.join("\n  ")
    );
}

#[test]
fn nothing_is_recorded_of_experiments_that_are_gone() {
    let files = fs::read_dir(directory()).expect("papers/recorded");
    for file in files {
        let name = file.expect("an entry").file_name().into_string().expect("a plain name");
        let of = name.strip_suffix(".csv").or_else(|| name.strip_suffix(".sensitivity.json"));
        let known = of.is_none_or(|name| papers::named(name).is_some());
        assert!(known, "papers/recorded/{name} is of no experiment");
    }
}
