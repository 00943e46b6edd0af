//! The experiments: one published table or figure, one file.

mod dsm;
mod mp_table1;
mod mp_table2;
mod nfs;
mod oltp;
mod top1;
mod uio;
mod workstation;
mod ws_2;
mod ws_5;
mod ws_7;
mod ws_table2;
mod ws_table3;
mod ws_table4;
mod ws_table5;
mod ws_table6;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::drive::flash::NVME_2026;
use crate::parameter::Parameters;
use crate::parameter::sheet::{self, Notes, Sheet};
use crate::result::{Plot, Results, Series, Table};
use top1::is_top1;
use workstation::is_of_1991;

/// A published table or figure, and what lies beyond it.
pub struct Experiment {
    name: &'static str,
    /// If not that of its name.
    own_sheet: Option<&'static Sheet>,
    /// Without one, it is always measured on this host.
    machine: Option<Machine>,
}

/// A simulated machine.
struct Machine {
    steps: fn(&Parameters) -> u64,
    simulate: fn(&Run<'_>) -> Results,
    /// Is it comparable with the paper's?
    is_comparable: fn(&Run<'_>) -> bool,
}

impl Experiment {
    /// One with a simulated machine. `steps`: the approximate number of [`Run::step`]s.
    pub const fn new(name: &'static str, steps: fn(&Parameters) -> u64, simulate: fn(&Run<'_>) -> Results) -> Self {
        Experiment::comparable_if(|run| !run.is_modern(), name, steps, simulate)
    }

    const fn comparable_if(
        is_comparable: fn(&Run<'_>) -> bool,
        name: &'static str,
        steps: fn(&Parameters) -> u64,
        simulate: fn(&Run<'_>) -> Results,
    ) -> Self {
        Experiment { name, own_sheet: None, machine: Some(Machine { steps, simulate, is_comparable }) }
    }

    #[must_use]
    pub const fn with_sheet(self, sheet: &'static Sheet) -> Self {
        Experiment { own_sheet: Some(sheet), ..self }
    }

    /// Its name on the command line, and of its sheet: `ws-table3`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it is about, in words.
    pub fn sheet(&self) -> &'static Sheet {
        self.own_sheet.unwrap_or_else(|| sheet::named(self.name))
    }

    /// Its parameters at their defaults.
    pub fn parameters(&self) -> Parameters {
        Parameters::new(self.name, self.sheet().parameters.clone())
    }

    pub fn steps(&self, parameters: &Parameters) -> u64 {
        self.machine.as_ref().map_or(1, |machine| (machine.steps)(parameters))
    }

    /// Has it a simulated machine?
    pub fn is_simulated(&self) -> bool {
        self.machine.is_some()
    }

    /// Without numbers of the paper if the machine is not comparable with its.
    pub fn simulate(&self, run: &Run<'_>) -> Results {
        let mut results = self.machine.as_ref().map_or_else(Results::default, |machine| (machine.simulate)(run));
        if !run.compares() {
            results.forget_the_paper();
        }
        results
    }
}

pub struct Run<'a> {
    pub experiment: &'a Experiment,
    pub parameters: &'a Parameters,
    pub seed: u64,
    /// Steps done, for the progress bar.
    pub done: &'a AtomicU64,
    /// Only what the paper published, where the rest takes time.
    pub is_brief: bool,
}

impl Run<'_> {
    /// # Panics
    /// See [`Parameters::get`].
    pub fn get(&self, name: &str) -> f64 {
        self.parameters.get(name)
    }

    /// Of a parameter in milliseconds.
    fn ms(&self, name: &str) -> Duration {
        Duration::from_nanos((self.get(name) * 1e6) as u64)
    }

    /// Is it a machine of 2026, with nothing published to compare with?
    pub fn is_modern(&self) -> bool {
        self.parameters.are_mostly(&self.experiment.sheet().modern)
    }

    /// Is the machine the paper's, so that its numbers are comparable?
    fn compares(&self) -> bool {
        self.experiment.machine.as_ref().is_some_and(|machine| (machine.is_comparable)(self))
    }

    /// The paper's number in a headline, if it is comparable: ` (paper: 3.3)`.
    fn in_the_paper(&self, number: impl FnOnce() -> String) -> String {
        if self.compares() { format!(" (paper: {})", number()) } else { String::new() }
    }

    /// A table of the sheet, with these simulated numbers beside the published ones.
    fn table(&self, name: &str, rows: impl IntoIterator<Item: IntoIterator<Item = f64>>) -> Table {
        self.experiment.sheet().table(name, rows)
    }

    /// A plot of the sheet.
    fn plot(&self, name: &str, series: Vec<Series>) -> Plot {
        self.experiment.sheet().plot(name, series)
    }

    /// What the paper published of a table.
    fn published(&self, table: &str) -> &'static [Vec<f64>] {
        self.experiment.sheet().published(table)
    }

    /// The sheet's notes for this machine, with these words in place of their names in braces.
    fn notes(&self, words: &[(&str, String)]) -> Vec<String> {
        let Notes { paper, modern, both } = &self.experiment.sheet().notes;
        let written = |note: &String| {
            let note = note.replace("{device}", NVME_2026.source);
            words.iter().fold(note, |note, (name, word)| note.replace(&format!("{{{name}}}"), word))
        };
        if self.compares() { paper } else { modern }.iter().chain(both).map(written).collect()
    }

    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// A percentile of sorted numbers, `part` from 0 to 1; 0 without numbers.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// 0 without numbers.
fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

/// All experiments, in the order of the list.
pub fn experiments() -> &'static [Experiment] {
    const {
        &[
            Experiment::new("ws-2", |_| ws_2::STEPS, ws_2::simulate),
            Experiment::comparable_if(is_of_1991, "ws-table2", ws_table2::steps, ws_table2::simulate),
            Experiment::comparable_if(is_of_1991, "ws-table3", |_| ws_table3::STEPS, ws_table3::simulate),
            Experiment::comparable_if(is_of_1991, "ws-table4", ws_table4::steps, ws_table4::simulate),
            Experiment::comparable_if(is_of_1991, "ws-table5", ws_table5::steps, ws_table5::simulate),
            Experiment::new("ws-table6", ws_table6::steps, ws_table6::simulate),
            Experiment::new("ws-5", |_| ws_5::STEPS, ws_5::simulate),
            Experiment::new("ws-7", |_| ws_7::STEPS, ws_7::simulate),
            Experiment::comparable_if(is_top1, "mp-table1", |_| mp_table1::STEPS, mp_table1::simulate),
            Experiment::comparable_if(is_top1, "mp-table2", |_| mp_table2::STEPS, mp_table2::simulate),
            Experiment::new("oltp", |_| oltp::STEPS, oltp::simulate),
            Experiment::new("dsm", dsm::steps, dsm::simulate),
            Experiment::new("uio", uio::steps, uio::simulate),
            // All switches on this machine.
            Experiment { name: "live", own_sheet: None, machine: None },
        ]
    }
}

pub fn simulated() -> impl Iterator<Item = &'static Experiment> {
    experiments().iter().filter(|experiment| experiment.is_simulated())
}

pub fn named(name: &str) -> Option<&'static Experiment> {
    experiments().iter().find(|experiment| experiment.name() == name)
}
