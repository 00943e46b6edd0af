//! The list of experiments and their parameters, as text for a terminal.

use super::terminal::{Column, Terminal, Tone};
use super::value;
use super::wrap;
use crate::experiment::Experiment;

impl Terminal {
    pub fn list(&self, experiments: &[Experiment]) -> String {
        let column = |head: &str, of: &dyn Fn(&Experiment) -> &'static str, tone| {
            let mut column = Column::head(head, false);
            column.cells.extend(experiments.iter().map(|experiment| (of(experiment).to_owned(), tone)));
            column
        };
        self.columns(&[
            column("name", &|experiment| experiment.name(), Tone::Bold),
            column("what is compared", &|experiment| experiment.sheet().title, Tone::Plain),
            column("paper", &|experiment| experiment.sheet().paper, Tone::Faint),
        ])
    }

    /// An experiment's description, and its parameters with their sources.
    pub fn description(&self, experiment: &Experiment) -> String {
        let mut text = format!("{}  {}\n", self.toned(experiment.name(), Tone::Bold), experiment.sheet().title);
        text += &self.wrapped(experiment.sheet().paper, "", Tone::Faint);
        for paragraph in experiment.sheet().about.split("\n\n") {
            text.push('\n');
            text += &self.wrapped(paragraph, "", Tone::Plain);
        }
        if !experiment.sheet().decisions.is_empty() {
            text += "\nWho decides\n";
        }
        for decision in &experiment.sheet().decisions {
            text += &format!("  - {}\n", wrap(&decision.sentence(), self.width - 4).join("\n    "));
        }
        text + &self.parameters(experiment)
    }

    fn parameters(&self, experiment: &Experiment) -> String {
        let all = experiment.parameters();
        let heads = [("name", false), ("value", true), ("unit", false), ("may be", false), ("2026", true)];
        let mut columns = heads.map(|(head, right)| Column::head(head, right));
        let mut below = vec![Vec::new()];
        for (parameter, now) in all.iter() {
            let range = format!("{} to {}", value(*parameter.range.start()), value(*parameter.range.end()));
            let in_2026 = experiment.sheet().modern_value(parameter.name).map(value).unwrap_or_default();
            let cells = [parameter.name.to_owned(), value(now), parameter.unit.to_owned(), range, in_2026];
            for ((column, cell), tone) in
                columns.iter_mut().zip(cells).zip([Tone::Bold, Tone::Plain, Tone::Plain, Tone::Faint, Tone::Plain])
            {
                column.cells.push((cell, tone));
            }
            let in_2026 = experiment.sheet().modern_value(parameter.name).map(|_| {
                let origin = experiment.sheet().modern_origin(parameter.name);
                format!("; in 2026: {}: {}", origin.kind(), origin.text())
            });
            let about =
                format!("{}. {}{}", parameter.about, super::freedom::origin(parameter), in_2026.unwrap_or_default());
            below.push(wrap(&about, self.width.saturating_sub(6)));
        }
        if below.len() == 1 {
            return "\nIt has no parameters.\n".to_owned();
        }
        let mut text = format!("\nParameters (awase lab run {} --set NAME=VALUE)\n", experiment.name());
        for (line, below) in self.columns(&columns).lines().zip(below) {
            text += &format!("{line}\n");
            text.extend(below.iter().map(|line| format!("      {line}\n")));
        }
        text
    }
}
