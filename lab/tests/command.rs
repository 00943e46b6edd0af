//! `awase-lab`: its lists, its report, its messages.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use lab::local;
use papers::{Experiment, experiments, simulated};
use testkit::server::Sandbox as Place;

/// The one that takes the fewest steps.
fn smallest() -> &'static Experiment {
    simulated().min_by_key(|experiment| experiment.steps(&experiment.parameters())).expect("an experiment")
}

fn run(place: &Place, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_awase-lab")).args(arguments).current_dir(place.path()).output().expect("awase-lab")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The message of a command line that is refused.
fn refused(place: &Place, arguments: &[&str]) -> String {
    let output = run(place, arguments);
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).expect("the report's directory");
    let entries = entries.map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| (entry.file_name().into_string().expect("a name"), std::fs::read(entry.path()).expect("a file")))
        .collect()
}

#[test]
fn every_experiment_is_listed() {
    let place = Place::new();
    let list = out(&run(&place, &["list"]));
    for experiment in experiments() {
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(experiment.name()));
        let line = line.unwrap_or_else(|| panic!("{} is not in\n{list}", experiment.name()));
        assert!(line.contains(experiment.sheet().title), "{line}");
    }
}

#[test]
fn a_list_whose_reader_ends_is_no_error() {
    for bench in ["disks", "nfs", "mount"] {
        let mut list = Command::new(env!("CARGO_BIN_EXE_awase-lab"));
        let list = list.args(["bench", bench, "--list"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut list = list.spawn().expect("awase-lab");
        drop(list.stdout.take());
        let output = list.wait_with_output().expect("its end");
        assert!(output.status.success(), "{bench}: {output:?}");
    }
}

#[test]
fn every_experiment_shows_its_parameters_with_unit_range_and_source() {
    let place = Place::new();
    for experiment in experiments() {
        let text = out(&run(&place, &["show", experiment.name()]));
        let parameters = experiment.parameters();
        for (parameter, _) in parameters.iter() {
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(parameter.name));
            let line = line.unwrap_or_else(|| panic!("{} is not in\n{text}", parameter.name));
            assert!(line.contains(parameter.unit), "{line}");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(120), "{text}");
        }
        // Lines may be broken anywhere.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (parameter, _) in parameters.iter() {
            assert!(text.contains(&format!("{}: ", parameter.origin.kind())), "{}\n{text}", parameter.name);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report_to_the_last_byte() {
    let place = Place::new();
    let name = smallest().name();
    let run = |out: &str| run(&place, &["run", name, "--machine", "both", "--seed", "7", "--out", out]);
    let first = out(&run("first"));
    assert!(
        first.contains(name) && first.contains("seed 7") && first.ends_with("Report: first/report.html\n"),
        "{first}"
    );
    // Neither a progress bar nor colours where there is no terminal.
    assert!(!first.contains('\u{1b}') && run("second").stderr.is_empty());
    let (first, second) = (files(&place.file("first")), files(&place.file("second")));
    assert!(first.contains_key("report.html") && first.contains_key(&format!("{name}.json")));
    assert!(first.contains_key(&format!("{name}-2026.json")));
    assert!(first.keys().any(|file| file.ends_with(".csv")), "{:?}", first.keys());
    assert_eq!(first, second);
}

/// One that can be measured here too, the smallest.
fn measurable() -> &'static Experiment {
    let all = simulated().filter(|experiment| local::named(experiment.name()).is_some());
    all.min_by_key(|experiment| experiment.steps(&experiment.parameters())).expect("an experiment that runs here")
}

#[test]
fn numbers_of_this_machine_stand_beside_the_simulated_ones_and_alone() {
    let place = Place::new();
    let name = measurable().name();
    let both = out(&run(&place, &["run", name, "--on", "both", "--quick"]));
    // Lines are broken where they are long.
    let flowing = both.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flowing.contains("simulated, and on this one") && both.contains("this machine"), "{both}");
    let alone = out(&run(&place, &["run", name, "--on", "here", "--quick"]));
    let flowing = alone.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flowing.contains("measured on this machine") && !flowing.contains("paper simulated"), "{alone}");
    let page = std::fs::read_to_string(place.file("awase-lab/report.html")).expect("the report");
    assert!(page.contains(&format!("awase lab run {name} --on here --quick")) && !page.contains("class=error"));
    let message = refused(&place, &["run", name, "--on", "here", "--set", "disk.rpm=7200"]);
    assert!(message.contains("--set: changes the simulated machine"), "{message}");
    if let Some(without) = experiments().iter().find(|experiment| local::named(experiment.name()).is_none()) {
        let message = refused(&place, &["run", without.name(), "--on", "both"]);
        assert!(message.contains("--on: ") && message.contains(name), "{message}");
    }
}

#[test]
fn an_experiment_without_a_simulation_is_measured_whatever_on_says() {
    let place = Place::new();
    let output = run(&place, &["run", "live", "--quick", "--set", "load.depth=8", "--out", "report"]);
    let text = out(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("live on this machine takes about"), "{output:?}");
    let flowing = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flowing.contains("measured on this machine") && flowing.contains("set: load.depth = 8"), "{text}");
    assert!(text.contains("quantum, 1 in flight: off") && !text.contains("simulated"), "{text}");
    let names: Vec<String> = files(&place.file("report")).into_keys().collect();
    let expected = ["costs", "latencies", "rates", "recording", "worth"].map(|table| format!("live-{table}.csv"));
    let all: Vec<String> = expected.into_iter().chain(["live.json".to_owned(), "report.html".to_owned()]).collect();
    assert_eq!(names, all, "the report, and nothing of the servers");
    let page = std::fs::read_to_string(place.file("report/report.html")).expect("the report");
    assert!(!page.contains("class=error") && page.contains("live-worth.csv"));
    let message = refused(&place, &["run", "live", "--machine", "2026"]);
    assert!(message.contains("--machine: live is measured on this machine"), "{message}");
    let message = refused(&place, &["run", "live", "--set", "run.secnds=1"]);
    assert!(message.contains("did you mean \"run.seconds\"?"), "{message}");
}

#[test]
fn every_switch_has_its_place_among_what_is_measured_and_is_compared_with_its_default() {
    let mut measured = local::live::switches();
    // By `awase lab run dsm --on here`: it needs three nodes.
    measured.push(("forwarding", "false"));
    let defaults = kernel::Switches::default();
    for key in awase::config::SWITCHES.iter() {
        let shown = (key.show)(&defaults).expect("a value");
        let default = shown.trim_matches('"');
        let of: Vec<_> = measured.iter().filter(|(name, _)| *name == key.name).map(|(_, value)| *value).collect();
        assert_eq!(of, [default], "{} in lab/src/local/live/cases.toml", key.name);
    }
    for (name, _) in measured {
        assert!(awase::config::SWITCHES.iter().any(|key| key.name == name), "{name} is no switch");
    }
}

#[test]
fn a_parameter_that_is_set_is_used_and_reported() {
    let place = Place::new();
    let experiment = smallest();
    let parameters = experiment.parameters();
    let (parameter, _) = parameters.iter().next().expect("a parameter");
    let (start, end) = (*parameter.range.start(), *parameter.range.end());
    let value = if parameter.default == end { start } else { (parameter.default + 1.0).min(end) };
    let assignment = format!("{}={value}", parameter.name);
    let text = out(&run(&place, &["run", experiment.name(), "--set", &assignment]));
    assert!(text.contains(&format!("set: {} = ", parameter.name)), "{text}");
    let page = std::fs::read_to_string(place.file("awase-lab/report.html")).expect("the report");
    assert!(page.contains(&format!("awase lab run {} --set {assignment}", experiment.name())));
}

#[test]
fn names_that_are_none_are_refused_with_what_was_probably_meant() {
    let place = Place::new();
    let experiment = smallest();
    let misspelt = format!("{}x", experiment.name());
    for command in ["show", "run"] {
        let message = refused(&place, &[command, &misspelt]);
        assert!(message.contains(&format!("did you mean {:?}?", experiment.name())), "{message}");
        let message = refused(&place, &[command, "nothing-of-the-kind"]);
        assert!(message.contains("`awase lab list`"), "{message}");
    }
    let parameters = experiment.parameters();
    let (parameter, _) = parameters.iter().next().expect("a parameter");
    let misspelt = format!("{}x=1", parameter.name);
    let message = refused(&place, &["run", experiment.name(), "--set", &misspelt]);
    assert!(message.contains(&format!("did you mean {:?}?", parameter.name)), "{message}");
    let message = refused(&place, &["run", experiment.name(), "--set", "nonsense.of.the.kind=1"]);
    assert!(message.contains(&format!("`awase lab show {}`", experiment.name())), "{message}");
    assert!(!place.file("awase-lab").exists());
}

#[test]
fn values_that_are_none_or_out_of_range_are_refused_with_what_is_allowed() {
    let place = Place::new();
    let experiment = smallest();
    let parameters = experiment.parameters();
    let (parameter, _) = parameters.iter().next().expect("a parameter");
    let beyond = format!("{}={}", parameter.name, parameter.range.end() * 2.0 + 1.0);
    let message = refused(&place, &["run", experiment.name(), "--set", &beyond]);
    assert!(message.contains("--set: ") && message.contains("is out of range: "), "{message}");
    for (value, expected) in [("fast", "\"fast\" is not a number"), ("nan", "is not a number"), ("", "is not a number")]
    {
        let assignment = format!("{}={value}", parameter.name);
        let message = refused(&place, &["run", experiment.name(), "--set", &assignment]);
        assert!(message.contains(expected), "{message}");
    }
    for arguments in [&["--seed", "-1"][..], &["--machine", "1990"], &["--on", "paper"], &["--set", "disk.rpm"]] {
        refused(&place, &[&["run", "all"], arguments].concat());
    }
    refused(&place, &["run"]);
    let message = refused(&place, &["run", "all", "--seed", "-1"]);
    assert!(message.contains("\"-1\" is not a seed: 0 to 18446744073709551615"), "{message}");
}

#[test]
fn several_experiments_are_summed_up_and_one_is_shown_in_full() {
    let place = Place::new();
    let [one, other] = ["ws-table2", "ws-table3"];
    let summary = out(&run(&place, &["run", one, other]));
    assert!(summary.lines().count() < 60 && summary.contains("All tables: --full"), "{summary}");
    let rests = summary.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(rests.contains("It rests on"), "{summary}");
    let full = out(&run(&place, &["run", one, other, "--full"]));
    let alone = out(&run(&place, &["run", one]));
    assert!(full.contains("What each part of the technique gives") && alone.contains("How free it is"), "{full}");
}

#[test]
fn sensitivities_are_measured_of_the_machine_as_it_is() {
    let place = Place::new();
    let message = refused(&place, &["run", "ws-table3", "--sensitivity", "--set", "file.size=512"]);
    assert!(message.contains("--sensitivity: is of the paper's machine as it is"), "{message}");
    let text = out(&run(&place, &["run", "ws-table3", "--sensitivity", "--out", "report"]));
    let recorded = papers::sensitivity::recorded("ws-table3").expect("recorded");
    assert!(text.contains("How free it is"), "{text}");
    let written = std::fs::read_to_string(place.file("report/ws-table3.sensitivity.json")).expect("the sensitivities");
    assert_eq!(written, recorded.json(), "what is recorded is what the command writes");
}

#[test]
fn a_directory_that_cannot_be_written_is_reported_before_the_work() {
    let place = Place::new();
    place.write("taken", "a file");
    let output = run(&place, &["run", smallest().name(), "--out", "taken/report"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("--out: cannot make taken/report"), "{message}");
    assert!(output.stdout.is_empty());
    // Nor is a file of the report that is a directory overwritten.
    std::fs::create_dir_all(place.file("report/report.html")).expect("a directory");
    let output = run(&place, &["run", smallest().name(), "--out", "report"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("--out: cannot write report/report.html"), "{message}");
}

#[test]
fn a_browser_shows_the_report_with_all_of_its_plots() {
    let place = Place::new();
    let name = smallest().name();
    out(&run(&place, &["run", name, "--out", "report"]));
    let report = place.file("report");
    let page = format!("file://{}", report.join("report.html").display());
    let profile = format!("--user-data-dir={}", place.file("profile").display());
    let picture = place.file("report.png");
    let chromium = |arguments: &[&str]| {
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile]);
        let output = command.args(arguments).arg(&page).output();
        out(&output.expect("chromium (package chromium): `make test` installs it"))
    };
    let document = chromium(&["--dump-dom"]);
    assert!(document.contains(&format!("<section id=\"{name}\">")), "{document}");
    assert!(!document.contains("class=\"error\""), "a plot was not drawn");
    let json = std::fs::read_to_string(report.join(format!("{name}.json"))).expect("JSON");
    assert_eq!(document.matches("<svg role=\"img\"").count(), json.matches("\"drawing\":").count());
    chromium(&["--window-size=900,2400", &format!("--screenshot={}", picture.display())]);
    assert!(std::fs::read(picture).expect("a screenshot").starts_with(b"\x89PNG"));
}
