//! The workstation paper's table 5: NFS reads by the number of blocks that the client reads ahead.

use crate::parameter::Parameters;
use crate::result::{Finding, Plot, Results, Series, Table};

use super::Run;
use super::nfs::{self, Load, Outcome, Setting, measure};

const AHEAD: [u64; 11] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

/// Blocks that the server reads ahead on its disk, and those of the client beside them.
const SERVER_AHEAD: [u64; 4] = [0, 1, 4, 15];
const CLIENT_AHEAD: [u64; 3] = [0, 1, 4];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    (2 * AHEAD.len() + SERVER_AHEAD.len() * CLIENT_AHEAD.len()) as u64 * parameters.get("file.count") as u64
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let with = |ahead: u64, cached, server_ahead| {
        let biods = (run.get("client.biods") as u32).max(ahead as u32 + 1);
        let (nfsds, files) = (run.get("server.nfsds") as u32, run.get("file.count") as u32);
        measure(run, Setting { biods, nfsds, load: Load::Read { ahead, cached }, server_ahead, files })
    };
    let of = |ahead: u64, cached| with(ahead, cached, None);
    let [disk, memory] = [false, true].map(|cached| AHEAD.map(|ahead| of(ahead, cached)));
    let (one, four) = (at(&disk, 1), at(&disk, 4));
    let throughputs = [&disk, &memory].map(|outcomes| outcomes.iter().map(Outcome::throughput));
    let memory_at_one = format!("{:.0}", memory[1].throughput());
    let busy = run.table("busy", disk.iter().map(Outcome::utilisation)).of_rows(AHEAD.map(blocks));
    let mut tables = vec![
        run.table("throughput", [[one.throughput()], [four.throughput()]]),
        nfs::gain(run, one, four),
        run.table("blocks", throughputs).of_columns(AHEAD),
    ];
    let plots = plots(run, &disk, &memory, &busy.columns);
    tables.push(busy);
    if !run.is_brief {
        tables.push(server_table(run, &|server, client| with(client, false, Some(server)).throughput()));
    }
    Results { plots, tables, findings: findings(run, &disk, &memory), notes: run.notes(&[("memory", memory_at_one)]) }
}

/// One block ahead on the server, as 4.3BSD reads, against several (section 3), by what the client reads ahead.
fn server_table(run: &Run<'_>, throughput: &dyn Fn(u64, u64) -> f64) -> Table {
    let row = |server: u64| CLIENT_AHEAD.map(|client| throughput(server, client));
    run.table("server", SERVER_AHEAD.map(row)).of_rows(SERVER_AHEAD.map(blocks)).of_columns(CLIENT_AHEAD.map(blocks))
}

fn at(outcomes: &[Outcome], ahead: u64) -> &Outcome {
    AHEAD.iter().position(|a| *a == ahead).map_or(&outcomes[0], |at| &outcomes[at])
}

fn blocks(ahead: u64) -> String {
    match ahead {
        1 => "1 block".to_owned(),
        ahead => format!("{ahead} blocks"),
    }
}

fn plots(run: &Run<'_>, disk: &[Outcome], memory: &[Outcome], parts: &[String]) -> Vec<Plot> {
    let line = |name: &str, outcomes: &[Outcome], of: &dyn Fn(&Outcome) -> f64| {
        Series::simulated(name, AHEAD.iter().zip(outcomes).map(|(ahead, outcome)| (*ahead as f64, of(outcome))))
    };
    let published = run.published("throughput").iter().map(|row| row[0]);
    let paper = Series::paper("from disk", [1.0, 4.0].into_iter().zip(published));
    let busy = parts.iter().enumerate().map(|(part, name)| line(name, disk, &|o| o.utilisation()[part])).collect();
    let simulated = |name: &str, outcomes: &[Outcome]| line(name, outcomes, &Outcome::throughput);
    vec![
        run.plot("throughput", vec![paper, simulated("from disk", disk), simulated("from memory", memory)]),
        run.plot("busy", busy),
    ]
}

fn findings(run: &Run<'_>, disk: &[Outcome], memory: &[Outcome]) -> Vec<Finding> {
    let (one, four) = (at(disk, 1), at(disk, 4));
    let headline = nfs::headline(run, "With four blocks ahead in place of one, a file is read", one, four);
    if !run.compares() {
        return vec![headline];
    }
    let ethernet = |outcome: &Outcome| outcome.utilisation()[0];
    vec![
        headline,
        Finding::new(
            "The gain goes with a better use of the Ethernet, as the paper says",
            ethernet(four) > 1.2 * ethernet(one),
        ),
        Finding::new(
            "With several blocks asked for at once, the disk reads more of them with one command",
            four.accesses() < 0.8 * one.accesses(),
        ),
        Finding::new("From the server's memory, one block ahead is enough to fill the Ethernet", {
            memory[1].utilisation()[0] > 85.0
        }),
    ]
}
