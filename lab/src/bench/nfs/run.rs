//! One run of one workload on one server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::delay::DelayedLink;
use super::raw;
use super::server::{Order, Peer, Server};
use super::slow_flush::SlowDisk;
use super::workload::{Cache, Contender, Disk, LINK_DELAY, Link, Measure, SLOW_FLUSH, Workload};
use crate::bench::process::{Interrupted, Process};
use crate::bench::run::forget;
use crate::bench::sample::{Sample, Unit};
use crate::load::files::{prepare, warm};
use crate::load::{Endpoint, Length, Outcome, Stop, Target, drive};

/// Size of the slow disk: room for a file that is overwritten, and for one that grows.
pub const SLOW_BYTES: u64 = 2 << 30;

const MIB: f64 = 1048576.0;

/// The directory of all measurements; removed with its content at the end.
pub struct Stand {
    // Must be unmounted before its parent directory is removed: fields are dropped in this order.
    slow: Option<SlowDisk>,
    awase: PathBuf,
    directory: TempDir,
    here: PathBuf,
    interrupted: Interrupted,
}

impl Stand {
    /// Makes it below `directory`, which must lie on a disk. `awase`: the program.
    pub fn new(directory: &Path, awase: &Path, interrupted: &Interrupted) -> Result<Stand> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let directory = tempfile::Builder::new().prefix("bench-nfs-").tempdir_in(fs::canonicalize(directory)?)?;
        let here = directory.path().join("files");
        fs::create_dir(&here)?;
        Ok(Stand { slow: None, awase: awase.to_owned(), directory, here, interrupted: interrupted.clone() })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory that a workload uses; the slow disk is made on first use.
    fn files(&mut self, disk: Disk) -> Result<&Path> {
        match (disk, &mut self.slow) {
            (Disk::Here, _) => Ok(&self.here),
            (Disk::SlowFlush, Some(slow)) => Ok(slow.directory()),
            (Disk::SlowFlush, none) => {
                let place = self.directory.path().join("slow-disk");
                fs::create_dir(&place)?;
                Ok(none.insert(SlowDisk::new(&place, SLOW_BYTES, SLOW_FLUSH)?).directory())
            }
        }
    }

    /// Measures one server once. Each run has a fresh server, through which its files are made.
    pub fn measure(&mut self, workload: &Workload, contender: &Contender, duration: Duration) -> Result<Sample> {
        let peer = contender.peer;
        let workload = &Workload { load: workload.load_for(contender), ..*workload };
        let place = tempfile::Builder::new().prefix("server-").tempdir_in(self.directory.path())?;
        let interrupted = self.interrupted.clone();
        let awase = self.awase.clone();
        let directory = self.files(workload.disk)?;
        clear(directory)?;
        if peer == Peer::Raw {
            let done = raw::drive(&workload.load, directory, duration);
            clear(directory)?;
            return Ok(Sample::bare(match workload.unit {
                Unit::MibASecond => done?.rate() * f64::from(workload.load.request_bytes) / MIB,
                _ => done?.rate(),
            }));
        }
        let _synchronous = match peer {
            Peer::GaneshaOnSynchronousDirectory => Some(SynchronousDirectory::new(directory)?),
            _ => None,
        };
        let order = Order { awase: &awase, directory, place: place.path() };
        let mut server = Server::start(peer, &order, &interrupted)?;
        let asked = || interrupted.load(Ordering::Relaxed);
        prepare(server.endpoint(), &workload.load, &Stop::when(&asked))?;
        if workload.cache == Cache::Cold {
            server.stop()?;
            forget_all(directory)?;
            server = Server::start(peer, &order, &interrupted)?;
        }
        let link = Reached::new(server.endpoint(), workload.link)?;
        let measured = measure(&link.endpoint, Some(server.process()), workload, duration, &interrupted);
        let measured =
            measured.with_context(|| format!("{} says: {:?}", contender.label, server.process().messages()))?;
        drop(link);
        server.stop()?;
        clear(directory)?;
        Ok(measured.0)
    }
}

/// A directory in which ext4 makes changes of names durable before they return, for the life of this value.
struct SynchronousDirectory(PathBuf);

impl SynchronousDirectory {
    fn new(directory: &Path) -> Result<Self> {
        let directory = SynchronousDirectory(directory.to_owned());
        directory.change("+D").map(|()| directory)
    }

    fn change(&self, attribute: &str) -> Result<()> {
        let status = Command::new("chattr").arg(attribute).arg(&self.0).status().context("cannot start chattr")?;
        ensure!(status.success(), "chattr {attribute} {}: {status}", self.0.display());
        Ok(())
    }
}

impl Drop for SynchronousDirectory {
    fn drop(&mut self) {
        if let Err(error) = self.change("-D") {
            eprintln!("awase-lab: {error:#}");
        }
    }
}

/// A server as clients reach it.
pub struct Reached {
    pub endpoint: Endpoint,
    _link: Option<DelayedLink>,
}

impl Reached {
    /// Puts a link in front of a server. Mounting bypasses it.
    pub fn new(endpoint: &Endpoint, link: Link) -> Result<Reached> {
        let link = match link {
            Link::Loopback => None,
            Link::Delayed => Some(DelayedLink::new(endpoint.nfs, LINK_DELAY)?),
        };
        let nfs = link.as_ref().map_or(endpoint.nfs, DelayedLink::address);
        Ok(Reached { endpoint: Endpoint { nfs, ..endpoint.clone() }, _link: link })
    }
}

/// Measures a workload on a server that answers and whose files exist. Without `process`, the server's processor time
/// and memory are not reported.
pub fn measure(
    endpoint: &Endpoint,
    process: Option<&Process>,
    workload: &Workload,
    duration: Duration,
    interrupted: &Interrupted,
) -> Result<(Sample, Outcome)> {
    let load = &workload.load;
    let asked = || interrupted.load(Ordering::Relaxed);
    let stop = Stop::when(&asked);
    if workload.cache == Cache::Warm {
        warm(endpoint, load, &stop)?;
    }
    let length = match workload.cache {
        Cache::Cold => Length::OnePass,
        _ => Length::For { warm: Duration::ZERO, measured: duration },
    };
    let before = process.map(Process::cpu).transpose()?;
    let outcome = drive(&Target::Nfs(endpoint.clone()), load, length, &stop)?;
    let after = process.map(Process::cpu).transpose()?;
    let cpu_us =
        before.zip(after).map(|(before, after)| (after - before).as_secs_f64() * 1e6 / outcome.requests.max(1) as f64);
    let value = match (workload.measure, workload.unit) {
        (Measure::Memory, _) => {
            process.context("memory is measured of servers that are started here")?.peak_resident_bytes()? as f64 / MIB
        }
        (Measure::Load, Unit::MibASecond) => outcome.bytes_a_second() / MIB,
        (Measure::Load, _) => outcome.rate(),
    };
    let latency_us = Some((outcome.latencies.percentile_us(50.0), outcome.latencies.percentile_us(99.0)));
    Ok((Sample { value, cpu_us, latency_us }, outcome))
}

/// Removes all files of a directory, but not its directories (ext4's `lost+found`).
fn clear(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    File::open(directory)?.sync_all()?;
    Ok(())
}

/// Drops the files of a directory from the host's page cache.
fn forget_all(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            forget(&entry.path())?;
        }
    }
    Ok(())
}
