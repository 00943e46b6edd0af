//! How near each published table must come, and what every experiment owes its reader on the paper's machine.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use papers::{Cell, Origin, Outcome, Table, sensitivity};

use super::{published, usual};

const THREADS: NonZeroUsize = NonZeroUsize::MIN;

fn table(experiment: &str, name: &str) -> &'static Table {
    usual(experiment).tables.iter().find(|table| table.name == name).expect("a table of that name")
}

fn cells(table: &Table) -> impl Iterator<Item = &Cell> {
    table.cells.iter().flatten()
}

/// Numbers of the machine were looked up, judged and marked first, and then the tables were looked at: where one misses
/// its target, that is the result. What may not happen is that a miss comes or goes unnoticed.
#[test]
fn every_experiment_meets_its_target_or_misses_it_as_recorded() {
    let mut targets = 0;
    for Outcome { order, results, .. } in published() {
        let Some(target) = &order.experiment.sheet().target else { continue };
        targets += 1;
        let misses = target.misses(results);
        assert_eq!(misses, target.missed, "{}: [target] missed in its sheet", order.name());
        assert!(misses.is_empty() || target.unknown.is_some(), "{}: what would have to be known?", order.name());
    }
    assert_eq!(targets, 10, "all with published numbers have one");
}

#[test]
fn what_the_papers_found_holds_or_is_recorded_as_refuted() {
    for Outcome { order, results, .. } in published() {
        let refuted = order.experiment.sheet().target.as_ref().map_or(&[][..], |target| &target.refuted);
        let missed: Vec<&str> =
            results.findings.iter().filter(|finding| !finding.holds).map(|finding| finding.text.as_str()).collect();
        let as_recorded = missed.len() == refuted.len()
            && missed.iter().zip(refuted).all(|(text, begins)| text.starts_with(begins.as_str()));
        assert!(as_recorded, "{}: {missed:#?}, recorded: {refuted:#?}", order.name());
    }
}

#[test]
fn tables_without_a_free_point_are_as_near_as_they_were() {
    // What does not hang on numbers that were chosen with the tables in view.
    let mean: Vec<&Cell> = table("ws-table6", "mean").cells.iter().map(|row| &row[0]).collect();
    assert!(mean.iter().all(|cell| cell.difference_percent().expect("both").abs() < 5.0), "{mean:?}");
    let [without, with] = [0, 1].map(|row| table("ws-table2", "throughput").cells[row].clone());
    let gains = |of: fn(&Cell) -> Option<f64>| {
        let pairs = without.iter().zip(&with);
        pairs.map(|(less, more)| of(more).expect("both") / of(less).expect("both")).collect::<Vec<f64>>()
    };
    let (paper, simulated) = (gains(|cell| cell.paper), gains(|cell| cell.simulated));
    assert!(simulated[0] > 1.9 && simulated[0] > simulated[1] && paper[0] > paper[1], "{simulated:?} {paper:?}");
}

#[test]
fn every_free_number_has_a_range_and_a_recorded_sensitivity() {
    for Outcome { order, results, .. } in published() {
        let name = order.name();
        let Some(target) = &order.experiment.sheet().target else { continue };
        let recorded =
            sensitivity::recorded(&name).unwrap_or_else(|| panic!("{name}: awase lab run {name} --sensitivity"));
        let free: Vec<(&str, &str, f64)> =
            order.experiment.sheet().free().map(|of| (of.name, of.origin.kind(), of.default)).collect();
        let listed: Vec<(&str, &str, f64)> =
            recorded.numbers.iter().map(|of| (of.name.as_str(), of.kind.as_str(), of.value)).collect();
        assert_eq!(free, listed, "{name}: record its sensitivity anew");
        assert_eq!(recorded.usual.is_met, target.misses(results).is_empty(), "{name}");
        assert_eq!(recorded.target, target.phrase(), "{name}");
        assert_eq!(recorded.draws.count, sensitivity::DRAWS, "{name}");
    }
}

/// Reports show both: what hangs on the free numbers is told of the same experiment, not of a shorter one.
#[test]
fn what_was_recorded_of_the_usual_machine_is_what_its_report_shows() {
    for Outcome { order, results, .. } in published() {
        let (name, Some(recorded)) = (order.name(), sensitivity::recorded(order.experiment.name())) else { continue };
        let finding = |text: &str| results.findings.iter().find(|finding| finding.text == text);
        for text in &recorded.usual.refuted {
            assert!(finding(text).is_some_and(|finding| !finding.holds), "{name}: {text}");
        }
        for (text, _) in &recorded.draws.held {
            let holds = finding(text).unwrap_or_else(|| panic!("{name}: {text}")).holds;
            assert_ne!(holds, recorded.usual.refuted.contains(text), "{name}: {text}");
        }
        for ([of, measure], value) in recorded.measures.iter().zip(&recorded.usual.agreement) {
            let agreement = table(&name, of).agreement().expect("predicted cells");
            let explained = agreement.explained.filter(|_| measure.contains("explained"));
            let now = explained.unwrap_or(agreement.worst.abs());
            assert!((now - value).abs() < 1e-3, "{name}, {of}: {now}, recorded {value}");
        }
    }
}

#[test]
fn a_mechanism_that_was_chosen_on_a_cell_is_varied_and_the_cell_predicts_nothing() {
    let free: Vec<&str> = papers::named("uio").expect("an experiment").sheet().free().map(|of| of.name).collect();
    assert!(free.contains(&"shootdowns"), "{free:?}");
    assert_eq!(table("uio", "rates").agreement(), None, "one cell is an input, one shootdown was chosen on the other");
}

#[test]
fn a_load_that_the_paper_does_not_describe_is_free() {
    let free: Vec<&str> = papers::named("oltp").expect("an experiment").sheet().free().map(|of| of.name).collect();
    for name in ["tx.light.ios", "tx.light.calls", "tx.light.user"] {
        assert!(free.contains(&name), "{name}: {free:?}");
    }
}

#[test]
fn linpack_is_compared_by_its_means_and_what_hangs_on_numbers_is_told_of_them() {
    assert_eq!(table("ws-table6", "mean").agreement().expect("a prediction").cells, 1);
    assert!(
        cells(table("ws-table6", "deviation")).all(|cell| cell.paper.is_some()),
        "shown, and no part of the target"
    );
    let recorded = sensitivity::recorded("ws-table6").expect("recorded");
    let mean = recorded.measures.iter().position(|[name, _]| name == "mean").expect("a measure");
    let fitted = recorded.numbers.iter().find(|number| number.name == "cpu.axpy").expect("a free number");
    let [usual, end] = [&recorded.usual, &fitted.at_least].map(|trial| trial.agreement[mean]);
    assert!(usual < 5.0 && end > 15.0, "what was fitted is seen: {usual} {end}");
}

/// A machine at an end of a range gives now what was recorded of it.
#[test]
fn recorded_sensitivities_do_not_drift() {
    for name in ["ws-table2", "ws-table3", "uio"] {
        let recorded = sensitivity::recorded(name).expect("recorded");
        let experiment = papers::named(name).expect("an experiment");
        let fresh = sensitivity::measure(experiment, recorded.seed, 5, THREADS, &AtomicU64::new(0)).expect("a target");
        assert_eq!((&fresh.usual, &fresh.numbers), (&recorded.usual, &recorded.numbers), "{name}");
    }
}

#[test]
fn every_decision_names_files_that_are_there_and_the_policy_is_used_where_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    for Outcome { order, .. } in published() {
        let decisions = &order.experiment.sheet().decisions;
        assert!(!decisions.is_empty(), "{}: who decides?", order.name());
        for decision in decisions {
            assert!(!read(&decision.by).is_empty());
            let policy = decision.by.strip_prefix("policy/src/").and_then(|file| file.strip_suffix(".rs"));
            let Some(policy) = policy else {
                assert!(decision.server.is_none(), "{}: {decision:?}", order.name());
                continue;
            };
            // The server uses every policy.
            let server = decision.server.as_ref().unwrap_or_else(|| panic!("{}: {decision:?}", order.name()));
            let uses = read(server);
            let named = uses.contains(&format!("policy::{policy}")) || uses.contains("use policy::{");
            assert!(named && uses.contains(policy), "{server} does not use {policy}");
        }
    }
}

#[test]
fn the_first_finding_of_each_says_in_numbers_what_its_technique_is_worth_beside_the_papers() {
    for Outcome { order, results, .. } in published() {
        let text = &results.findings.first().expect("a headline").text;
        assert!(text.chars().filter(char::is_ascii_digit).count() >= 2, "{}: {text}", order.name());
        let is_compared = results.tables.iter().flat_map(cells).any(|cell| cell.paper.is_some());
        assert_eq!(text.contains("(paper: "), is_compared, "{}: {text}", order.name());
    }
}

#[test]
fn at_most_one_cell_of_a_table_is_fitted_and_no_more_parameters_than_cells() {
    for Outcome { order, results, .. } in published() {
        let fitted = |table: &Table| cells(table).filter(|cell| cell.fitted).count();
        for table in &results.tables {
            assert!(fitted(table) <= 1, "{}, {}", order.name(), table.name);
        }
        // A cell may be shown in two tables: as a rate and as a gain.
        let parameters = order.parameters.iter().filter(|(of, _)| matches!(of.origin, Origin::Fitted(_))).count();
        let cells: usize = results.tables.iter().map(fitted).sum();
        assert!(parameters <= cells, "{}: {parameters} parameters fitted on {cells} cells", order.name());
        assert_eq!(parameters == 0, cells == 0, "{}: a cell is marked that nothing was fitted on", order.name());
    }
}

#[test]
fn every_table_and_plot_of_a_sheet_is_used_and_every_word_of_its_notes_and_titles_is_replaced() {
    for Outcome { order, results, .. } in published() {
        let [tables, plots] = order.experiment.sheet().forms();
        let unused_tables = tables.iter().filter(|name| !results.tables.iter().any(|table| table.name == **name));
        // What is measured on a host has plots of its own (`local.rs`).
        let simulated = plots.iter().filter(|name| !name.starts_with("here-"));
        let unused_plots = simulated.filter(|name| !results.plots.iter().any(|plot| plot.name == **name));
        let unused: Vec<_> = unused_tables.chain(unused_plots).collect();
        assert!(unused.is_empty(), "{}: {unused:?}", order.name());
        let titles =
            results.tables.iter().map(|table| &table.title).chain(results.plots.iter().map(|plot| &plot.title));
        let left: Vec<_> = results.notes.iter().chain(titles).filter(|text| text.contains(['{', '}'])).collect();
        assert!(left.is_empty(), "{}: {left:?}", order.name());
    }
}
