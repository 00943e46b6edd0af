//! What a load consists of, as its file says.

use std::time::Duration;

use anyhow::{bail, ensure};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::cli::LoadArguments;
use crate::config::parse_duration;

/// Most terminals of one load: each is a connection.
const TERMINALS_MAX: usize = 20_000;

/// Most transactions that a terminal has in flight.
const PIPELINE_MAX: usize = 64;

/// Transactions a second: less than this.
const RATE_END: f64 = 1e7;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    #[serde(default = "default_terminals")]
    pub terminals: usize,
    /// Transactions that each terminal has in flight: it sends the next before it has the reply to the one before.
    #[serde(default = "default_pipeline")]
    pub pipeline: usize,
    /// The load ends after so many transactions, or after `duration`, whichever is first. With neither, after 3,000: as in
    /// the paper.
    pub transactions: Option<u64>,
    #[serde(default, deserialize_with = "optional_duration")]
    pub duration: Option<Duration>,
    /// What happens before is not counted.
    #[serde(default, deserialize_with = "duration")]
    pub warm_up: Duration,
    /// Mean time that a terminal thinks between two transactions, exponentially distributed (a closed loop).
    #[serde(default, deserialize_with = "duration")]
    pub think_time: Duration,
    /// Transactions that arrive each second, whether the server keeps up or not (an open loop, Poisson). The time that one
    /// waits for a free terminal is part of its latency.
    pub rate: Option<f64>,
    #[serde(default)]
    pub seed: u64,
    #[serde(default)]
    pub database: String,
    #[serde(default = "default_user")]
    pub user: String,
    /// What conflicts is tried again so often.
    #[serde(default = "default_retries")]
    pub retries: u32,
    #[serde(rename = "transaction")]
    pub transactions_of: Vec<Transaction>,
    #[serde(default, rename = "check")]
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    pub name: String,
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// One statement, with `$1`, `$2` and so on.
    pub sql: String,
    #[serde(default)]
    pub arguments: Vec<Argument>,
}

/// How an argument is drawn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Argument {
    /// A whole number between these two, both included.
    Uniform([i64; 2]),
    /// As `uniform`, the first ones far more often (Zipf with exponent 1).
    Zipf([i64; 2]),
    /// TPC-C's NURand(A, x, y), clause 2.1.6.
    NonUniform { a: i64, from: i64, to: i64 },
    /// Always this.
    Text(String),
    /// The number of the terminal, from 1.
    Terminal,
    /// Counts the transactions of the whole load, from 1.
    Count,
}

/// What must be true of the database when the load is over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub name: String,
    /// A query with one value.
    pub sql: String,
    /// It is asked with `$1` from the first of these to the second, and the values are added: for sums that are too large for
    /// one transaction.
    pub over: Option<[i64; 2]>,
    /// The value, as text.
    pub expect: Option<String>,
    /// A query that must have the same value. With neither, the value must be what it was before the load.
    pub same_as: Option<String>,
}

fn default_terminals() -> usize {
    100
}

fn default_pipeline() -> usize {
    1
}

fn default_user() -> String {
    "awase".into()
}

fn default_retries() -> u32 {
    10
}

fn default_weight() -> u32 {
    1
}

fn duration<'d, D: Deserializer<'d>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not a time such as \"10s\" or \"5ms\"")))
}

fn optional_duration<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

impl Mix {
    /// # Errors
    /// What is wrong with it, with its line where that is known.
    pub fn parse(text: &str) -> anyhow::Result<Mix> {
        let mix: Mix = toml::from_str(text)?;
        mix.check()?;
        Ok(mix)
    }

    /// Flags count more than the file.
    ///
    /// # Errors
    /// If a flag has no sense.
    pub fn change(&mut self, arguments: &LoadArguments) -> anyhow::Result<()> {
        self.terminals = arguments.terminals.unwrap_or(self.terminals);
        if arguments.transactions.is_some() || arguments.duration.is_some() {
            (self.transactions, self.duration) = (arguments.transactions, arguments.duration);
        }
        self.rate = arguments.rate.or(self.rate);
        self.seed = arguments.seed.unwrap_or(self.seed);
        if let Some(database) = &arguments.database {
            self.database.clone_from(database);
        }
        if let Some(user) = &arguments.user {
            self.user.clone_from(user);
        }
        self.check()
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=TERMINALS_MAX).contains(&self.terminals), "terminals must be from 1 to {TERMINALS_MAX}");
        ensure!((1..=PIPELINE_MAX).contains(&self.pipeline), "pipeline must be from 1 to {PIPELINE_MAX}");
        ensure!(self.transactions != Some(0), "transactions must be above 0");
        ensure!(self.duration.is_none_or(|duration| !duration.is_zero()), "duration must be above 0");
        ensure!(!self.transactions_of.is_empty(), "there is no [[transaction]]");
        ensure!(self.transactions_of.iter().any(|one| one.weight > 0), "all transactions have the weight 0");
        let is_rate = |rate| rate > 0.0 && rate < RATE_END;
        ensure!(self.rate.is_none_or(is_rate), "rate must be above 0 and below {RATE_END}");
        if self.rate.is_some() && !self.think_time.is_zero() {
            bail!("think_time (a closed loop) and rate (an open one) exclude each other");
        }
        for Transaction { name, arguments, .. } in &self.transactions_of {
            for argument in arguments {
                let (from, to) = match argument {
                    Argument::Uniform([from, to]) | Argument::Zipf([from, to]) => (*from, *to),
                    Argument::NonUniform { a, from, to } if *a >= 0 => (*from, *to),
                    Argument::NonUniform { .. } => bail!("{name}: a of non_uniform must be at least 0"),
                    _ => continue,
                };
                ensure!(from <= to, "{name}: {from} to {to} is empty");
            }
        }
        for Check { name, over, expect, same_as, .. } in &self.checks {
            if let Some([from, to]) = over {
                ensure!(from <= to, "{name}: {from} to {to} is empty");
            }
            ensure!(expect.is_none() || same_as.is_none(), "{name}: expect and same_as exclude each other");
        }
        Ok(())
    }

    /// How many transactions are counted, at most.
    pub fn limit(&self) -> Option<u64> {
        self.transactions.or(if self.duration.is_none() { Some(3000) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        format!("{:#}", Mix::parse(text).expect_err("wrong"))
    }

    #[test]
    fn the_mixes_that_are_shipped_are_right() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/mixes");
        let mut count = 0;
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            Mix::parse(&std::fs::read_to_string(&path).expect("text")).unwrap_or_else(|e| panic!("{path:?}: {e:#}"));
            count += 1;
        }
        assert!(count > 0);
    }

    #[test]
    fn mistakes_have_clear_messages() {
        assert!(refusal("").contains("missing field `transaction`"));
        let one = "[[transaction]]\nname = \"a\"\nsql = \"SELECT f($1)\"\n";
        assert!(refusal(&format!("terminals = 0\n{one}")).contains("terminals must be from 1 to 20000"));
        assert!(refusal(&format!("pipeline = 65\n{one}")).contains("pipeline must be from 1 to 64"));
        assert!(refusal(&format!("think_time = \"often\"\n{one}")).contains("\"often\" is not a time"));
        assert!(refusal(&format!("rate = 1e9\n{one}")).contains("rate must be above 0 and below 10000000"));
        assert!(refusal(&format!("rate = 5.0\nthink_time = \"1s\"\n{one}")).contains("exclude each other"));
        assert!(refusal(&format!("color = 1\n{one}")).contains("unknown field `color`"));
        assert!(refusal(&format!("{one}arguments = [{{ uniform = [2, 1] }}]")).contains("2 to 1 is empty"));
        assert!(refusal(&format!("{one}weight = 0")).contains("weight 0"));
        let check = format!("{one}[[check]]\nname = \"c\"\nsql = \"SELECT f($1)\"\n");
        assert!(refusal(&format!("{check}over = [2, 1]")).contains("c: 2 to 1 is empty"));
        assert!(refusal(&format!("{check}expect = \"1\"\nsame_as = \"a\"")).contains("exclude each other"));
    }
}
