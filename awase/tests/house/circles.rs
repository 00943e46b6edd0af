//! The files of a crate import each other in one direction only.
//!
//! An import counts for the file that defines what is imported, also where a module on the way re-exports it. Not
//! counted: what a module takes from its own children by a relative path, since a module and its children are one
//! story; the names that a crate exports at its root, which are the words that all of it speaks; and tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::{code, is_of_tests, members, none, sources};

/// Circles that are being untangled: crate and files. A circle of some of these files is accepted, too.
const PRESENT: &[(&str, &[&str])] = &[
    ("lab", &["bench::nfs::awase", "bench::nfs::ganesha", "bench::nfs::server"]),
    ("lab", &["bench::plot", "bench::report"]),
    ("lab", &["bench::server", "bench::workload"]),
    ("papers", &["experiment::oltp::costs", "experiment::oltp::devices"]),
    ("papers", &["experiment::oltp::plots", "experiment::oltp::report"]),
    ("lab", &["load::drive", "load::files", "load::nbd", "load::nfs"]),
    ("papers", &["model::buffers", "model::buffers::pool"]),
    ("papers", &["report::html", "report::plot", "report::tables"]),
];

/// A module by its path in the crate, the root being empty.
type Module = Vec<String>;

#[test]
fn imports_between_the_files_of_a_crate_make_no_circle() {
    let mut wrong = Vec::new();
    for member in members() {
        for circle in circles(&modules(&member)) {
            let is_present = |(crate_, files): &(&str, &[&str])| {
                *crate_ == member && circle.iter().all(|module| files.contains(&module.as_str()))
            };
            if !PRESENT.iter().any(is_present) {
                wrong.push(format!("{member}: {}", circle.join(", ")));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_check_of_imports_finds_what_it_looks_for() {
    let found = |files: &[(&str, &str)]| {
        let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        circles(&files.iter().map(|(path, text)| (module(path), code(text))).collect())
    };
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "use super::a::{self, A};")]), [["a", "b"]]);
    assert_eq!(
        found(&[("a", "crate::b::f()"), ("b", "use crate::{c, d::D};"), ("c", "use super::a;")]),
        [["a", "b", "c"]]
    );
    let exported = [("a", "use crate::m::B;"), ("m", "pub use b::B;"), ("m::b", "use crate::a::A;")];
    assert_eq!(found(&exported), [["a", "m::b"]]);
    let of_tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
    assert!(found(&[("a", "use crate::b::B;"), ("b", of_tests)]).is_empty());
    assert!(
        found(&[("", "pub use a::A;"), ("a", "use crate::b::B;"), ("b", "use crate::A; // use crate::a::A;")])
            .is_empty()
    );
    assert!(found(&[("m", "use b::B;"), ("m::b", "use super::C;")]).is_empty());
}

/// The modules of a crate with their code outside of tests.
fn modules(member: &str) -> BTreeMap<Module, String> {
    let files = sources(&format!("{member}/src")).into_iter().filter(|(path, _)| !is_of_tests(path));
    let module = |path: &str| {
        let below = path.trim_start_matches(&format!("{member}/src/")).trim_end_matches(".rs");
        let mut parts: Module = below.split('/').map(str::to_owned).collect();
        parts.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        parts
    };
    files.map(|(path, text)| (module(&path), code(&text))).collect()
}

/// The groups of modules that import each other, directly or not.
fn circles(modules: &BTreeMap<Module, String>) -> Vec<Vec<String>> {
    let uses: BTreeMap<&Module, Vec<(bool, Module)>> = modules.iter().map(|(at, text)| (at, used(at, text))).collect();
    let imported = |at: &Module| -> BTreeSet<Module> {
        let paths = uses[at].iter().filter(|(is_exported, path)| !is_exported || !path.starts_with(at));
        paths.map(|(_, path)| definer(&uses, path, 0)).filter(|module| module != at && !module.is_empty()).collect()
    };
    let direct: BTreeMap<&Module, BTreeSet<Module>> = modules.keys().map(|at| (at, imported(at))).collect();
    let reached = |from: &Module| {
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = ahead.pop() {
            ahead.extend(direct[&at].iter().filter(|next| seen.insert((*next).clone())).cloned());
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = modules.keys().map(|at| (at, reached(at))).collect();
    let group = |at: &Module| -> Vec<String> {
        let both_ways = reached[at].iter().filter(|other| reached[other].contains(at));
        both_ways.map(|module| module.join("::")).collect()
    };
    let found: BTreeSet<Vec<String>> = modules.keys().map(group).collect();
    found.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The paths from the crate's root that a module uses, and whether it exports them.
fn used(at: &Module, text: &str) -> Vec<(bool, Module)> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let (mut found, mut rest) = (Vec::new(), String::new());
    // Statements begin a line.
    for part in format!("\n{text}").split_inclusive(';') {
        let start = ["\n    use ", "\n        use ", "\nuse ", "\npub use ", "\npub(crate) use ", "\npub(super) use "]
            .iter()
            .find_map(|word| Some((part.rfind(word)?, word)));
        let Some((start, word)) = start else {
            rest.push_str(part);
            continue;
        };
        rest.push_str(&part[..start]);
        let is_exported = word.contains("pub");
        let paths = expanded(part[start + word.len()..].trim_end_matches(';'));
        found.extend(paths.iter().filter_map(|path| Some((is_exported, absolute(at, path, is_exported)?))));
    }
    let words = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    found.extend(words.filter_map(|path| Some((false, absolute(at, path, false)?))));
    found
}

/// The paths of a tree of imports.
fn expanded(tree: &str) -> Vec<String> {
    let Some((before, group)) = tree.trim().split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.trim_end().trim_end_matches('}').chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("one at least").push(c),
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| expanded(&format!("{before}{}", part.trim()))).collect()
}

/// The path from the crate's root; `None` when it leads elsewhere. A path without `crate`, `super` or `self` counts
/// where it `is_exported`.
fn absolute(at: &Module, path: &str, is_exported: bool) -> Option<Module> {
    let mut parts = path.split("::").map(str::to_owned).peekable();
    let mut from = match parts.peek()?.as_str() {
        "crate" => Module::new(),
        "super" | "self" => at.clone(),
        _ if is_exported => at.clone(),
        _ => return None,
    };
    parts.next_if(|part| part == "crate" || part == "self");
    while parts.next_if(|part| part == "super").is_some() {
        from.pop();
    }
    from.extend(parts.filter(|part| part != "self" && !part.is_empty()));
    Some(from)
}

/// The module that defines what `path` leads to, through the names that modules export. Names of the root are not
/// followed.
fn definer(uses: &BTreeMap<&Module, Vec<(bool, Module)>>, path: &Module, depth: usize) -> Module {
    let mut at = Module::new();
    for part in path {
        let below = [&at[..], std::slice::from_ref(part)].concat();
        if uses.contains_key(&below) {
            at = below;
            continue;
        }
        let exported =
            uses.get(&at).into_iter().flatten().find(|(is_exported, path)| *is_exported && path.last() == Some(part));
        return match exported {
            // A name that leads to itself is one of the module's own.
            Some((_, path)) if depth < 8 && !at.is_empty() => definer(uses, path, depth + 1),
            _ => at,
        };
    }
    at
}
