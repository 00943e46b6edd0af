//! The result, as text and as JSON.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::check::{NotAsked, Outcome};
use super::measure::{Measured, OfTransaction};
use super::mix::Mix;

const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

pub struct Report<'a> {
    pub mix: &'a Mix,
    pub measured: &'a Measured,
    pub checks: &'a [Outcome],
}

fn micros(latencies: &Histogram<u64>) -> Vec<u64> {
    PERCENTILES.iter().map(|percentile| latencies.value_at_percentile(*percentile)).collect()
}

fn loop_of(mix: &Mix) -> String {
    match mix.rate {
        Some(rate) => format!("an open loop of {rate} a second"),
        None if mix.think_time.is_zero() => "no time to think".to_owned(),
        None => format!("{:?} to think on average", mix.think_time),
    }
}

impl Report<'_> {
    pub fn json(&self) -> Value {
        let of = |name: &str, one: &OfTransaction| {
            let errors: serde_json::Map<_, _> =
                one.errors.iter().map(|(code, (count, _))| (code.clone(), json!(count))).collect();
            json!({
                "name": name,
                "done": one.done(),
                "not_begun": one.not_begun,
                "mean_micros": one.latencies.mean(),
                "percentiles_micros": percentiles(&one.latencies),
                "errors": errors,
                "retries": one.retries,
            })
        };
        let names = self.mix.transactions_of.iter().map(|one| one.name.as_str());
        let transactions: Vec<Value> =
            names.zip(&self.measured.transactions).map(|(name, one)| of(name, one)).collect();
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| {
                let found = check.found.as_ref();
                json!({
                    "name": check.name,
                    "right": check.is_right(),
                    "expected": check.expected,
                    "found": found.ok(),
                    "error": found.err().map(NotAsked::why),
                })
            })
            .collect();
        json!({
            "terminals": self.mix.terminals,
            "seconds": self.measured.time.as_secs_f64(),
            "transactions_a_second": self.measured.rate(),
            "not_begun": self.measured.sum(|one| one.not_begun),
            "percentiles_micros": percentiles(&self.measured.all()),
            "transactions": transactions,
            "checks": checks,
            "by_second": self.measured.seconds,
        })
    }
}

fn percentiles(latencies: &Histogram<u64>) -> Value {
    let named = PERCENTILES.iter().zip(micros(latencies)).map(|(name, value)| (name.to_string(), json!(value)));
    Value::Object(named.collect())
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { mix, measured, checks } = self;
        let (count, not_begun) = (measured.sum(OfTransaction::done), measured.sum(|one| one.not_begun));
        let (seconds, rate) = (measured.time.as_secs_f64(), measured.rate());
        writeln!(f, "{count} transactions in {seconds:.2} s: {rate:.0} a second")?;
        if not_begun > 0 {
            writeln!(f, "{not_begun} more were due and had not begun; latencies include how long they had waited")?;
        }
        writeln!(f, "{} terminals, {}, seed {}", mix.terminals, loop_of(mix), mix.seed)?;
        writeln!(f, "\n{:<20} {:>9} {:>7} {:>7}   latency in ms", "transaction", "done", "errors", "again")?;
        writeln!(f, "{:<46}   {:>8} {:>8} {:>8} {:>8} {:>8}", "", "50 %", "90 %", "99 %", "99.9 %", "most")?;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, latencies: &Histogram<u64>, counts: [u64; 3]| {
            let [done, failed, retries] = counts;
            write!(f, "{name:<20} {done:>9} {failed:>7} {retries:>7}  ")?;
            micros(latencies).iter().try_for_each(|value| write!(f, " {:>8.3}", *value as f64 / 1000.0))?;
            writeln!(f)
        };
        for (of, one) in mix.transactions_of.iter().zip(&measured.transactions) {
            line(f, &of.name, &one.latencies, [one.done(), one.failed(), one.retries])?;
        }
        let (failed, retries) = (measured.sum(OfTransaction::failed), measured.sum(|one| one.retries));
        line(f, "all", &measured.all(), [count, failed, retries])?;
        for (of, one) in mix.transactions_of.iter().zip(&measured.transactions) {
            for (code, (count, message)) in &one.errors {
                writeln!(f, "{count} times {} failed with {code}: {message}", of.name)?;
            }
        }
        for check in *checks {
            let show = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".into());
            write!(f, "check {}: ", check.name)?;
            match &check.found {
                Ok(found) if check.is_right() => writeln!(f, "right ({})", show(found))?,
                Ok(found) => writeln!(f, "WRONG: {} in place of {}", show(found), show(&check.expected))?,
                Err(NotAsked::Refused(why)) => writeln!(f, "REFUSED: {why}")?,
                Err(NotAsked::Failed(why)) => writeln!(f, "FAILED: {why}")?,
            }
        }
        Ok(())
    }
}
