//! The report for readers: one self-contained page of HTML, for light and dark screens.

use std::fmt::Write as _;

use super::escape::escaped;
use super::sums::phrases;
use super::{freedom, plot, style, tables, value};
use crate::order::{Outcome, Setting};
use crate::result::Results;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heading {
    pub version: String,
    /// The command that made the page.
    pub command: String,
}

const STYLE: &str = include_str!("report.css");

pub fn page(outcomes: &[Outcome], heading: &Heading) -> String {
    let mut html = String::from("<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n");
    html += "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n";
    html += "<meta name=color-scheme content=\"light dark\">\n<title>Awase: what each technique is worth</title>\n";
    let dark = style::dark_rules(".plot");
    let _ =
        write!(html, "<style>\n{STYLE}@media (prefers-color-scheme: dark) {{\n{dark}}}\n</style>\n</head>\n<body>\n");
    html += "<header><h1>What each technique is worth</h1>\n";
    html += "<p>The papers' experiments, run in virtual time; each section says which decisions are made by the code with \
             which Awase serves real disks, and which by the lab's own models. <b>Simulated</b> numbers stand beside those \
             that were <b>published</b>; where the kernel was measured on this machine too, <b>this machine</b>'s stand \
             beside both. Each section begins with what its agreement rests on.</p>\n";
    let (version, command) = (escaped(&heading.version), escaped(&heading.command));
    let _ = write!(html, "<p class=made>awase {version} · <code>{command}</code></p></header>\n<main>\n");
    html += "<nav aria-label=experiments>\n";
    outcomes.iter().for_each(|outcome| html += &card(outcome));
    html += "</nav>\n";
    outcomes.iter().for_each(|outcome| html += &section(outcome));
    html += LEGEND;
    html + "</main>\n</body>\n</html>\n"
}

const LEGEND: &str = "<footer><h3>How to read this</h3>\n<p>Shades tell how far a simulated number is from the published \
one: <span class=\"swatch close\">within 5 %</span> <span class=\"swatch near\">within 15 %</span> \
<span class=\"swatch far\">farther</span> <span class=\"swatch fitted\">fitted (*) or an input (=)</span> (of the number; \
of the span of the row's published cells, at least one point, where differences are in points). In plots the paper is \
hollow and dashed, the simulation solid, this machine dotted or striped.</p>\n<p>Every parameter has its origin. \
<em>Paper</em>: the paper itself; where. <em>Source</em>: a document that was looked up. <em>Cited</em>: a document that \
was not looked up. <em>Derived</em>: arithmetic on these. <em>Setup</em>: of the run, not of the machine. \
<em>Judged</em>: nobody published it, or it is only remembered; with a plausible range. <em>Inferred</em>: chosen because \
it fits. <em>Fitted</em>: on one cell, at most one a table. The last three are free, and only predictions count: \
<em>variance explained</em> is 1 where all predicted cells are right, 0 where their mean would do as well, and less where \
it would do better; of single rows, the row's own mean is the rival, and rows whose published cells differ by no more than \
a point, where differences are in points, do not count: they are named.</p></footer>\n";

/// An experiment in the index: its subject and its result.
fn card(outcome: &Outcome) -> String {
    let (order, results) = (&outcome.order, &outcome.results);
    let name = escaped(&order.name());
    let mut html = format!("<a class=card href=\"#{name}\"><span class=name>{name}</span>\n");
    let _ = writeln!(html, "<b>{}</b>", escaped(order.experiment.sheet().title));
    if let Some(first) = results.findings.first() {
        let _ = writeln!(html, "<span class=first>{} {}</span>", mark(first.holds), escaped(&first.text));
    }
    html + &sums(results) + "</a>\n"
}

fn sums(results: &Results) -> String {
    let chip = |(text, good): &(String, bool)| {
        format!("<span class=\"chip {}\">{}</span>", if *good { "good" } else { "so-so" }, escaped(text))
    };
    format!("<span class=chips>{}</span>\n", phrases(results).iter().map(chip).collect::<Vec<_>>().join(" "))
}

fn mark(holds: bool) -> &'static str {
    match holds {
        true => "<span class=yes title=\"it is so\">✓</span>",
        false => "<span class=no title=\"it is not so\">✗</span>",
    }
}

fn section(outcome: &Outcome) -> String {
    let (order, results) = (&outcome.order, &outcome.results);
    let experiment = order.experiment;
    let name = order.name();
    let mut html = format!("<section id=\"{0}\">\n<h2><span class=name>{0}</span> ", escaped(&name));
    let _ = writeln!(html, "{}</h2>", escaped(experiment.sheet().title));
    let (paper, place) = (escaped(experiment.sheet().paper), outcome.place());
    let _ = writeln!(html, "<p class=made>{paper} · {place} · seed {}</p>", order.seed);
    html += &changed(outcome);
    html += &freedom::verdict(outcome);
    for paragraph in experiment.sheet().about.split("\n\n") {
        let _ = writeln!(html, "<p>{}</p>", escaped(paragraph));
    }
    html += &findings(results);
    html += &plots(results);
    results.tables.iter().for_each(|table| html += &tables::table(table, &name));
    if !results.notes.is_empty() {
        html += "<h3>Notes</h3>\n<ul>\n";
        results.notes.iter().for_each(|note| html += &format!("<li>{}</li>\n", escaped(note)));
        html += "</ul>\n";
    }
    html += &freedom::decisions(outcome);
    html += &freedom::sensitivity(outcome);
    html += &parameters(outcome);
    let (command, file) = (escaped(&order.command()), escaped(&format!("{name}.json")));
    let _ =
        writeln!(html, "<p class=again>Again: <code>{command}</code> · all of it: <a href=\"{file}\">{file}</a></p>");
    html + "</section>\n"
}

fn changed(outcome: &Outcome) -> String {
    let changed = outcome.order.changed();
    if changed.is_empty() {
        return String::new();
    }
    let one = |(name, now, usual): &(&str, f64, f64)| {
        format!("<code>{}</code> is {} in place of {}", escaped(name), value(*now), value(*usual))
    };
    let all = changed.iter().map(one).collect::<Vec<_>>().join(", ");
    format!("<p class=changed>Not the machine as it was: {all}.</p>\n")
}

fn findings(results: &Results) -> String {
    if results.findings.is_empty() {
        return String::new();
    }
    let one = |finding: &crate::Finding| {
        let class = if finding.holds { "held" } else { "missed" };
        format!("<li class={class}>{}{}</li>\n", mark(finding.holds), escaped(&finding.text))
    };
    format!("<ul class=findings>\n{}</ul>\n", results.findings.iter().map(one).collect::<String>())
}

fn plots(results: &Results) -> String {
    let mut html = String::new();
    for drawn in &results.plots {
        let title = escaped(&drawn.title);
        match plot::svg(drawn) {
            Ok(Some(svg)) => {
                let _ = writeln!(html, "<figure class=plot><figcaption>{title}</figcaption>\n{svg}</figure>");
            }
            Ok(None) => {}
            Err(error) => {
                let _ = writeln!(html, "<p class=error>{title}: {}</p>", escaped(&error.to_string()));
            }
        }
    }
    if html.is_empty() { html } else { format!("<div class=plots>\n{html}</div>\n") }
}

fn parameters(outcome: &Outcome) -> String {
    let order = &outcome.order;
    // Those of a machine that was not simulated say nothing of what was measured.
    let is_used = outcome.is_simulated() || !order.experiment.is_simulated();
    if !is_used || order.parameters.iter().next().is_none() {
        return String::new();
    }
    let changed = order.changed();
    let open = if changed.is_empty() { "" } else { " open" };
    let mut html = format!("<details{open}><summary>Parameters and where they come from</summary>\n<div class=wide>");
    html += "<table class=list><thead><tr><th>name</th><th class=n>value</th><th>unit</th><th class=n>may be</th>\
             <th>what it is</th><th>source</th></tr></thead>\n<tbody>";
    for (parameter, now) in order.parameters.iter() {
        let usual = changed.iter().find(|(name, ..)| *name == parameter.name).map(|(_, _, usual)| *usual);
        let class = if usual.is_some() { " class=set" } else { "" };
        let is_default = now == parameter.default;
        let is_modern = order.setting == Setting::Modern && usual.is_none() && !is_default;
        let modern = order.experiment.sheet().modern_origin(parameter.name);
        let (kind, text) = match () {
            () if is_default => (parameter.origin.kind(), freedom::origin_text(parameter)),
            () if is_modern => (modern.kind(), modern.text().to_owned()),
            () => ("set", String::new()),
        };
        let usual = usual.map(|usual| format!(" <small>(not {})</small>", value(usual))).unwrap_or_default();
        let _ = writeln!(
            html,
            "<tr{class}><th scope=row><code>{}</code></th><td class=n>{}{usual}</td><td>{}</td><td class=\"n range\">{} to \
             {}</td><td>{}</td><td><span class=\"origin {kind}\">{kind}</span> {}</td></tr>",
            escaped(parameter.name),
            value(now),
            escaped(parameter.unit),
            value(*parameter.range.start()),
            value(*parameter.range.end()),
            escaped(parameter.about),
            escaped(&text),
        );
    }
    html + "</tbody></table></div></details>\n"
}
