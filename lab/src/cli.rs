//! The command line of `awase-lab`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::Bench;
use crate::limit::Limit;

/// The papers' experiments on the papers' machines, in virtual time and on this machine, and Awase measured beside others.
#[derive(Debug, Parser)]
#[command(name = "awase-lab", version, max_term_width = 110, after_long_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  awase lab list
  awase lab show ws-table3
  awase lab run ws-table3
  awase lab run all --machine both --out report
  awase lab run ws-table2 --set disk.rpm=7200
  awase lab run mp-table2 --sensitivity           what hangs on each number that nobody published
  awase lab run ws-table3 --on both               beside this machine's disk, on which DIR lies
  awase lab run live                              every switch on a server on this machine: five minutes";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the experiments.
    List,
    /// Tell what an experiment is about and what it can be told: each number with its unit, range and source.
    Show {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Run experiments: tables here, and a report (HTML, CSV, JSON) in a directory.
    #[command(after_long_help = EXAMPLES)]
    Run(RunArguments),
    /// Measure Awase on this machine, beside other servers.
    Bench {
        /// What to measure.
        #[command(subcommand)]
        bench: Bench,
    },
    /// Answer clients with as little work as there can be: the limit that the benchmarks compare with.
    Limit {
        /// The protocol.
        #[command(subcommand)]
        limit: Limit,
    },
    /// Print shell completions.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a directory.
    Man {
        /// Where to write one page for each command.
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

/// Arguments of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArguments {
    /// Names of experiments, or all.
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Where: in the simulated machine, on this one with Awase's own kernel, or both side by side. What has no simulated
    /// machine (live) is always measured on this one; of all, only with here or both.
    #[arg(long, value_enum, default_value_t = Side::Sim)]
    pub on: Side,
    /// On this machine, measure as little as gives all numbers, whatever they are worth.
    #[arg(long)]
    pub quick: bool,
    /// Which machine is simulated: the paper's, one of 2026 (NVMe; what else, `awase lab show NAME` lists), or both.
    #[arg(long, value_enum, default_value_t = Machine::Paper)]
    pub machine: Machine,
    /// Set a parameter (may be repeated) of each of the experiments that has it; `awase lab show NAME` lists them.
    #[arg(long, value_name = "NAME=VALUE", value_parser = number_assignment)]
    pub set: Vec<(String, f64)>,
    /// Seed of all chance: the same seed gives the same results.
    #[arg(long, value_name = "N", default_value_t = papers::DEFAULT_SEED, value_parser = seed, allow_negative_numbers = true)]
    pub seed: u64,
    /// Also measure what hangs on each number that nobody published: the numbers at the ends of their ranges, and random
    /// machines. The result goes to DIR/NAME.sensitivity.json, too.
    #[arg(long)]
    pub sensitivity: bool,
    /// All tables on the terminal, where several experiments run; without it, a summary of each.
    #[arg(long)]
    pub full: bool,
    /// Where the report goes; files of the same names are replaced.
    #[arg(long, value_name = "DIR", default_value = "awase-lab")]
    pub out: PathBuf,
}

/// Where experiments run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// In virtual time.
    Sim,
    /// With Awase's kernel on this machine.
    #[value(name = "here")]
    Local,
    /// On both.
    Both,
}

/// Which machine is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// The paper's.
    Paper,
    /// One of 2026.
    #[value(name = "2026")]
    Modern,
    /// One after the other.
    Both,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a seed: 0 to {}", u64::MAX))
}

fn number_assignment(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    let name = name.to_owned();
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok((name, number)),
        _ => Err(format!("{value:?} is not a number")),
    }
}
