//! One run of one workload on one server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::guest;
use super::libnfs::Libnfs;
use super::names;
use super::workload::{Cache, Client, LINK_DELAY, Link, Measure, Setup, Tree, Workload};
use crate::bench::contender::{Contender, Export, Peer, Server};
use crate::bench::fixture::{Fixture, MIB, forget};
use crate::bench::sample::{Sample, Unit};
use crate::bench::slow_disk::SlowDisks;
use crate::measure::link::DelayedLink;
use crate::measure::load::{Endpoint, Length, Load, Operation, Outcome, Stability, Stop, Target, drive, prepare, warm};
use crate::measure::process::{Interrupted, Process};

/// The directories that servers export.
pub struct Directories {
    // Must be unmounted before its parent directory is removed: fields are dropped in this order.
    disks: SlowDisks,
    local: PathBuf,
    /// Compiled on first use.
    libnfs: Option<Libnfs>,
    fixture: Fixture,
}

impl Directories {
    /// Makes them below `directory`, which must lie on a disk. `awase`: the program.
    pub fn new(directory: &Path, awase: &Path, interrupted: &Interrupted) -> Result<Directories> {
        let fixture = Fixture::new(directory, awase, interrupted)?;
        let local = fixture.directory().join("files");
        fs::create_dir(&local)?;
        Ok(Directories { disks: SlowDisks::default(), local, libnfs: None, fixture })
    }

    pub fn directory(&self) -> &Path {
        self.fixture.directory()
    }

    /// Measures one contender once. Each run has a fresh server, through which its files are made.
    pub fn measure(&mut self, workload: &Workload, contender: &Contender, duration: Duration) -> Result<Sample> {
        let (unit, setup) =
            (workload.subject.unit, &Setup { load: workload.setup.load_for(contender), ..workload.setup });
        let directory = &self.disks.directory(setup.disk, self.fixture.directory(), &self.local)?;
        if setup.client == Client::Libnfs && self.libnfs.is_none() {
            self.libnfs = Some(Libnfs::new(self.fixture.directory())?);
        }
        clear(directory)?;
        let sample = self.on(directory, unit, setup, contender, duration);
        clear(directory)?;
        sample
    }

    fn on(
        &self,
        directory: &Path,
        unit: Unit,
        setup: &Setup,
        contender: &Contender,
        duration: Duration,
    ) -> Result<Sample> {
        if contender.peer == Peer::Raw {
            return names::create_remove(&setup.load, directory, duration).map(Sample::bare);
        }
        let _synchronous = match contender.peer {
            Peer::GaneshaOnSynchronousDirectory => Some(SynchronousDirectory::new(directory)?),
            _ => None,
        };
        let interrupted = &self.fixture.interrupted;
        let (place, export) =
            (self.fixture.place()?, Export::Directory { path: directory, group: stable_together(&setup.load) });
        let prepared = |server: &Server| prepare(endpoint(server)?, &setup.load, &Stop::when(interrupted));
        let measured = |server: &Server| {
            let link = Reached::new(endpoint(server)?, setup.link)?;
            match setup.client {
                Client::Own => {
                    Ok(measure(&link.endpoint, Some(&server.process), unit, setup, duration, interrupted)?.0)
                }
                _ => self.by_others(server, unit, setup, duration, place.path()),
            }
        };
        let with_server = |work: &dyn Fn(&Server) -> Result<Sample>| {
            let work = |server: Option<&Server>| work(server.context("this needs a server")?);
            self.fixture.with_server(contender, export, place.path(), work)
        };
        if setup.cache != Cache::Cold {
            return with_server(&|server| prepared(server).and_then(|()| measured(server)));
        }
        with_server(&|server| prepared(server).map(|()| Sample::bare(0.0)))?;
        forget_all(directory)?;
        with_server(&measured)
    }

    /// Measures a load by a client that others wrote. `place`: the server's.
    fn by_others(
        &self,
        server: &Server,
        unit: Unit,
        setup: &Setup,
        duration: Duration,
        place: &Path,
    ) -> Result<Sample> {
        let (endpoint, interrupted) = (endpoint(server)?, &self.fixture.interrupted);
        if setup.cache == Cache::Warm {
            warm(endpoint, &setup.load, &Stop::when(interrupted))?;
        }
        let libnfs = || self.libnfs.as_ref().context("the clients on libnfs are not compiled");
        let in_flight = setup.load.in_flight;
        if (setup.client, setup.measure) == (Client::Libnfs, Measure::Tree(Tree::Remove)) {
            libnfs()?.tree(endpoint, Tree::Make, setup.tree_files(), in_flight, place, interrupted)?;
        }
        let before = server.process.cpu()?;
        let (requests, seconds, latency_us) = match (setup.client, setup.measure) {
            (Client::Guest, _) => {
                // Beside the directory of this run, so that the next one finds it.
                let cache = self.fixture.directory().with_file_name("guest");
                let (requests, seconds) = guest::drive(endpoint, guest::work(setup)?, place, &cache, interrupted)?;
                (requests, seconds, None)
            }
            (_, Measure::Tree(tree)) => {
                let files = setup.tree_files();
                let seconds = libnfs()?.tree(endpoint, tree, files, in_flight, place, interrupted)?;
                (files.into(), seconds, None)
            }
            _ => {
                let report = libnfs()?.drive(endpoint, &setup.load, duration, place, interrupted)?;
                (report.requests, report.seconds, Some(report.latency_us))
            }
        };
        let cpu = server.process.cpu()? - before;
        let rate = requests as f64 / seconds;
        let value = match unit {
            Unit::MibASecond => rate * f64::from(setup.load.request_bytes) / MIB,
            _ => rate,
        };
        Ok(Sample { value, cpu_us: Some(cpu.as_secs_f64() * 1e6 / requests as f64), latency_us })
    }
}

/// Stable writes that a load has in flight.
fn stable_together(load: &Load) -> u32 {
    match load.operation {
        Operation::Overwrite(_, Stability::FileSync) | Operation::Extend(Stability::FileSync) => {
            load.in_flight * load.connections
        }
        _ => 1,
    }
}

fn endpoint(server: &Server) -> Result<&Endpoint> {
    match &server.target {
        Target::Nfs(endpoint) => Ok(endpoint),
        Target::Nbd { .. } => bail!("it exports no directory"),
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
            Link::Delayed => Some(DelayedLink::new(endpoint.nfs, LINK_DELAY, None)?),
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
    unit: Unit,
    setup: &Setup,
    duration: Duration,
    interrupted: &Interrupted,
) -> Result<(Sample, Outcome)> {
    let load = &setup.load;
    let stop = Stop::when(interrupted);
    if setup.cache == Cache::Warm {
        warm(endpoint, load, &stop)?;
    }
    let length = match setup.cache {
        Cache::Cold => Length::OnePass,
        _ => Length::For { warm: Duration::ZERO, measured: duration },
    };
    let before = process.map(Process::cpu).transpose()?;
    let outcome = drive(&Target::Nfs(endpoint.clone()), load, length, &stop)?;
    let after = process.map(Process::cpu).transpose()?;
    let cpu_us =
        before.zip(after).map(|(before, after)| (after - before).as_secs_f64() * 1e6 / outcome.requests.max(1) as f64);
    let value = match (setup.measure, unit) {
        (Measure::Memory, _) => {
            process.context("memory is measured of servers that are started here")?.peak_resident_bytes()? as f64 / MIB
        }
        (Measure::Load, Unit::MibASecond) => outcome.bytes_a_second() / MIB,
        (Measure::Load | Measure::Tree(_), _) => outcome.rate(),
    };
    let latency_us = Some((outcome.latencies.percentile_us(50.0), outcome.latencies.percentile_us(99.0)));
    Ok((Sample { value, cpu_us, latency_us }, outcome))
}

/// Removes all in a directory but ext4's `lost+found`.
fn clear(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        } else if entry.file_name() != "lost+found" {
            fs::remove_dir_all(entry.path())?;
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
