//! What an experiment rests on, for readers: origins, free numbers, what hangs on each, and who decides.

use std::fmt::Write as _;

use super::escape::escaped;
use super::value;
use crate::order::Outcome;
use crate::parameter::Parameter;
use crate::sensitivity::{Sensitivity, Trial};

/// `judged (1 to 5 ms): a judgement ...`.
pub(super) fn origin(parameter: &Parameter) -> String {
    format!("{}: {}", parameter.origin.kind(), origin_text(parameter))
}

/// The text of an origin, with the plausible range of a free number.
pub(super) fn origin_text(parameter: &Parameter) -> String {
    let text = parameter.origin.text();
    if !parameter.origin.is_free() {
        return text.to_owned();
    }
    let (least, most) = (value(*parameter.plausible.start()), value(*parameter.plausible.end()));
    let unit = if parameter.unit.is_empty() { String::new() } else { format!(" {}", parameter.unit) };
    format!("{text} (plausible: {least} to {most}{unit})")
}

/// What the agreement rests on, and what would have to be known where the target is missed.
pub(super) fn first_lines(outcome: &Outcome) -> Vec<String> {
    let Some(sensitivity) = outcome.sensitivity() else {
        return free_only(outcome).into_iter().collect();
    };
    let unknown = outcome.order.experiment.sheet().target.as_ref().and_then(|target| target.unknown.clone());
    let unknown = unknown.filter(|_| !sensitivity.usual.is_met || sensitivity.met_percent() < 50.0);
    std::iter::once(sensitivity.verdict()).chain(unknown.map(|text| format!("To be known: {text}"))).collect()
}

/// Without sensitivities: of an experiment with nothing published, or of a machine whose numbers were changed.
fn free_only(outcome: &Outcome) -> Option<String> {
    let order = &outcome.order;
    let is_compared = outcome.results.tables.iter().any(|table| table.agreement().is_some());
    let free = order.experiment.sheet().free().count();
    match (outcome.is_simulated(), is_compared) {
        (false, _) => None,
        (true, false) => Some(format!("Nothing is published to compare with; {free} numbers of the machine are free.")),
        (true, true) => {
            let name = order.experiment.name();
            Some(format!("{free} numbers of it are free; what hangs on them: awase lab run {name} --sensitivity"))
        }
    }
}

pub(super) fn verdict(outcome: &Outcome) -> String {
    let lines = first_lines(outcome);
    lines.iter().map(|line| format!("<p class=verdict>{}</p>\n", escaped(line))).collect()
}

pub(super) fn decisions(outcome: &Outcome) -> String {
    let decisions = outcome.decisions();
    if decisions.is_empty() {
        return String::new();
    }
    let all: String = decisions.iter().map(|sentence| format!("<li>{}</li>\n", escaped(sentence))).collect();
    format!("<h3>Who decides</h3>\n<ul>\n{all}</ul>\n")
}

/// A measure's value: parts with two digits, errors with one.
pub(super) fn measured(measure: &str, value: f64) -> String {
    match value {
        value if !value.is_finite() => "–".to_owned(),
        value if measure.starts_with("part") => format!("{value:.2}"),
        value => format!("{value:.1}"),
    }
}

/// What the agreements are of, and what they are with all numbers as they are.
pub(super) fn agreements(of: &Sensitivity) -> String {
    let names: Vec<String> = of.measures.iter().map(|[name, measure]| format!("{name}: {measure}")).collect();
    match names.is_empty() {
        true => "No cell is predicted; findings and target are told.".to_owned(),
        false => format!("Agreement: {}. As it is: {}.", names.join(" / "), trial(of, &of.usual)),
    }
}

/// What a number at one of its ends gives: agreements, target and findings lost.
pub(super) fn trial(of: &Sensitivity, trial: &Trial) -> String {
    let pairs = of.measures.iter().zip(&trial.agreement);
    let agreements = pairs.map(|([_, measure], value)| measured(measure, *value)).collect::<Vec<_>>().join(" / ");
    let lost = trial.refuted.len() as i64 - of.usual.refuted.len() as i64;
    let lost = if lost == 0 { String::new() } else { format!("{lost:+} refuted") };
    let met = match (trial.is_met, of.usual.is_met) {
        (true, false) => "met",
        (false, true) => "missed",
        _ => "",
    };
    let all: Vec<&str> = [agreements.as_str(), &lost, met].into_iter().filter(|part| !part.is_empty()).collect();
    if all.is_empty() { "the same".to_owned() } else { all.join(", ") }
}

pub(super) fn sensitivity(outcome: &Outcome) -> String {
    let Some(of) = outcome.sensitivity() else { return String::new() };
    let mut html = format!(
        "<details open><summary>How free it is: what hangs on the {} numbers that nobody published</summary>\n<p>{} Each \
         number at both ends of its plausible range, the others as they are.</p>\n",
        of.numbers.len(),
        escaped(&agreements(&of)),
    );
    html += "<div class=wide><table class=list><thead><tr><th>number</th><th>kind</th><th class=n>value</th><th \
             class=n>least</th><th>gives</th><th class=n>most</th><th>gives</th></tr></thead>\n<tbody>";
    for number in &of.numbers {
        let _ = writeln!(
            html,
            "<tr><th scope=row><code>{}</code></th><td>{}</td><td class=n>{} {}</td><td class=n>{}</td><td>{}</td><td \
             class=n>{}</td><td>{}</td></tr>",
            escaped(&number.name),
            number.kind,
            value(number.value),
            escaped(&number.unit),
            value(number.least),
            trial(&of, &number.at_least),
            value(number.most),
            trial(&of, &number.at_most),
        );
    }
    html += "</tbody></table></div>\n<p>All drawn together: ";
    let spreads = of.measures.iter().zip(&of.draws.spread).map(|([name, measure], spread)| {
        let [worst, middle, best] = spread.map(|value| measured(measure, value));
        format!("{}: {middle} in the middle, {worst} in the worst tenth, {best} in the best; ", escaped(name))
    });
    html.extend(spreads);
    let _ = writeln!(html, "{} of {} meet the target.</p>\n<ul>", of.draws.met, of.draws.count);
    for (text, percent) in &of.draws.held {
        let _ = writeln!(html, "<li>{percent:.0} % of the draws: {}</li>", escaped(text));
    }
    html + "</ul>\n</details>\n"
}
