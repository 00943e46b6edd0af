//! The same transactions on Awase and on PostgreSQL: as programs of the one and functions of the other, from pgbench, in turn.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::postgresql::PostgreSql;
use super::{BANK, Bed, TIMEOUT, TPCB, Transactions};
use crate::bench::programs;
use crate::bench::slow_disk::{Disk, SLOW_FLUSH, SlowDisks};
use crate::measure::process::{Interrupted, Process};
use crate::measure::spread::Spread;

/// A row of the table.
struct Cell {
    call: Call,
    clients: u32,
    disk: Disk,
    /// How many times what PostgreSQL does, at least.
    wanted: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Transfer,
    Balance,
    /// With pgbench's branches and tellers of scale 32, on 100,000 accounts in all.
    TpcB,
}

/// Makes the rows that PostgreSQL has from the start, so that both update what is there.
const FILL: &str = "\\set number :number + 1\n\\set aid :client_id * 800 + :number\n\\set tid (:aid - 1) % 320 + 1\n\
                    \\set bid (:aid - 1) % 32 + 1\nSELECT tpcb(:aid, :tid, :bid, 0);\n";
const FILLERS: u32 = 125;
const FILLED_EACH: u32 = 800;

impl Call {
    const fn script(self) -> &'static str {
        match self {
            Call::Transfer => "\\set a random(1, 1000)\n\\set b random(1, 1000)\nSELECT transfer(:a, :b, 1);\n",
            Call::Balance => "\\set a random(1, 1000)\nSELECT balance(:a);\n",
            Call::TpcB => {
                "\\set aid random(1, 100000)\n\\set tid random(1, 320)\n\\set bid random(1, 32)\n\
                 \\set delta random(-5000, 5000)\nSELECT tpcb(:aid, :tid, :bid, :delta);\n"
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Call::Transfer => "transfer",
            Call::Balance => "balance",
            Call::TpcB => "tpcb",
        }
    }
}

const fn cell(call: Call, clients: u32, disk: Disk, wanted: f64) -> Cell {
    Cell { call, clients, disk, wanted }
}

const CELLS: [Cell; 12] = [
    cell(Call::Transfer, 1, Disk::Local, 1.2),
    cell(Call::Transfer, 8, Disk::Local, 2.0),
    cell(Call::Transfer, 32, Disk::Local, 4.0),
    cell(Call::Transfer, 128, Disk::Local, 5.0),
    cell(Call::TpcB, 1, Disk::Local, 1.2),
    cell(Call::TpcB, 8, Disk::Local, 2.0),
    cell(Call::TpcB, 32, Disk::Local, 4.0),
    cell(Call::TpcB, 128, Disk::Local, 5.0),
    cell(Call::Balance, 1, Disk::Local, 2.0),
    cell(Call::Balance, 32, Disk::Local, 2.0),
    cell(Call::Transfer, 32, Disk::SlowFlush, 2.0),
    cell(Call::TpcB, 32, Disk::SlowFlush, 2.0),
];

impl Cell {
    fn name(&self) -> String {
        let disk = if self.disk == Disk::Local { "" } else { "-slow-flush" };
        format!("{}-{}{disk}", self.call.name(), self.clients)
    }
}

/// What one run found.
struct Found {
    rate: f64,
    /// Processor time of the server for each transaction, in microseconds.
    cpu_us: f64,
}

impl Transactions {
    pub(super) fn beside(&self, program: &Path, interrupted: &Interrupted) -> Result<()> {
        let is_wanted = |cell: &&Cell| self.only.is_empty() || self.only.iter().any(|only| cell.name().contains(only));
        let cells: Vec<&Cell> = CELLS.iter().filter(is_wanted).collect();
        let names = || CELLS.iter().map(Cell::name).collect::<Vec<_>>().join(", ");
        ensure!(!cells.is_empty(), "--only matches none of {}", names());
        println!("{}", programs::first_line(&program.to_string_lossy()));
        println!("{}\n", programs::first_line("pgbench"));
        println!("A second, and CPU µs of the server; medians of {} runs of {} s in turn\n", self.reps, self.each);
        println!("| | Awase | PostgreSQL | ratio | wanted | CPU, Awase | PostgreSQL | ratio |");
        println!("|---|---|---|---|---|---|---|---|");
        for disk in [Disk::Local, Disk::SlowFlush] {
            let of_disk: Vec<&&Cell> = cells.iter().filter(|cell| cell.disk == disk).collect();
            if !of_disk.is_empty() {
                self.beside_on(disk, &of_disk, program, interrupted)?;
            }
        }
        Ok(())
    }

    fn beside_on(&self, disk: Disk, cells: &[&&Cell], program: &Path, interrupted: &Interrupted) -> Result<()> {
        fs::create_dir_all(&self.directory)?;
        let place = tempfile::Builder::new().prefix("beside-").tempdir_in(fs::canonicalize(&self.directory)?)?;
        // PostgreSQL does not run as root.
        fs::set_permissions(place.path(), Permissions::from_mode(0o711))?;
        let mut disks = SlowDisks::default();
        let directory = disks.directory(disk, place.path(), place.path())?;
        let bed = Bed::new(&directory, program, &BANK, interrupted)?;
        bed.install(&TPCB)?;
        let (awase, peer) = (bed.serve()?, PostgreSql::start(&directory, interrupted)?);
        if cells.iter().any(|cell| cell.call == Call::TpcB) {
            let (clients, each) = (FILLERS.to_string(), FILLED_EACH.to_string());
            let amount = ["-D", "number=0", "-c", &clients, "-t", &each];
            pgbench(&bed, &awase.port, FILL, &amount)?;
        }
        for cell in cells {
            let (mut own, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..self.reps {
                own.push(self.transact(cell, &bed, (&awase.process, &awase.port))?);
                theirs.push(self.transact(cell, &bed, (&peer.process, &peer.port))?);
            }
            self.row(cell, &own, &theirs);
        }
        Ok(())
    }

    fn transact(&self, cell: &Cell, bed: &Bed<'_>, (server, port): (&Process, &str)) -> Result<Found> {
        let amount = ["-c", &cell.clients.to_string(), "-T", &self.each.to_string()];
        let before = server.cpu_of_tree()?;
        let output = pgbench(bed, port, cell.call.script(), &amount)?;
        let cpu = server.cpu_of_tree()?.saturating_sub(before);
        let number = |mark: &str| -> Result<f64> {
            let (_, rest) = output.split_once(mark).with_context(|| format!("pgbench says no {mark}: {output}"))?;
            let digits: String = rest.chars().take_while(|digit| digit.is_ascii_digit() || *digit == '.').collect();
            digits.parse().with_context(|| output.clone())
        };
        let count = number("number of transactions actually processed: ")?;
        Ok(Found { rate: number("tps = ")?, cpu_us: cpu.as_secs_f64() * 1e6 / count.max(1.0) })
    }

    fn row(&self, cell: &Cell, own: &[Found], theirs: &[Found]) {
        let spread = |of: &[Found], value: fn(&Found) -> f64| Spread::of(of.iter().map(value));
        let rates = [spread(own, |found| found.rate), spread(theirs, |found| found.rate)];
        let cpus = [spread(own, |found| found.cpu_us).median, spread(theirs, |found| found.cpu_us).median];
        let whole = |rate: Spread| rate.shown(|value| format!("{value:.0}"));
        let limit = match cell.disk {
            Disk::Local => String::new(),
            _ => {
                let limit = f64::from(cell.clients) / SLOW_FLUSH.as_secs_f64();
                format!(", {:.2} of the limit", rates[0].median / limit)
            }
        };
        println!(
            "| {} | {} | {} | {:.2}{limit} | {} | {:.1} | {:.1} | {:.2} |",
            cell.name(),
            whole(rates[0]),
            whole(rates[1]),
            rates[0].median / rates[1].median,
            cell.wanted,
            cpus[0],
            cpus[1],
            cpus[0] / cpus[1],
        );
    }
}

/// Executes a script so often, and returns what is said of it.
fn pgbench(bed: &Bed<'_>, port: &str, script: &str, amount: &[&str]) -> Result<String> {
    let file = bed.at("beside.sql");
    fs::write(&file, script)?;
    let mut command = Command::new("pgbench");
    command.args(["-h", "127.0.0.1", "-p", port, "-U", "postgres", "-n", "-M", "prepared", "-j", "1"]);
    command.args(amount).arg("-f").arg(&file).arg("bank");
    Process::start(command, &bed.at("pgbench.log"), bed.interrupted)?.finish(TIMEOUT)
}
