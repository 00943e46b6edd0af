//! UIO: buffers that are mapped for each I/O, and buffers that are not.

mod beyond;
mod machine;

use super::Run;
use crate::parameter::Parameters;
use crate::result::{Finding, Plot, Results, Series, Table};
use machine::{Buffers, Outcome, Server};

const PROCESSORS: [usize; 11] = [1, 2, 4, 6, 8, 10, 16, 20, 32, 48, 64];

/// Buffers that share a shootdown.
const BATCH: u32 = 32;

/// In the order of the tables' rows.
const ALL: [Buffers; 4] = [Buffers::Mapped, Buffers::Unmapped, Buffers::ShotDownTwice, Buffers::Batched(BATCH)];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    (counts(parameters.get("processors") as usize).len() * ALL.len()) as u64 + beyond::STEPS
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let papers = run.get("processors") as usize;
    let counts = if run.is_brief { few(papers) } else { counts(papers) };
    let outcomes = ALL.map(|buffers| -> Vec<Outcome> {
        let each = counts.iter().map(|processors| {
            let outcome = machine::run(&server(run, *processors), buffers, run.seed);
            run.step();
            outcome
        });
        each.collect()
    });
    let measured = Measured { papers, counts, outcomes };
    let scaling = measured.scaling(run);
    let mut results = Results {
        plots: vec![plot(run, &scaling)],
        tables: vec![measured.rates(run), scaling, measured.times(run)],
        findings: measured.findings(run),
        notes: run.notes(&[]),
    };
    if !run.is_brief {
        beyond::add(run, &mut results);
    }
    results
}

/// The paper's numbers are for 40 processors.
fn plot(run: &Run<'_>, scaling: &Table) -> Plot {
    let published = scaling.rows.iter().zip(run.published("rates"));
    let published = published.map(|(name, rate)| Series::paper(name, [(40.0, rate[0])]));
    run.plot("scaling", published.chain(scaling.lines(str::to_owned)).collect())
}

/// Tried numbers of processors, that of the paper among them.
fn counts(papers: usize) -> Vec<usize> {
    let mut counts = PROCESSORS.to_vec();
    counts.push(papers);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The least of them that the findings need: one, that of the paper, one where mapped buffers serve most, and the most.
fn few(papers: usize) -> Vec<usize> {
    let mut counts = vec![1, 10, papers, 64];
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn server(run: &Run<'_>, processors: usize) -> Server {
    let count = |name: &str| run.get(name) as usize;
    let ns = |name: &str, unit: f64| (run.get(name) * unit) as u64;
    // Parameters are in thousands a second.
    let each_ns = |name: &str| (1e6 / run.get(name)) as u64;
    Server {
        processors,
        socket: count("processors.socket"),
        threads: count("threads"),
        io_ns: ns("cpu.io", 1e3),
        shoots_twice: count("shootdowns") == 2,
        map_ns: ns("cpu.map", 1.0),
        deliver_ns: ns("ipi.deliver", 1.0),
        trap_ns: ns("ipi.trap", 1.0),
        near_ns: ns("line.near", 1.0),
        far_ns: ns("line.far", 1.0),
        adapters: count("adapters"),
        adapter_ns: each_ns("adapter.rate"),
        disks: count("disks"),
        disk_ns: each_ns("disk.rate"),
        latency_ns: ns("disk.latency", 1e3),
        copy_ns: None,
        pause_ns: 0,
        rounds: run.get("rounds") as u64,
    }
}

struct Measured {
    papers: usize,
    counts: Vec<usize>,
    /// Indexed as [`ALL`], then as `counts`.
    outcomes: [Vec<Outcome>; ALL.len()],
}

impl Measured {
    fn on_papers(&self, buffers: usize) -> Outcome {
        let found = self.counts.iter().position(|count| *count == self.papers);
        found.map_or_else(Outcome::default, |at| self.outcomes[buffers][at])
    }

    fn thousands(&self, buffers: usize) -> Vec<f64> {
        self.outcomes[buffers].iter().map(|outcome| outcome.rate / 1000.0).collect()
    }

    fn rates(&self, run: &Run<'_>) -> Table {
        let table = run.table("rates", [0, 1].map(|buffers| [self.on_papers(buffers).rate / 1000.0]));
        let blog = if run.compares() { " (the blog, on 40: 300 K, and over 1 M)" } else { "" };
        let title = format!("{}{blog}", self.with_count(&table.title));
        Table { title, ..table }.of_columns([self.papers])
    }

    fn scaling(&self, run: &Run<'_>) -> Table {
        run.table("scaling", (0..ALL.len()).map(|buffers| self.thousands(buffers))).of_columns(&self.counts)
    }

    fn times(&self, run: &Run<'_>) -> Table {
        let row = |buffers: usize| {
            let Outcome { shootdowns, work, lock, answers, interrupted, .. } = self.on_papers(buffers);
            let idle = (100.0 - work - lock - answers - interrupted).max(0.0);
            [shootdowns / 1000.0, work, lock, answers, interrupted, idle]
        };
        let table = run.table("times", (0..ALL.len()).map(row));
        Table { title: self.with_count(&table.title), ..table }
    }

    fn with_count(&self, title: &str) -> String {
        title.replace("{processors}", &self.papers.to_string())
    }

    fn findings(&self, run: &Run<'_>) -> Vec<Finding> {
        let [mapped, unmapped, twice, batched] = [0, 1, 2, 3].map(|buffers| self.on_papers(buffers).rate);
        let most = |buffers: usize| self.thousands(buffers).into_iter().fold(0.0, f64::max) * 1000.0;
        let published = run.published("rates");
        let over = run.in_the_paper(|| format!("over {:.1}", published[1][0] / published[0][0]));
        let mut findings = vec![
            Finding::new(
                format!(
                    "On {} processors, {:.0} thousand I/O a second are served with unmapped buffers, {:.0} with mapped ones: \
                     {:.1} times as many{over}.",
                    self.papers,
                    unmapped / 1000.0,
                    mapped / 1000.0,
                    unmapped / mapped,
                ),
                // With one processor there is none to interrupt.
                unmapped >= mapped,
            ),
            Finding::new(
                "With mapped buffers, many processors serve less than few.",
                mapped < most(0) * 0.8 && self.outcomes[0].last().is_some_and(|last| last.rate < mapped * 1.05),
            ),
            Finding::new("A shootdown when a buffer is mapped, too, serves about half.", twice < mapped * 0.6),
            Finding::new(
                "To unmap many buffers with one shootdown gives most of what not mapping them gives.",
                batched > mapped && batched > unmapped * 0.5,
            ),
        ];
        if run.compares() {
            findings.extend([
                Finding::new("On 40 processors, unmapped buffers serve more than three times as much.", {
                    unmapped > mapped * 3.0
                }),
                Finding::new("Two shootdowns an I/O, as the blog's text has it, give its 300 K within a fifth", {
                    (twice / 1000.0 / published[0][0] - 1.0).abs() < 0.2
                }),
                Finding::new("On one processor there is hardly a difference: nobody is to be interrupted.", {
                    self.outcomes[0][0].rate > self.outcomes[1][0].rate * 0.93
                }),
            ]);
        }
        findings
    }
}
