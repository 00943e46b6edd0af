//! fio: its jobs and its report.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::measure::load::{Operation, Order, Stability};
use crate::measure::process::{Interrupted, Process};

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// Until every block of the region was used once.
    OnePass,
    /// The duration given on the command line.
    #[default]
    AsGiven,
    /// The duration given on the command line, or less when every block of the region was used once.
    AsGivenOnce,
    /// Seconds, whatever the command line says: a shorter job would show nothing.
    Seconds(u32),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub operation: Operation,
    /// KiB of a request.
    pub kib: u32,
    /// Requests in flight on each connection.
    pub in_flight: u32,
    #[serde(default = "one")]
    pub connections: u32,
    /// The part of the image that the job uses: first and end, in percent.
    #[serde(default = "all")]
    pub region: (u64, u64),
    /// Limit in MiB/s; 0 for none.
    #[serde(default)]
    pub rate_mib: u32,
    #[serde(default)]
    pub length: Length,
    /// As many reads as writes, in place of the operation's.
    #[serde(default)]
    pub is_mixed: bool,
}

fn one() -> u32 {
    1
}

fn all() -> (u64, u64) {
    (0, 100)
}

impl Job {
    fn arguments(&self, name: &str, bytes: u64, seconds: u32) -> Result<Vec<String>> {
        let (first, end) = self.region;
        // Regions begin at whole MiB, so that no block straddles two.
        let at = |percent: u64| (bytes / 100 * percent) >> 20 << 20;
        let end = if end == 100 { bytes } else { at(end) };
        let (pattern, writes_a_flush) = match self.operation {
            // Random: each block once.
            Operation::Read(Order::Random) => ("randread", 0),
            Operation::Read(Order::Sequential) => ("read", 0),
            Operation::Overwrite(Order::Random, Stability::Flushed { writes }) => ("randwrite", writes),
            Operation::Overwrite(Order::Sequential, Stability::Flushed { writes }) => ("write", writes),
            other => bail!("fio has no job for {other:?}"),
        };
        let pattern = if self.is_mixed { "randrw" } else { pattern };
        let mut arguments = vec![
            format!("--name={name}"),
            format!("--rw={pattern}"),
            format!("--bs={}k", self.kib),
            format!("--iodepth={}", self.in_flight),
            format!("--numjobs={}", self.connections),
            format!("--offset={}", at(first)),
            format!("--size={}", end - at(first)),
        ];
        if writes_a_flush > 0 {
            arguments.push(format!("--fsync={writes_a_flush}"));
        }
        if self.rate_mib > 0 {
            arguments.push(format!("--rate={}m", self.rate_mib));
        }
        let Some(seconds) = self.seconds(seconds) else { return Ok(arguments) };
        arguments.push(format!("--runtime={seconds}"));
        if self.length != Length::AsGivenOnce {
            arguments.push("--time_based".into());
        }
        Ok(arguments)
    }

    /// How long it goes on, if a time ends it.
    fn seconds(&self, given: u32) -> Option<u32> {
        match self.length {
            Length::OnePass => None,
            Length::AsGiven | Length::AsGivenOnce => Some(given),
            Length::Seconds(own) => Some(own),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// The file itself, bypassing the host's page cache.
    File(&'a Path),
    Uri(&'a str),
}

/// Concurrent jobs; only the first is reported.
pub struct Run<'a> {
    pub jobs: &'a [Job],
    pub target: Target<'a>,
    pub bytes: u64,
    /// Duration of jobs that do not set their own.
    pub seconds: u32,
    /// The log file.
    pub log: &'a Path,
}

/// What the first job reported, and the requests of all jobs. Latencies are those of reads, if there are any.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Requests a second, reads and writes together.
    pub rate: f64,
    pub bytes_a_second: f64,
    /// Mean latency, microseconds.
    pub mean_us: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency, microseconds.
    pub p999_us: f64,
    /// Requests of all jobs, without flushes.
    pub requests: u64,
}

impl Run<'_> {
    /// Runs fio to its end and reads the report.
    pub fn run(&self, interrupted: &Interrupted) -> Result<Report> {
        let mut command = Command::new("fio");
        command.args(["--output-format=json", "--group_reporting", "--thread"]);
        match self.target {
            Target::File(path) => {
                command.args(["--ioengine=io_uring", "--direct=1"]).arg(format!("--filename={}", path.display()))
            }
            Target::Uri(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        };
        for (index, job) in self.jobs.iter().enumerate() {
            if index > 0 {
                command.arg("--new_group");
            }
            command.args(job.arguments(&format!("job{index}"), self.bytes, self.seconds)?);
        }
        let most = |job: &Job| job.seconds(self.seconds).map_or(600, |seconds| seconds + 120);
        let timeout = self.jobs.iter().map(most).max().unwrap_or(0);
        parse(&Process::start(command, self.log, interrupted)?.finish(Duration::from_secs(timeout.into()))?)
    }
}

/// The nbd engine prints lines of its own before the report.
fn parse(output: &str) -> Result<Report> {
    let start = if output.starts_with('{') { Some(0) } else { output.find("\n{").map(|at| at + 1) };
    let json = &output[start.with_context(|| format!("fio printed no report: {output}"))?..];
    // Some versions of fio print after the report, too.
    let report = serde_json::Deserializer::from_str(json).into_iter::<Value>().next().context("an empty report")?;
    let report = report.context("fio's report")?;
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty()).context("fio reports no job")?;
    if let Some(failed) = jobs.iter().find(|job| job["error"].as_i64() != Some(0)) {
        bail!("fio's {} ended with error {}", failed["jobname"], failed["error"]);
    }
    let number = |value: &Value| value.as_f64().with_context(|| format!("fio's report has {value} for a number"));
    let requests = |job: &Value| {
        Ok::<f64, anyhow::Error>(number(&job["read"]["total_ios"])? + number(&job["write"]["total_ios"])?)
    };
    let all = jobs.iter().map(requests).sum::<Result<f64>>()?;
    let job = &jobs[0];
    let direction = if number(&job["read"]["total_ios"])? > 0.0 { &job["read"] } else { &job["write"] };
    let micros = |nanos: &Value| Ok::<f64, anyhow::Error>(number(nanos)? / 1000.0);
    let both = |key: &str| Ok::<f64, anyhow::Error>(number(&job["read"][key])? + number(&job["write"][key])?);
    Ok(Report {
        rate: both("iops")?,
        bytes_a_second: both("bw_bytes")?,
        mean_us: micros(&direction["lat_ns"]["mean"])?,
        p50_us: micros(&direction["clat_ns"]["percentile"]["50.000000"])?,
        p99_us: micros(&direction["clat_ns"]["percentile"]["99.000000"])?,
        p999_us: micros(&direction["clat_ns"]["percentile"]["99.900000"])?,
        requests: all as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(total: u64, iops: f64) -> String {
        format!(
            r#"{{"total_ios":{total},"iops":{iops},"bw_bytes":4096,"lat_ns":{{"mean":2500.0}},
            "clat_ns":{{"percentile":{{"50.000000":2000,"99.000000":9000,"99.900000":9500}}}}}}"#
        )
    }

    fn report(jobs: &[String]) -> String {
        format!("fio: connected to NBD server\n{{\n\"jobs\": [{}]\n}}\nand more\n", jobs.join(","))
    }

    #[test]
    fn the_first_job_is_reported_and_all_requests_are_counted() {
        let none = r#"{"total_ios":0,"iops":0.0,"bw_bytes":0}"#;
        let reader = format!(r#"{{"jobname":"a","error":0,"read":{},"write":{none}}}"#, direction(10, 5.0));
        let writer = format!(r#"{{"jobname":"b","error":0,"read":{none},"write":{}}}"#, direction(7, 3.0));
        let read = parse(&report(&[reader.clone(), writer.clone()])).unwrap();
        assert_eq!((read.rate, read.requests, read.mean_us), (5.0, 17, 2.5));
        assert_eq!((read.p50_us, read.p99_us, read.p999_us), (2.0, 9.0, 9.5));
        assert_eq!(parse(&report(&[writer, reader])).unwrap().rate, 3.0);
    }

    #[test]
    fn reads_and_writes_of_a_mixed_job_count_together() {
        let mixed =
            format!(r#"{{"jobname":"a","error":0,"read":{},"write":{}}}"#, direction(10, 5.0), direction(7, 3.0));
        let mixed = parse(&report(&[mixed])).unwrap();
        assert_eq!((mixed.rate, mixed.bytes_a_second, mixed.requests), (8.0, 8192.0, 17));
    }

    #[test]
    fn a_failed_job_is_an_error() {
        let job = format!(r#"{{"jobname":"a","error":5,"read":{0},"write":{0}}}"#, direction(1, 1.0));
        assert!(parse(&report(&[job])).unwrap_err().to_string().contains("error 5"));
        assert!(parse("fio: nbd_connect_uri: Connection refused\n").is_err());
    }

    #[test]
    fn regions_of_jobs_do_not_overlap_and_end_with_the_image() {
        let job = "operation = { read = 'sequential' }\nkib = 4\nin_flight = 1";
        let job: Job = toml::from_str(job).unwrap();
        let bytes = 1000 << 20;
        let [lower, upper] = [(0, 25), (25, 100)].map(|region| Job { region, ..job }.arguments("a", bytes, 1).unwrap());
        assert!(lower.contains(&format!("--size={}", 250 << 20)));
        assert!(upper.contains(&format!("--offset={}", 250 << 20)) && upper.contains(&format!("--size={}", 750 << 20)));
    }
}
