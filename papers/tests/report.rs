//! How results are shown, with experiments whose numbers are made up.

mod made_up;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

use made_up::{BROKEN, GRID, SMALL};
use papers::report::terminal::Terminal;
use papers::report::{Heading, files};
use papers::{Cell, Order, Outcome, Progress, Results, Setting, Table, order};

const PLAIN: Terminal = Terminal { colour: false, width: 116 };

fn orders(setting: Setting) -> Vec<Order> {
    let both: [&'static papers::Experiment; 2] = [&SMALL, &GRID];
    both.into_iter().map(|experiment| Order::new(experiment, setting, 1).expect("in range")).collect()
}

fn outcomes(orders: Vec<Order>, threads: usize) -> Vec<Outcome> {
    let threads = NonZeroUsize::new(threads).expect("threads");
    let all = order::run(orders, threads, |_| {});
    all.into_iter().map(|outcome| outcome.expect("it ends well")).collect()
}

fn heading() -> Heading {
    Heading { version: "0.0.0".into(), command: "awase lab run all".into() }
}

#[test]
fn the_same_orders_give_the_same_bytes_on_one_thread_and_on_many() {
    let of = |threads| files(&outcomes(orders(Setting::Paper), threads), &heading());
    assert_eq!(of(1), of(4));
    let names: Vec<String> = of(1).into_iter().map(|file| file.name).collect();
    let expected =
        ["report.html", "made-up-small.json", "made-up-small-ends.csv", "made-up-grid.json", "made-up-grid-scsihd.csv"];
    assert_eq!(names, expected);
}

#[test]
fn progress_ends_at_all_of_the_steps() {
    let mut last = Progress::default();
    order::run(orders(Setting::Paper), NonZeroUsize::MIN, |progress| last = progress.clone());
    assert_eq!(last, Progress { done: 3, total: 3, running: Vec::new() });
}

#[test]
fn an_experiment_that_panics_is_reported_and_the_others_are_complete() {
    let mut all = orders(Setting::Paper);
    all.insert(0, Order::new(&BROKEN, Setting::Paper, 7).expect("in range"));
    let results = order::run(all, NonZeroUsize::MIN, |_| {});
    let failed = results[0].as_ref().err().expect("it gave up").to_string();
    assert_eq!(failed, "made-up-broken failed with seed 7 and these parameters: on purpose");
    assert!(results[1].is_ok() && results[2].is_ok());
}

#[test]
fn a_machine_of_2026_has_its_parameters_and_nothing_of_the_paper() {
    let outcomes = outcomes(orders(Setting::Modern), 2);
    let order = &outcomes[0].order;
    assert_eq!(order.parameters.get("disk.rpm"), 15_000.0);
    assert_eq!((order.name().as_str(), order.changed().len()), ("made-up-small-2026", 0));
    assert_eq!(order.command(), "awase lab run made-up-small --machine 2026");
    let text = PLAIN.outcome(&outcomes[0]);
    assert!(!text.contains("difference") && !text.contains("4.90"), "{text}");
}

#[test]
fn a_small_table_has_a_row_for_each_cell() {
    let text = PLAIN.outcome(&outcomes(orders(Setting::Paper), 1)[0]);
    let expected = "\
Table 3: 1 MB written to a magneto-optical disk (s)
  scheduling        until          paper  simulated  difference  this machine
  without priority  write returns   4.90      4.87*      -0.6 %
                    I/O ends        5.00       5.11      +2.2 %
  with priority     write returns   1.50       1.81     +20.7 %          0.02
                    I/O ends        5.20       5.30      +1.9 %
  * a parameter was fitted on this cell: no prediction
  3 predicted: off by 8.3 % in the mean, +20.7 at most
";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("  ✗ no   The whole takes"), "{text}");
}

#[test]
fn a_large_table_is_a_grid_that_fits_the_terminal() {
    let outcomes = outcomes(orders(Setting::Paper), 1);
    for width in [100, 116] {
        let text = Terminal { colour: false, width }.outcome(&outcomes[1]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(width), "{text}");
        assert!(text.contains("variance explained 0.9"), "{text}");
    }
    let text = PLAIN.outcome(&outcomes[1]);
    // All thirteen columns side by side.
    assert_eq!(text.matches("wait count").count(), 1, "{text}");
    assert_eq!(text.matches("  difference").count(), 6, "{text}");
}

#[test]
fn colours_change_nothing_but_colours() {
    let outcomes = outcomes(orders(Setting::Paper), 1);
    for outcome in &outcomes {
        let coloured = Terminal { colour: true, ..PLAIN }.outcome(outcome);
        let mut plain = String::new();
        for (index, part) in coloured.split('\u{1b}').enumerate() {
            plain += if index == 0 { part } else { part.split_once('m').expect("the end of a code").1 };
        }
        assert_eq!(plain, PLAIN.outcome(outcome));
        assert_ne!(coloured, plain);
    }
}

#[test]
fn what_was_set_is_marked_everywhere() {
    let mut orders = orders(Setting::Paper);
    orders[0].parameters.set("disk.rpm", 7200.0).expect("in range");
    let outcomes = outcomes(orders, 1);
    assert_eq!(outcomes[0].order.command(), "awase lab run made-up-small --set disk.rpm=7200");
    assert!(PLAIN.outcome(&outcomes[0]).contains("set: disk.rpm = 7200 rpm (otherwise 3600)"));
    let page = &files(&outcomes, &heading())[0].text;
    assert!(page.contains("<code>disk.rpm</code> is 7200 in place of 3600"));
    assert!(page.contains("<details open>") && page.contains("class=\"origin set\""));
}

#[test]
fn csv_and_json_hold_the_numbers_in_full() {
    let files = files(&outcomes(orders(Setting::Paper), 1), &heading());
    let csv = "scheduling,until,paper (s),simulated (s),here (s),no prediction\r\n\
               without priority,write returns,4.9,4.87,,fitted\r\nwithout priority,I/O ends,5,5.11,,\r\n\
               with priority,write returns,1.5,1.81,0.02,\r\nwith priority,I/O ends,5.2,5.3,,\r\n";
    assert_eq!(files[2].text, csv);
    let json: serde_json::Value = serde_json::from_str(&files[1].text).expect("JSON");
    assert_eq!(json["tables"][0]["cells"][1][0]["here"], 0.02);
    assert_eq!(json["parameters"][0]["origin"]["kind"], "source");
    assert_eq!(json["plots"][0]["series"][4]["source"], "this machine");
    assert_eq!(json["findings"][2]["holds"], false);
}

#[test]
fn the_page_needs_nothing_else_and_takes_no_text_for_html() {
    let page = &files(&outcomes(orders(Setting::Paper), 1), &heading())[0].text;
    for foreign in ["<script", "http:", "https:", "src=", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "").contains(foreign);
        assert!(!found, "{foreign}");
    }
    assert!(page.contains("with &amp; without &lt;priority&gt;") && !page.contains("<priority>"));
    assert!(page.contains("The whole takes &lt;b&gt;no&lt;/b&gt; longer"));
    assert!(page.contains("a data sheet &quot;of&quot; 1990"));
}

#[test]
fn nothing_of_the_simulated_machine_is_told_where_only_this_one_was_measured() {
    let experiment = papers::named("ws-table3").expect("an experiment");
    let order = Order::new(experiment, Setting::Paper, 1).expect("in range");
    let cells = vec![vec![Cell { local: Some(0.25), ..Cell::default() }; 2]];
    let table = Table { cells, ..experiment.sheet().form("times") }.of_rows(["with priority"]);
    let outcome = Outcome { order, results: Results { tables: vec![table], ..Results::default() }, measured: None };
    let text = PLAIN.outcome(&outcome) + &PLAIN.summary(&outcome);
    assert!(text.contains("measured on this machine") && text.contains("0.25"), "{text}");
    let files = files(&[outcome], &heading());
    let section = files[0].text.split_once("<section").expect("a section").1;
    for of_simulation in ["target", "judged", "draws", "How free", "are free", "Who decides", "where they come from"] {
        assert!(!text.contains(of_simulation), "{of_simulation}: {text}");
        let section = section.split_once("</section>").expect("its end").0;
        assert!(!section.contains(of_simulation), "{of_simulation}: {section}");
    }
    let json: serde_json::Value = serde_json::from_str(&files[1].text).expect("JSON");
    assert!(json["sensitivity"].is_null() && json["decisions"] == serde_json::json!([]), "{json:#}");
}

#[test]
fn rows_that_hardly_differ_are_named_where_they_do_not_count() {
    let row = |scale: f64| (0..6).map(|x| Cell::of(f64::from(x) * scale, f64::from(5 - x) * scale)).collect::<Vec<_>>();
    let cells = vec![row(2.0), row(0.1), row(3.0)];
    let table = Table { name: "gains".into(), cells, in_points: true, ..Table::default() };
    let table = table.of_rows(["much", "little", "more"]).of_columns(0..6);
    let order = Order::new(&GRID, Setting::Paper, 1).expect("in range");
    let outcome = Outcome { order, results: Results { tables: vec![table], ..Results::default() }, measured: None };
    let flowing = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = flowing(PLAIN.outcome(&outcome));
    assert!(text.contains("of the 2 rows that differ by more than a point"), "{text}");
    assert!(text.contains("; left out, as they differ by no more than a point: little"), "{text}");
    assert!(
        flowing(PLAIN.summary(&outcome)).contains("half of it in 0 of the 2 rows that differ by more than a point")
    );
    let target = papers::named("mp-table2").expect("an experiment").sheet().target.as_ref().expect("a target").phrase();
    assert!(target.contains("each row that differs by more than a point"), "{target}");
    let of_means =
        papers::named("ws-table6").expect("an experiment").sheet().target.as_ref().expect("a target").phrase();
    assert_eq!(of_means, "every predicted cell of mean within 20 % (or points)");
}

/// What chromium makes of the page in `directory`.
fn chromium(directory: &Path, arguments: &[&str]) -> Vec<u8> {
    let page = format!("file://{}", directory.join("report.html").display());
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", &profile])
        .args(arguments)
        .arg(&page)
        .output()
        .expect("chromium (package chromium): `make test` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn a_browser_shows_every_section_and_plot_and_no_error() {
    // Kept if a directory is given for it.
    let kept = std::env::var_os("AWASE_REPORT_DIR").map(std::path::PathBuf::from);
    let temporary = tempfile::tempdir().expect("directory");
    let directory = kept.as_deref().unwrap_or(temporary.path());
    let mut all = orders(Setting::Paper);
    all.extend(orders(Setting::Modern));
    for file in files(&outcomes(all, 2), &heading()) {
        std::fs::write(directory.join(&file.name), &file.text).expect("write the report");
    }
    let document = String::from_utf8(chromium(directory, &["--dump-dom"])).expect("text");
    assert_eq!(document.matches("<section id=").count(), 4);
    assert_eq!(document.matches("<svg role=\"img\"").count(), 8);
    assert_eq!(document.matches("</svg>").count(), 8);
    assert_eq!(document.matches("<a class=\"card\"").count(), 4);
    assert!(!document.contains("class=\"error\""), "a plot was not drawn");
    assert!(document.contains("<text") && document.contains("improvement (%)") && document.contains("logarithmic"));
    let picture = directory.join("report.png");
    chromium(directory, &["--window-size=900,4200", &format!("--screenshot={}", picture.display())]);
    let picture = std::fs::read(picture).expect("a screenshot");
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 50_000, "{} bytes", picture.len());
}
