//! Clients that others wrote: a load, and trees of small files, by libnfs's asynchronous calls. The programs are `libnfs.c`
//! and `tree.c` beside this file, which are compiled when they are first needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::workload::Tree;
use crate::measure::load::{Endpoint, Load, Operation, Order, Stability};
use crate::measure::process::{Interrupted, Process};

const SOURCES: [(&str, &str); 2] = [("libnfs", include_str!("libnfs.c")), ("tree", include_str!("tree.c"))];

const PACKAGES: &str = "the client on libnfs needs: sudo apt-get install gcc libnfs-dev";

/// The client may need so much longer than the load, for what is in flight.
const MARGIN: Duration = Duration::from_secs(120);

/// The directory of the compiled programs.
pub struct Libnfs(PathBuf);

/// What it reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub requests: u64,
    pub seconds: f64,
    /// Median and 99th percentile. Microseconds.
    pub latency_us: (f64, f64),
}

impl Libnfs {
    /// Compiles them in a directory.
    pub fn new(directory: &Path) -> Result<Libnfs> {
        for (name, text) in SOURCES {
            let source = directory.join(name).with_extension("c");
            fs::write(&source, text).with_context(|| source.display().to_string())?;
            let program = directory.join(name);
            let output = Command::new("cc").args(["-O2", "-o"]).arg(program).arg(&source).arg("-lnfs").output();
            let output = output.context(PACKAGES)?;
            ensure!(output.status.success(), "{PACKAGES}\n{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(Libnfs(directory.to_owned()))
    }

    /// Makes or removes a tree of so many files on a server. Returns seconds.
    pub fn tree(
        &self,
        endpoint: &Endpoint,
        tree: Tree,
        files: u32,
        in_flight: u32,
        place: &Path,
        interrupted: &Interrupted,
    ) -> Result<f64> {
        let mut command = Command::new(self.0.join("tree"));
        command.args(url(endpoint)).args([tree.name(), &in_flight.to_string(), &files.to_string()]);
        let output = Process::start(command, &place.join("tree.log"), interrupted)?.finish(MARGIN)?;
        let seconds = output.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        seconds.with_context(|| format!("the client on libnfs printed {output:?}"))
    }

    /// Runs a load on a server, on which its files exist. `place`: where its messages go.
    pub fn drive(
        &self,
        endpoint: &Endpoint,
        load: &Load,
        duration: Duration,
        place: &Path,
        interrupted: &Interrupted,
    ) -> Result<Report> {
        let mut command = Command::new(self.0.join("libnfs"));
        command.args(arguments(endpoint, load, duration)?);
        let output = Process::start(command, &place.join("libnfs.log"), interrupted)?.finish(duration + MARGIN)?;
        parse(&output).with_context(|| format!("the client on libnfs printed {output:?}"))
    }
}

/// Can it drive such a load?
pub fn operation(load: &Load) -> Result<(&'static str, u64)> {
    ensure!(load.files == 1 && load.from == 0 && !load.shared, "the client on libnfs uses one file a connection");
    Ok(match load.operation {
        Operation::Read(Order::Sequential) => ("read", 0),
        Operation::Read(Order::Random) => ("read_random", 0),
        Operation::Overwrite(Order::Random, Stability::FileSync) => ("write_sync", 0),
        Operation::Extend(Stability::FileSync) => ("extend_sync", 0),
        Operation::Overwrite(Order::Sequential, Stability::Unstable { commit_bytes }) => {
            ("write_unstable", commit_bytes)
        }
        other => bail!("the client on libnfs has no load for {other:?}"),
    })
}

fn arguments(endpoint: &Endpoint, load: &Load, duration: Duration) -> Result<Vec<String>> {
    let (operation, commit_bytes) = operation(load)?;
    let [prefix, suffix] = url(endpoint);
    Ok(vec![
        prefix,
        suffix,
        operation.into(),
        load.in_flight.to_string(),
        load.connections.to_string(),
        load.request_bytes.to_string(),
        load.file_bytes.to_string(),
        commit_bytes.to_string(),
        duration.as_secs_f64().to_string(),
    ])
}

/// The URL of an export, in front of and behind the path in it.
fn url(endpoint: &Endpoint) -> [String; 2] {
    let Endpoint { nfs, mount, export, uid, gid } = endpoint;
    let (nfs_port, mount_port) = (nfs.port(), mount.port());
    [format!("nfs://{}{export}", nfs.ip()), format!("?nfsport={nfs_port}&mountport={mount_port}&uid={uid}&gid={gid}")]
}

fn parse(output: &str) -> Result<Report> {
    let numbers: Vec<f64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let &[requests, _commits, seconds, half_us, most_us] = &numbers[..] else { bail!("not five numbers") };
    ensure!(requests > 0.0 && seconds > 0.0, "it did nothing");
    Ok(Report { requests: requests as u64, seconds, latency_us: (half_us, most_us) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let report = parse("100 1 2.000000 95.5 2588.5\n").unwrap();
        assert_eq!(report, Report { requests: 100, seconds: 2.0, latency_us: (95.5, 2588.5) });
        assert!(parse("0 0 1 0 0").is_err() && parse("").is_err() && parse("mount: refused").is_err());
    }
}
