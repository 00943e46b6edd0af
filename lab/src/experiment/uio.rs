//! UIO: buffers that are mapped for each I/O, and buffers that are not.

mod machine;
#[cfg(test)]
mod tests;

use super::{Experiment, Run, in_the_paper};
use crate::parameter::{Origin, Parameter, Parameters};
use crate::result::{Axis, Cell, Drawing, Finding, Plot, Results, Series, Source, Table};
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

pub struct Uio;

impl Experiment for Uio {
    fn name(&self) -> &'static str {
        "uio"
    }

    fn title(&self) -> &'static str {
        "Buffers mapped for each I/O against buffers not mapped, by number of processors"
    }

    fn about(&self) -> &'static str {
        "Before FreeBSD 10 the buffer of each I/O was mapped into the kernel and unmapped after it. To unmap it, every other \
         processor is interrupted to drop its translation, and all is waited for, under one lock of the whole machine. The \
         more processors, the longer it takes and the more it disturbs. Here threads on 1 to 64 processors read small \
         blocks from solid state disks. Look at how more processors serve less while buffers are mapped."
    }

    fn paper(&self) -> &'static str {
        "UIO, the gain in performance"
    }

    fn parameters(&self) -> Parameters {
        Parameters::new(self.name(), parameters())
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        // 64 cores in groups of eight around a cache, NVMe disks.
        &[
            ("processors", 64.0),
            ("processors.socket", 8.0),
            ("threads", 1024.0),
            ("cpu.io", 1.5),
            ("cpu.map", 50.0),
            ("ipi.deliver", 400.0),
            ("ipi.trap", 300.0),
            ("line.near", 25.0),
            ("line.far", 110.0),
            ("adapters", 16.0),
            ("adapter.rate", 3000.0),
            ("disks", 16.0),
            ("disk.rate", 1500.0),
            ("disk.latency", 60.0),
            ("rounds", 10.0),
        ]
    }

    fn steps(&self, parameters: &Parameters) -> u64 {
        (counts(parameters.get("processors") as usize).len() * ALL.len()) as u64
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let counts = counts(run.get("processors") as usize);
        let outcomes = ALL.map(|(buffers, _)| -> Vec<Outcome> {
            let each = counts.iter().map(|processors| {
                let outcome = machine::run(&server(run, *processors), buffers, run.seed);
                run.step();
                outcome
            });
            each.collect()
        });
        let measured =
            Measured { compares: !run.is_modern(self), papers: run.get("processors") as usize, counts, outcomes };
        let is_papers = run.parameters.changed().next().is_none();
        Results {
            tables: vec![measured.rates(), measured.scaling(), measured.times()],
            plots: vec![measured.plot()],
            findings: measured.findings(is_papers),
            notes: if measured.compares { notes() } else { Vec::new() },
        }
    }
}

/// Numbers of processors that are tried, that of the paper among them.
fn counts(papers: usize) -> Vec<usize> {
    let mut counts = PROCESSORS.to_vec();
    counts.push(papers);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn parameters() -> Vec<Parameter> {
    use Origin::{Chosen, Paper, Published};
    let parameter = |name, about, unit, default, range, origin| Parameter { name, about, unit, default, range, origin };
    vec![
        parameter("processors", "processors", "", 40.0, 1.0..=256.0, Paper("40 cores")),
        parameter(
            "processors.socket",
            "of them in one socket",
            "",
            10.0,
            1.0..=256.0,
            Published("Intel, Xeon Processor E7 Family, performance brief (2012): ten cores; four of them are 40"),
        ),
        parameter(
            "threads",
            "threads that read",
            "",
            256.0,
            1.0..=100_000.0,
            Published("FreeBSD commit 40ea77a036 (GEOM direct dispatch, 2013): more than 1 million with 256 threads"),
        ),
        parameter(
            "cpu.io",
            "processor time of an I/O",
            "us",
            10.0,
            0.1..=1000.0,
            Chosen(
                "not published for FreeBSD 9; half or twice as much changes nothing on 40 processors, only fewer ones",
            ),
        ),
        parameter(
            "cpu.map",
            "to enter or remove one page, the shootdown not counted",
            "ns",
            200.0,
            0.0..=100_000.0,
            Chosen("some hundred instructions, and a page table entry that is not in the cache"),
        ),
        parameter(
            "ipi.deliver",
            "from the order to interrupt all others until they are",
            "ns",
            500.0,
            0.0..=100_000.0,
            Chosen(
                "no measurement of this part alone was found; whole round trips are told as 1 to 3 us; 0.2 or 1 us moves the 300 K by 15 %",
            ),
        ),
        parameter(
            "ipi.trap",
            "what a processor loses by the interrupt",
            "ns",
            375.0,
            0.0..=100_000.0,
            Chosen("a judgement: some 800 cycles at 2.13 GHz for trap, entry and return; 500 to 1,500 were usual"),
        ),
        parameter(
            "line.near",
            "atomic operation on a line that a core of the socket has changed",
            "ns",
            56.0,
            0.0..=100_000.0,
            Chosen("a judgement: some 120 cycles at 2.13 GHz; 100 to 150 from core to core through a shared cache"),
        ),
        parameter(
            "line.far",
            "the same of another socket, one hop away",
            "ns",
            152.0,
            0.0..=100_000.0,
            Chosen("a judgement: some 320 cycles at 2.13 GHz; 250 to 400 from socket to socket"),
        ),
        parameter("adapters", "host adapters", "", 4.0, 1.0..=1000.0, Published("FreeBSD commit 40ea77a036: 4 HBAs")),
        parameter(
            "adapter.rate",
            "what an adapter can do",
            "thousand/s",
            290.0,
            1.0..=100_000.0,
            Chosen(
                "a judgement: an adapter of the time (LSI SAS2008) does 250,000 to 350,000; four of them did more than 1 \
                 million",
            ),
        ),
        parameter(
            "disks",
            "solid state disks",
            "",
            16.0,
            1.0..=1000.0,
            Published("FreeBSD commit 40ea77a036: 16 SATA SSDs"),
        ),
        parameter(
            "disk.rate",
            "what a disk can do",
            "thousand/s",
            75.0,
            0.1..=100_000.0,
            Chosen(
                "a judgement: SATA SSDs of 2012 did 35,000 to 90,000 reads a second, and 16 of them more than 1 million: at \
                 least 62,500 each",
            ),
        ),
        parameter(
            "disk.latency",
            "of a read",
            "us",
            50.0,
            0.0..=100_000.0,
            Chosen("a judgement: flash behind SATA takes 50 to 100 us; with 256 threads it hardly matters"),
        ),
        parameter(
            "rounds",
            "I/O of each thread that are measured, in the mean",
            "",
            20.0,
            1.0..=1000.0,
            Chosen("more do not change the rates"),
        ),
    ]
}

fn server(run: &Run<'_>, processors: usize) -> Server {
    let count = |name: &str| run.get(name) as usize;
    let ns = |name: &str, unit: f64| (run.get(name) * unit) as u64;
    // Thousands a second: microseconds are the reciprocal of thousandths of them.
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
    /// With the blog.
    compares: bool,
    /// Processors of the paper's machine.
    papers: usize,
    counts: Vec<usize>,
    /// As [`ALL`], then as `counts`.
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
        let row = |buffers: usize| {
            let simulated = Cell::simulated(self.on_papers(buffers).rate / 1000.0);
            vec![Cell { paper: self.compares.then_some(PUBLISHED[buffers]), ..simulated }]
        };
        let blog = if self.compares { " (the blog, on 40: 300 K, and over 1 M)" } else { "" };
        Table {
            name: "rates".to_owned(),
            title: format!("I/O served on {} processors{blog}", self.papers),
            unit: "thousand/s".to_owned(),
            rows_are: "buffers".to_owned(),
            rows: ALL[..2].iter().map(|(_, name)| (*name).to_owned()).collect(),
            columns_are: "processors".to_owned(),
            columns: vec![self.papers.to_string()],
            cells: vec![row(0), row(1)],
            in_points: false,
            digits: 0,
        }
    }

    fn scaling(&self) -> Table {
        Table {
            name: "scaling".to_owned(),
            title: "I/O served by number of processors".to_owned(),
            unit: "thousand/s".to_owned(),
            rows_are: "buffers".to_owned(),
            rows: ALL.iter().map(|(_, name)| (*name).to_owned()).collect(),
            columns_are: "processors".to_owned(),
            columns: self.counts.iter().map(usize::to_string).collect(),
            cells: (0..ALL.len()).map(|b| self.thousands(b).into_iter().map(Cell::simulated).collect()).collect(),
            in_points: false,
            digits: 0,
        }
    }

    fn times(&self) -> Table {
        let row = |buffers: usize| {
            let Outcome { shootdowns, work, lock, answers, interrupted, .. } = self.on_papers(buffers);
            let idle = (100.0 - work - lock - answers - interrupted).max(0.0);
            [shootdowns / 1000.0, work, lock, answers, interrupted, idle].map(Cell::simulated).to_vec()
        };
        Table {
            name: "times".to_owned(),
            title: format!("Where the time of {} processors goes", self.papers),
            unit: "thousand/s; % of the time".to_owned(),
            rows_are: "buffers".to_owned(),
            rows: ALL.iter().map(|(_, name)| (*name).to_owned()).collect(),
            columns_are: "what".to_owned(),
            columns: ["shootdowns", "I/O", "waiting for the lock", "waiting for answers", "interrupted", "idle"]
                .map(str::to_owned)
                .to_vec(),
            cells: (0..ALL.len()).map(row).collect(),
            in_points: false,
            digits: 1,
        }
    }

    fn plot(&self) -> Plot {
        let simulated = |(buffers, (_, name)): (usize, &(Buffers, &str))| Series {
            name: (*name).to_owned(),
            source: Source::Simulated,
            points: self.counts.iter().map(|count| *count as f64).zip(self.thousands(buffers)).collect(),
        };
        let paper = |buffers: usize| Series {
            name: ALL[buffers].1.to_owned(),
            source: Source::Paper,
            points: vec![(40.0, PUBLISHED[buffers])],
        };
        Plot {
            name: "scaling".to_owned(),
            title: "I/O served by number of processors".to_owned(),
            drawing: Drawing::Lines,
            x: Axis::linear("processors", ""),
            y: Axis::linear("served", "thousand I/O a second"),
            series: [0, 1]
                .into_iter()
                .filter(|_| self.compares)
                .map(paper)
                .chain(ALL.iter().enumerate().map(simulated))
                .collect(),
        }
    }

    fn findings(&self, is_papers: bool) -> Vec<Finding> {
        let [mapped, unmapped, twice, batched] = [0, 1, 2, 3].map(|buffers| self.on_papers(buffers).rate);
        let most = |buffers: usize| self.thousands(buffers).into_iter().fold(0.0, f64::max) * 1000.0;
        let over = in_the_paper(self.compares, || format!("over {:.1}", PUBLISHED[1] / PUBLISHED[0]));
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
                // On one processor there is nobody to interrupt.
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
        if is_papers {
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
