//! UIO: buffers that are mapped for each I/O, and buffers that are not.

mod machine;

use super::Run;
use crate::parameter::Parameters;
use crate::result::{Axis, Cell, Finding, Plot, Results, Series, Table};
use machine::{Buffers, Outcome, Server};

/// Thousands of I/O a second on 40 processors: mapped, unmapped ("over 1M").
const PUBLISHED: [f64; 2] = [300.0, 1000.0];

const PROCESSORS: [usize; 11] = [1, 2, 4, 6, 8, 10, 16, 20, 32, 48, 64];

/// Buffers that share a shootdown.
const BATCH: u32 = 32;

const ALL: [(Buffers, &str); 4] = [
    (Buffers::Mapped, "mapped"),
    (Buffers::Unmapped, "unmapped"),
    (Buffers::ShotDownTwice, "mapped, shootdown at both ends"),
    (Buffers::Batched(BATCH), "mapped, 32 unmapped together"),
];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    (counts(parameters.get("processors") as usize).len() * ALL.len()) as u64
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let counts = counts(run.get("processors") as usize);
    let outcomes = ALL.map(|(buffers, _)| -> Vec<Outcome> {
        let each = counts.iter().map(|processors| {
            let outcome = machine::run(&server(run, *processors), buffers, run.seed);
            run.step();
            outcome
        });
        each.collect()
    });
    let measured = Measured { compares: run.compares(), papers: run.get("processors") as usize, counts, outcomes };
    Results {
        tables: vec![measured.rates(), measured.scaling(), measured.times()],
        plots: vec![measured.plot()],
        findings: measured.findings(run),
        notes: if measured.compares { notes() } else { Vec::new() },
    }
}

/// Tried numbers of processors, that of the paper among them.
fn counts(papers: usize) -> Vec<usize> {
    let mut counts = PROCESSORS.to_vec();
    counts.push(papers);
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
        rounds: run.get("rounds") as u64,
    }
}

struct Measured {
    /// Is this comparable with the published numbers?
    compares: bool,
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

    fn rates(&self) -> Table {
        let row = |buffers: usize| vec![Cell::of(PUBLISHED[buffers], self.on_papers(buffers).rate / 1000.0)];
        let blog = if self.compares { " (the blog, on 40: 300 K, and over 1 M)" } else { "" };
        Table::new("rates", format!("I/O served on {} processors{blog}", self.papers))
            .unit("thousand/s", 0)
            .rows("buffers", ALL[..2].iter().map(|(_, name)| *name))
            .columns("processors", vec![self.papers.to_string()])
            .cells(vec![row(0), row(1)])
    }

    fn scaling(&self) -> Table {
        Table::new("scaling", "I/O served by number of processors")
            .unit("thousand/s", 0)
            .rows("buffers", ALL.iter().map(|(_, name)| *name))
            .columns("processors", self.counts.iter().map(usize::to_string))
            .cells((0..ALL.len()).map(|b| self.thousands(b).into_iter().map(Cell::simulated).collect()).collect())
    }

    fn times(&self) -> Table {
        let row = |buffers: usize| {
            let Outcome { shootdowns, work, lock, answers, interrupted, .. } = self.on_papers(buffers);
            let idle = (100.0 - work - lock - answers - interrupted).max(0.0);
            [shootdowns / 1000.0, work, lock, answers, interrupted, idle].map(Cell::simulated).to_vec()
        };
        Table::new("times", format!("Where the time of {} processors goes", self.papers))
            .unit("thousand/s; % of the time", 1)
            .rows("buffers", ALL.iter().map(|(_, name)| *name))
            .columns(
                "what",
                ["shootdowns", "I/O", "waiting for the lock", "waiting for answers", "interrupted", "idle"],
            )
            .cells((0..ALL.len()).map(row).collect())
    }

    fn plot(&self) -> Plot {
        let simulated = |(buffers, (_, name)): (usize, &(Buffers, &str))| {
            Series::simulated(*name, self.counts.iter().map(|count| *count as f64).zip(self.thousands(buffers)))
        };
        let paper = |buffers: usize| Series::paper(ALL[buffers].1.to_owned(), [(40.0, PUBLISHED[buffers])]);
        Plot::lines(
            "scaling",
            "I/O served by number of processors",
            Axis::linear("processors", ""),
            Axis::linear("served", "thousand I/O a second"),
            [0, 1].map(paper).into_iter().chain(ALL.iter().enumerate().map(simulated)).collect(),
        )
    }

    fn findings(&self, run: &Run<'_>) -> Vec<Finding> {
        let [mapped, unmapped, twice, batched] = [0, 1, 2, 3].map(|buffers| self.on_papers(buffers).rate);
        let most = |buffers: usize| self.thousands(buffers).into_iter().fold(0.0, f64::max) * 1000.0;
        let over = run.in_the_paper(|| format!("over {:.1}", PUBLISHED[1] / PUBLISHED[0]));
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
        if run.is_papers() {
            findings.extend([
                Finding::new("On 40 processors, unmapped buffers serve more than three times as much.", {
                    unmapped > mapped * 3.0
                }),
                Finding::new("On one processor there is hardly a difference: nobody is to be interrupted.", {
                    self.outcomes[0][0].rate > self.outcomes[1][0].rate * 0.93
                }),
            ]);
        }
        findings
    }
}

fn notes() -> Vec<String> {
    [
        "The blog says that both mapping and unmapping interrupt the other processors. The source of FreeBSD 9 does so only \
         when a page is mapped in the place of another (pmap_qenter), which a buffer that was unmapped after its last I/O \
         is not; so one shootdown an I/O is taken for the blog's 300 K, and the third row shows two.",
        "The blog's 1 M is not due to unmapped buffers alone: the benchmark (FreeBSD commit 40ea77a036) also has finer locks and \
         direct dispatch, which FreeBSD 10 brought together with them. Without mapping, what is served here ends at what \
         the four adapters can do.",
        "With --on here, the real switch (unmapped_io) is measured with the host's own count of TLB shootdowns.",
    ]
    .map(str::to_owned)
    .to_vec()
}
