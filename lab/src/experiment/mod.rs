//! The experiments: one published table or figure, one file.

pub mod dsm;
pub mod live;
pub mod mp_table1;
pub mod mp_table2;
mod nfs;
pub mod oltp;
mod top1;
pub mod uio;
mod workstation;
pub mod ws_2;
pub mod ws_5;
pub mod ws_7;
pub mod ws_table2;
pub mod ws_table3;
pub mod ws_table4;
pub mod ws_table5;
pub mod ws_table6;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::{self, LocalExperiment};
use crate::parameter::{Parameters, sheet};
use crate::result::Results;

/// A published table or figure, and what lies beyond it.
pub trait Experiment: Sync {
    /// Its name on the command line, and of its sheet: `ws-table3`.
    fn name(&self) -> &'static str;

    /// One line: what is compared.
    fn title(&self) -> &'static str {
        sheet::named(self.name()).title
    }

    /// A few sentences for a reader who does not know the paper: the problem, the technique, what to look at.
    fn about(&self) -> &'static str {
        sheet::named(self.name()).about
    }

    /// Which table or figure of which paper.
    fn paper(&self) -> &'static str {
        sheet::named(self.name()).paper
    }

    /// Its parameters at their defaults.
    fn parameters(&self) -> Parameters {
        Parameters::of_sheet(self.name())
    }

    /// Names and values of the parameters that make the machine one of 2026 (NVMe, 64 cores). A run with these has
    /// nothing published to compare with.
    fn modern(&self) -> &'static [(&'static str, f64)] {
        &sheet::named(self.name()).modern
    }

    /// Approximate number of [`Run::step`]s.
    fn steps(&self, parameters: &Parameters) -> u64;

    /// Has it a simulated machine? Without one, it is always measured on this host.
    fn is_simulated(&self) -> bool {
        true
    }

    fn simulate(&self, run: &Run<'_>) -> Results;

    /// Its measurement on this host, with the real kernel of Awase.
    fn local(&self) -> Option<&'static dyn LocalExperiment> {
        local::named(self.name())
    }
}

pub struct Run<'a> {
    pub parameters: &'a Parameters,
    pub seed: u64,
    /// Steps done, for the progress bar.
    pub done: &'a AtomicU64,
}

impl Run<'_> {
    /// # Panics
    /// See [`Parameters::get`].
    pub fn get(&self, name: &str) -> f64 {
        self.parameters.get(name)
    }

    /// Is it a machine of 2026, with nothing published to compare with?
    pub fn is_modern(&self, experiment: &dyn Experiment) -> bool {
        self.parameters.are_mostly(experiment.modern())
    }

    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The paper's number in a headline, if it is comparable: ` (paper: 3.3)`.
fn in_the_paper(compared: bool, number: impl FnOnce() -> String) -> String {
    if compared { format!(" (paper: {})", number()) } else { String::new() }
}

/// All experiments, in the order of the list.
pub fn experiments() -> &'static [&'static dyn Experiment] {
    &[
        &ws_2::Ws2,
        &ws_table2::WsTable2,
        &ws_table3::WsTable3,
        &ws_table4::WsTable4,
        &ws_table5::WsTable5,
        &ws_table6::WsTable6,
        &ws_5::Ws5,
        &ws_7::Ws7,
        &mp_table1::MpTable1,
        &mp_table2::MpTable2,
        &oltp::Oltp,
        &dsm::Dsm,
        &uio::Uio,
        &live::Live,
    ]
}

pub fn simulated() -> impl Iterator<Item = &'static dyn Experiment> {
    experiments().iter().copied().filter(|experiment| experiment.is_simulated())
}

pub fn named(name: &str) -> Option<&'static dyn Experiment> {
    experiments().iter().copied().find(|experiment| experiment.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an experiment with some parameters changed. It takes the steps that it announces.
    pub(super) fn simulate(experiment: &dyn Experiment, changes: &[(&str, f64)], seed: u64) -> Results {
        let (mut parameters, done) = (experiment.parameters(), AtomicU64::new(0));
        for (name, value) in changes {
            parameters.set(name, *value).expect("in range");
        }
        let results = experiment.simulate(&Run { parameters: &parameters, seed, done: &done });
        assert_eq!(done.into_inner(), experiment.steps(&parameters));
        results
    }

    pub(super) fn assert_findings(results: &Results) {
        let missed: Vec<&str> = results.findings.iter().filter(|f| !f.holds).map(|f| f.text.as_str()).collect();
        assert!(missed.is_empty(), "{missed:#?}\n{:#?}", results.tables);
    }
}
