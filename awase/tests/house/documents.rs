//! What the documents say, held against the program and the tree wherever a machine can.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::{members, none, read, root, sources};

const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/configuration.md",
    "docs/directories.md",
    "docs/glossary.md",
    "docs/lab.md",
    "docs/metrics.md",
    "docs/programs.md",
    "docs/tracing.md",
    "docs/benchmarks-shm.md",
];

/// First parts of paths that are of the repository.
const TOP: &[&str] = &[
    "awase/",
    "docs/",
    "kernel/",
    "lab/",
    "machine/",
    "packaging/",
    "papers/",
    "policy/",
    "program/",
    "proof/",
    "scripts/",
    "services/",
    "shm/",
];

/// Programs of others that the documents show in use, and what a shell has.
const OTHERS: &[&str] = &[
    "cd",
    "clang",
    "cmp",
    "echo",
    "fio",
    "git",
    "mke2fs",
    "modprobe",
    "mount",
    "nbd-client",
    "nbdcopy",
    "nbdinfo",
    "nfs-cat",
    "nfs-cp",
    "nfs-ls",
    "perf",
    "pgbench",
    "printf",
    "psql",
    "qemu-img",
    "rustup",
    "strace",
    "taskset",
];

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
fn the_example_configurations_are_valid() {
    let of_readme = fenced(&read("README.md"), "toml");
    assert!(!of_readme.is_empty());
    let mut wrong = Vec::new();
    for text in of_readme.into_iter().chain([read("packaging/awase.toml")]) {
        if let Err(problems) = awase::config::Config::parse("example", &text) {
            wrong.push(problems.to_string());
        }
    }
    none(&wrong);
}

#[test]
fn a_list_below_the_flags_is_there_where_one_is_spoken_of() {
    let mut wrong = Vec::new();
    for command in awase::cli::command().get_subcommands() {
        let speaks = |argument: &clap::Arg| argument.get_help().is_some_and(|help| help.to_string().contains("below"));
        if command.get_arguments().any(speaks) && command.get_after_long_help().is_none() {
            wrong.push(format!("awase {} --help has no list", command.get_name()));
        }
    }
    none(&wrong);
}

#[test]
fn every_term_stands_in_the_glossary_once() {
    let glossary = read("docs/glossary.md");
    let rows = glossary.lines().filter(|line| !line.starts_with("| term | what it is |"));
    let cells = rows.filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
    let mut known = BTreeSet::new();
    let again = cells.flat_map(|cell| cell.split(", ")).filter(|term| !known.insert(*term));
    none(&again.map(|term| format!("docs/glossary.md explains {term} again")).collect::<Vec<_>>());
}

/// The values of a key of a unit.
fn values(unit: &str, key: &str) -> Vec<String> {
    unit.lines().filter_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned())).collect()
}

/// Exit code 2 is that of what may pass by itself, too: a locked image, a device that is missing, a port in use.
#[test]
fn systemd_starts_a_server_again_whatever_it_says() {
    let service = read("packaging/awase.service");
    assert_eq!(values(&service, "Restart"), ["on-failure"]);
    assert!(values(&service, "RestartPreventExitStatus").is_empty());
    // Its own limit, five starts in ten seconds, would end that.
    assert_eq!(
        (&*values(&service, "RestartSec"), &*values(&service, "StartLimitIntervalSec")),
        (&["1s".to_owned()][..], &["0".to_owned()][..])
    );
}

/// With `ProtectSystem=strict` a service writes only to directories that are given to it.
#[test]
fn what_an_example_configuration_has_written_the_service_may_write() {
    let service = read("packaging/awase.service");
    assert_eq!(values(&service, "ProtectSystem"), ["strict"]);
    let of = |key, above: &'static str| values(&service, key).into_iter().map(move |name| Path::new(above).join(name));
    let writable: Vec<_> = of("ReadWritePaths", "/").chain(of("RuntimeDirectory", "/run")).collect();
    let start = values(&service, "WorkingDirectory").pop().unwrap_or_else(|| "/".to_owned());
    let examples = fenced(&read("README.md"), "toml").into_iter().chain([read("packaging/awase.toml")]);
    let mut wrong = Vec::new();
    for text in examples {
        let data = awase::config::Config::parse("example", &text).expect("valid").settings.data;
        let mut exports = text.split("\n[[export]]").skip(1);
        let has_what_must_exist = |of: &&str| of.contains("\npath = ") && !of.contains("\ncreate = true");
        assert_eq!(exports.find(has_what_must_exist), None, "the service does not start");
        let values = text.lines().filter_map(|line| line.split_once(" = \"")?.1.split('"').next());
        let paths = values.filter(|value| value.starts_with('/') && !value.starts_with("/dev/")).map(PathBuf::from);
        let paths = paths.chain([Path::new(&start).join(data)]);
        wrong.extend(paths.filter(|path| !writable.iter().any(|of| path.starts_with(of))));
    }
    none(&wrong.iter().map(|path| format!("{}: read-only file system", path.display())).collect::<Vec<_>>());
}

/// systemd removes a runtime directory with all that is in it when the service stops, unless it is told otherwise.
#[test]
fn sockets_of_systemd_outlive_the_service() {
    let (service, socket) = (read("packaging/awase.service"), read("packaging/awase.socket"));
    let directories = values(&service, "RuntimeDirectory");
    let is_inside =
        |path: &String| directories.iter().any(|of| Path::new(path).starts_with(Path::new("/run").join(of)));
    if values(&socket, "ListenStream").iter().any(is_inside) {
        assert_eq!(values(&service, "RuntimeDirectoryPreserve"), ["yes"]);
    }
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        let directory = Path::new(document).parent().expect("a path below the root");
        for path in links(&text) {
            if !root().join(directory).join(&path).exists() {
                wrong.push(format!("{document} links to {path}"));
            }
        }
        for path in code_spans(&text).iter().flat_map(|span| paths(span)) {
            if !root().join(&path).exists() {
                wrong.push(format!("{document} names {path}"));
            }
        }
    }
    none(&wrong);
}

#[test]
fn every_command_that_a_document_shows_is_understood() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for document in DOCUMENTS {
        let text = read(document);
        let shown = fenced(&text, "sh").join("\n");
        let spans = code_spans(&text)
            .into_iter()
            .filter(|span| ["make ", "cargo ", "awase "].iter().any(|it| span.starts_with(it)));
        let lines = shown.replace("\\\n", " ");
        for command in lines.lines().map(str::to_owned).chain(spans) {
            for command in commands(&command) {
                seen.insert(command[0].clone());
                if let Err(reason) = understood(&command) {
                    wrong.push(format!("{document}: {}: {reason}", command.join(" ")));
                }
            }
        }
    }
    none(&wrong);
    for program in ["make", "cargo", "awase"] {
        assert!(seen.contains(program), "no command of {program} was found");
    }
}

#[test]
fn the_check_of_commands_finds_what_it_looks_for() {
    for line in [
        "make nothing",
        "cargo test -p awase-nothing",
        "cargo test -p awase --test nothing",
        "cargo run -p awase-shm --example nothing",
        "cargo test -p awase-policy nothing_of_this_name",
        "awase serve --nothing",
        "awase nothing",
        "frobnicate --all",
    ] {
        let commands = commands(line);
        assert!(commands.iter().any(|command| understood(command).is_err()), "{line}");
    }
    assert_eq!(commands("A=b make test # and so on"), [["make", "test"]]);
    assert_eq!(commands("ls a | awase top && true")[1], ["awase", "top"]);
}

/// The blocks of code in `language`.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    let code = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    code.map(str::to_owned).collect()
}

/// What stands between backticks in the running text.
fn code_spans(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What links lead to, of this repository.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or(target).to_owned()).collect()
}

/// Words of a code span that look like paths of the repository.
fn paths(span: &str) -> Vec<String> {
    let words = span.split(|c: char| c.is_whitespace() || c == ',');
    let of_repository = words.filter(|word| TOP.iter().any(|top| word.starts_with(top)));
    // A path with a part in capitals stands for many.
    of_repository
        .filter(|word| {
            !word.split(['/', '-', '.']).any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
                || word.ends_with(".md")
        })
        .map(str::to_owned)
        .collect()
}

/// The commands of a line of a shell, as words.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default().trim();
    if line.starts_with('#') {
        return Vec::new();
    }
    let parts = line.split("&&").flat_map(|part| part.split(" | "));
    let commands = parts.map(|part| words(part).into_iter().skip_while(|word| is_assignment(word)).collect::<Vec<_>>());
    commands.filter(|command| !command.is_empty()).collect()
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

/// Words as a shell splits them, without their quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.trim().chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => words.last_mut().expect("one at least").push(c),
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c.is_whitespace() => words.push(String::new()),
            None => words.last_mut().expect("one at least").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn understood(command: &[String]) -> Result<(), String> {
    match command[0].as_str() {
        "make" => make(&command[1..]),
        "cargo" => cargo(&command[1..]),
        "awase" => {
            let given = command.iter().map(|word| word.trim_matches(['[', ']']));
            // A name of a command, or its usage, is no command line.
            let is_usage = command.len() == 2 || command.iter().any(|word| word.starts_with('['));
            match awase::cli::Cli::command().try_get_matches_from(given) {
                Err(error) if error.kind() == ErrorKind::MissingRequiredArgument && is_usage => Ok(()),
                Err(error) if error.use_stderr() => Err(error.to_string()),
                _ => Ok(()),
            }
        }
        other if OTHERS.contains(&other) => Ok(()),
        other => Err(format!("{other} is not known")),
    }
}

fn make(arguments: &[String]) -> Result<(), String> {
    let makefile = read("Makefile");
    let targets = arguments.iter().filter(|word| !is_assignment(word));
    for target in targets {
        if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
            return Err(format!("the Makefile has no target {target}"));
        }
    }
    Ok(())
}

/// Knows what `cargo test` takes here: a package, a program of tests, part of a test's name. What makes a crate of the
/// reader's own is not about this workspace.
fn cargo(arguments: &[String]) -> Result<(), String> {
    if ["init", "add"].contains(&arguments[0].as_str()) {
        return Ok(());
    }
    let mut arguments = arguments.iter().take_while(|word| *word != "--");
    let (mut directory, mut tests, mut filter) = (None, None, None);
    arguments.next();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "-p" | "--package" => {
                let package = arguments.next().ok_or("a package is missing")?;
                let named =
                    |member: &String| read(&format!("{member}/Cargo.toml")).contains(&format!("name = \"{package}\""));
                directory = Some(members().into_iter().find(named).ok_or_else(|| format!("no package {package}"))?);
            }
            "--example" => {
                let name = arguments.next().ok_or("an example is missing")?;
                let directory = directory.as_ref().ok_or("no package has the example")?;
                let exists = root().join(format!("{directory}/examples/{name}.rs")).exists();
                exists.then_some(()).ok_or_else(|| format!("no example {name} in {directory}"))?;
            }
            "--test" => tests = Some(arguments.next().ok_or("a program of tests is missing")?.clone()),
            "--target" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            name => filter = Some(name.to_owned()),
        }
    }
    let directories = directory.map_or_else(members, |directory| vec![directory]);
    let mut texts: Vec<(String, String)> = directories.iter().flat_map(|directory| sources(directory)).collect();
    if let Some(tests) = tests {
        texts.retain(|(path, _)| {
            path.contains(&format!("/tests/{tests}.rs")) || path.contains(&format!("/tests/{tests}/"))
        });
        if texts.is_empty() {
            return Err(format!("no program of tests {tests}"));
        }
    }
    let Some(filter) = filter else { return Ok(()) };
    let last = filter.trim_end_matches(':').rsplit("::").next().unwrap_or_default().to_owned();
    let names = |(path, text): &(String, String)| {
        module(path).contains(&last)
            || text.lines().any(|line| line.trim_start().starts_with("fn ") && line.contains(&last))
    };
    texts.retain(|(_, text)| text.contains("#[test]"));
    if texts.iter().any(names) { Ok(()) } else { Err(format!("no test is called {filter}")) }
}

/// The part of a file's path that is in the names of its tests: not that of the program.
fn module(path: &str) -> &str {
    let of_program = path.split_once("/tests/").map(|(_, path)| path.split_once('/').map_or("", |(_, module)| module));
    of_program.unwrap_or_else(|| path.split_once("/src/").map_or("", |(_, module)| module))
}
