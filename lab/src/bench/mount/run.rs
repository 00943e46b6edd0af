//! One run of one contender: a fresh server, a fresh mount, the work, the number.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::{Source, mount, server_of};
use super::tree::Repository;
use super::workload::{LINK_DELAY, LINK_RATE, Setup, TRANSFER_BYTES, Work, Workload};
use crate::bench::contender::{Contender, Export, Peer, Server};
use crate::bench::fixture::{Fixture, MIB};
use crate::bench::nfs::Libnfs;
use crate::bench::sample::Sample;
use crate::bench::slow_disk::SlowDisks;
use crate::measure::link::DelayedLink;
use crate::measure::load::{Endpoint, Length, Load, Operation, Order, Stability, Stop, Target, drive, warm};
use crate::measure::mounted::Mounted;
use crate::measure::process::Interrupted;
use crate::measure::spread::XorShift;

/// What is read, also by the load driver.
const FILE: &str = "load-0-0";

const WRITTEN: &str = "written";

const TREE: &str = "tree";

/// Of a read at random. Bytes.
const RANDOM_BYTES: usize = 4096;

/// Of a small read in order. Bytes.
const SMALL_BYTES: usize = 8192;

/// For a written file to arrive after its closing.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub file_bytes: u64,
    /// Of it, for reads of what is cached.
    pub cached_bytes: u64,
    pub seconds: u64,
    /// Of the tree.
    pub sources: u32,
}

pub struct Stage {
    // Must be unmounted before their parent directory is removed: fields are dropped in this order.
    disks: SlowDisks,
    /// What is served: to be read, and to be written.
    files: PathBuf,
    repository: Option<Repository>,
    libnfs: Option<Libnfs>,
    awase: PathBuf,
    scale: Scale,
    fixture: Fixture,
}

impl Stage {
    /// Makes the files below `directory`, which must lie on a disk. `awase`: the program.
    pub fn new(directory: &Path, awase: &Path, scale: Scale, interrupted: &Interrupted) -> Result<Stage> {
        let fixture = Fixture::new(directory, awase, interrupted)?;
        let files = fixture.directory().join("files");
        fs::create_dir(&files)?;
        write(&files.join(FILE), scale.file_bytes)?;
        let awase = fs::canonicalize(awase)?;
        Ok(Stage { disks: SlowDisks::default(), files, repository: None, libnfs: None, awase, scale, fixture })
    }

    pub fn directory(&self) -> &Path {
        self.fixture.directory()
    }

    /// Measures one contender once.
    pub fn measure(&mut self, workload: &Workload, contender: &Contender) -> Result<Sample> {
        if workload.setup.work == Work::Tree && self.repository.is_none() {
            self.repository = Some(Repository::new(&self.directory().join("repository"), self.scale.sources)?);
        }
        if contender.peer == Peer::Libnfs && self.libnfs.is_none() {
            self.libnfs = Some(Libnfs::new(self.directory())?);
        }
        let (place, setup) = (self.fixture.place()?, &workload.setup);
        let directory = &self.served(setup)?;
        if setup.work.writes() {
            fs::create_dir(directory)?;
        } else {
            std::io::copy(&mut File::open(directory.join(FILE))?, &mut std::io::sink())?;
        }
        // What an earlier run left to be written is not part of this one.
        rustix::fs::sync();
        let export = Export::Directory { path: directory, group: 1 };
        let sample = match server_of(contender) {
            None => self.on_mount(contender, (setup, directory), None, place.path()),
            Some(of) => self.fixture.with_server(&of, export, place.path(), |server| {
                let endpoint = endpoint(server)?;
                if !setup.work.writes() {
                    let read = Load { file_bytes: self.scale.file_bytes, ..Load::new(READ, 1024, 8) };
                    warm(endpoint, &read, &Stop::when(&self.fixture.interrupted))?;
                }
                let link =
                    setup.is_slow.then(|| DelayedLink::new(endpoint.nfs, LINK_DELAY, Some(LINK_RATE))).transpose()?;
                let nfs = link.as_ref().map_or(endpoint.nfs, DelayedLink::address);
                let reached = Endpoint { nfs, ..endpoint.clone() };
                match contender.peer {
                    Peer::Driver | Peer::Libnfs => self.unmounted(contender, setup, &reached, place.path()),
                    _ => self.on_mount(contender, (setup, directory), Some(&reached), place.path()),
                }
            }),
        };
        if setup.work.writes() {
            fs::remove_dir_all(directory)?;
        }
        sample
    }

    /// The directory that is served; if it is written, there is none yet.
    fn served(&mut self, setup: &Setup) -> Result<PathBuf> {
        if !setup.work.writes() {
            return Ok(self.files.clone());
        }
        let disk = self.disks.directory(setup.disk, self.fixture.directory(), self.fixture.directory())?;
        Ok(disk.join("written"))
    }

    /// A client that needs no mount.
    fn unmounted(&self, contender: &Contender, setup: &Setup, at: &Endpoint, place: &Path) -> Result<Sample> {
        let request_kib = if setup.work == Work::ReadSmall { 32 } else { 1024 };
        let of = |operation| Load {
            file_bytes: self.scale.file_bytes,
            ..Load::new(operation, request_kib, contender.in_flight.unwrap_or(8))
        };
        let duration = Duration::from_secs(self.scale.seconds);
        let (load, length) = match setup.work {
            Work::Read => (of(READ), Length::OnePass),
            Work::ReadSmall => (of(READ), Length::For { warm: Duration::ZERO, measured: duration }),
            Work::Write => {
                let extend = Operation::Extend(Stability::Unstable { commit_bytes: u64::MAX });
                (of(extend), Length::OnePass)
            }
            work => bail!("{work:?} needs a mount"),
        };
        let interrupted = &self.fixture.interrupted;
        if contender.peer == Peer::Libnfs {
            let libnfs = self.libnfs.as_ref().context("the client on libnfs is not compiled")?;
            let report = libnfs.drive(at, &load, duration, place, interrupted)?;
            let bytes = report.requests as f64 * f64::from(load.request_bytes);
            return Ok(Sample::bare(bytes / report.seconds / MIB));
        }
        let outcome = drive(&Target::Nfs(at.clone()), &load, length, &Stop::when(interrupted))?;
        Ok(Sample::bare(outcome.bytes_a_second() / MIB))
    }

    fn on_mount(
        &self,
        contender: &Contender,
        (setup, directory): (&Setup, &Path),
        endpoint: Option<&Endpoint>,
        place: &Path,
    ) -> Result<Sample> {
        let source = Source { directory, awase: &self.awase, endpoint, place };
        let mounted = mount(contender, &source, &self.fixture.interrupted)?;
        let sample = self.work(setup.work, directory, &mounted)?;
        mounted.end()?;
        Ok(sample)
    }

    fn work(&self, work: Work, served: &Path, mounted: &Mounted) -> Result<Sample> {
        let at = mounted.directory();
        let file = at.join(FILE);
        let cpu = || mounted.process()?.cpu();
        let (before, cached, duration) = (cpu()?, self.scale.cached_bytes, Duration::from_secs(self.scale.seconds));
        // The number, and the units of work.
        let (value, count) = match work {
            Work::Read => {
                let (bytes, took) = read(&file, TRANSFER_BYTES, Duration::MAX)?;
                ensure!(bytes == self.scale.file_bytes, "it has read {bytes} bytes");
                (bytes as f64 / MIB / took.as_secs_f64(), bytes as f64 / MIB)
            }
            Work::ReadSmall => {
                let (bytes, took) = read(&file, SMALL_BYTES, duration)?;
                (bytes as f64 / MIB / took.as_secs_f64(), bytes as f64 / MIB)
            }
            Work::Write => {
                let (bytes, start) = (self.scale.file_bytes, Instant::now());
                write(&at.join(WRITTEN), bytes)?;
                self.arrived(&served.join(WRITTEN), bytes)?;
                (bytes as f64 / MIB / start.elapsed().as_secs_f64(), bytes as f64 / MIB)
            }
            Work::ReadCached => {
                let (requests, took) = read_cached(&file, cached, duration)?;
                (requests as f64 / took.as_secs_f64(), requests as f64)
            }
            Work::Tree => {
                let repository = self.repository.as_ref().context("the repository is not made")?;
                (repository.clone_and_build(&at.join(TREE))?.as_secs_f64(), 1.0)
            }
        };
        Ok(Sample { cpu_us: Some((cpu()? - before).as_secs_f64() * 1e6 / count), ..Sample::bare(value) })
    }

    /// Waits until the served directory has a file.
    fn arrived(&self, path: &Path, bytes: u64) -> Result<()> {
        let start = Instant::now();
        while !fs::metadata(path).is_ok_and(|found| found.len() == bytes) {
            ensure!(start.elapsed() < ARRIVAL_TIMEOUT, "{} has not arrived", path.display());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

const READ: Operation = Operation::Read(Order::Sequential);

fn endpoint(server: Option<&Server>) -> Result<&Endpoint> {
    match server.map(|server| &server.target) {
        Some(Target::Nfs(endpoint)) => Ok(endpoint),
        _ => bail!("it needs a server of a directory"),
    }
}

/// Writes a new file, in order, and makes it durable.
fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut random = XorShift(XorShift::SEED ^ bytes);
    let mut buffer = vec![0; TRANSFER_BYTES];
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&random.number().to_le_bytes());
    }
    let mut file = File::create_new(path).with_context(|| path.display().to_string())?;
    for _ in 0..bytes / TRANSFER_BYTES as u64 {
        file.write_all(&buffer).with_context(|| path.display().to_string())?;
    }
    file.sync_all().with_context(|| path.display().to_string())
}

/// Reads a file in order, to its end or for `duration`. Returns how much, and how long it took.
fn read(path: &Path, request_bytes: usize, duration: Duration) -> Result<(u64, Duration)> {
    let start = Instant::now();
    let (mut file, mut buffer, mut all) = (File::open(path)?, vec![0; request_bytes], 0);
    while start.elapsed() < duration {
        match file.read(&mut buffer)? {
            0 => break,
            bytes => all += bytes as u64,
        }
    }
    Ok((all, start.elapsed()))
}

/// Reads the beginning of a file, and then at random in it. Returns how many requests, and how long they took.
fn read_cached(path: &Path, cached_bytes: u64, duration: Duration) -> Result<(u64, Duration)> {
    let file = File::open(path)?;
    std::io::copy(&mut (&file).take(cached_bytes), &mut std::io::sink())?;
    let (mut random, mut buffer, mut requests) = (XorShift(XorShift::SEED), [0; RANDOM_BYTES], 0);
    let blocks = cached_bytes / RANDOM_BYTES as u64;
    let start = Instant::now();
    while start.elapsed() < duration {
        file.read_exact_at(&mut buffer, random.number() % blocks * RANDOM_BYTES as u64)?;
        requests += 1;
    }
    Ok((requests, start.elapsed()))
}
