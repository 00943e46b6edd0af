//! One run of one contender: images, a fresh server, the client, the numbers.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::fio::{Job, Run, Target};
use super::workload::{Cache, Client, Image, Setup, Workload};
use crate::bench::contender::{Contender, Export, Memory, Peer, Server};
use crate::bench::fixture::{Fixture, MIB, forget};
use crate::bench::sample::{Sample, Unit};
use crate::bench::slow_disk::{Disk, SlowDisks};
use crate::measure::load::{self, Operation, Stability};
use crate::measure::process::{Interrupted, Process, unless};
use crate::measure::spread::XorShift;

/// Timeout of nbdcopy and qemu-img.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(600);

/// Request size of `qemu-img bench`.
const QEMU_IMG_BYTES: u64 = 4096;

/// Two sizes of a cache, in MiB: the difference in memory beyond the difference in cache is bookkeeping.
const CACHES_MIB: [u64; 2] = [64, 320];

/// Reads of an image until it counts as cached.
const FILLS_MAX: usize = 10;

/// Sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub large_bytes: u64,
    /// Size of [`Image::Small`] and of the file that is copied in, in bytes.
    pub small_bytes: u64,
    pub seconds: u32,
    pub requests: u64,
}

/// The images, and servers of them.
pub struct Images {
    // Must be unmounted before its parent directory is removed: fields are dropped in this order.
    disks: RefCell<SlowDisks>,
    fixture: Fixture,
    scale: Scale,
}

impl Images {
    /// Makes the images below `directory`, which must lie on a disk.
    pub fn new(directory: &Path, awase: &Path, scale: Scale, interrupted: &Interrupted) -> Result<Images> {
        let images = Images { disks: RefCell::default(), fixture: Fixture::new(directory, awase, interrupted)?, scale };
        for (path, bytes) in [
            (images.image(Image::Large, Disk::Local)?, scale.large_bytes),
            (images.image(Image::Small, Disk::Local)?, scale.small_bytes),
            (images.source(), scale.small_bytes),
        ] {
            images.fill(&path, bytes)?;
        }
        Ok(images)
    }

    pub fn directory(&self) -> &Path {
        self.fixture.directory()
    }

    fn image(&self, image: Image, disk: Disk) -> Result<PathBuf> {
        let name = match image {
            Image::Large => "large.img",
            Image::Small => "small.img",
            Image::Sparse => "sparse.img",
        };
        let directory = self.disks.borrow_mut().directory(disk, self.directory(), self.directory())?;
        Ok(directory.join(name))
    }

    fn source(&self) -> PathBuf {
        self.directory().join("source.img")
    }

    fn bytes(&self, image: Image) -> u64 {
        if image == Image::Large { self.scale.large_bytes } else { self.scale.small_bytes }
    }

    /// Writes an image in which no two blocks are alike, so that nothing can be deduplicated or compressed.
    fn fill(&self, path: &Path, bytes: u64) -> Result<()> {
        let file = || format!("cannot make {} of {} MiB", path.display(), bytes >> 20);
        let mut image = File::create_new(path).with_context(file)?;
        let mut random = XorShift(XorShift::SEED ^ bytes);
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            unless(&self.fixture.interrupted)?;
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&random.number().to_le_bytes());
            }
            image.write_all(&block).with_context(file)?;
        }
        image.sync_all().with_context(file)
    }

    /// Reads the image of a workload once; makes it if it lies on a disk that was not used before. Disks have caches of
    /// their own (a virtual disk's may be the memory of the VM's host), which would answer every contender but the first.
    pub fn warm_disk(&self, setup: &Setup) -> Result<()> {
        if setup.image == Image::Sparse {
            return Ok(());
        }
        let image = self.image(setup.image, setup.disk)?;
        if !image.exists() {
            self.fill(&image, self.bytes(setup.image))?;
        }
        forget(&image)?;
        std::io::copy(&mut File::open(&image)?, &mut std::io::sink())?;
        Ok(())
    }

    pub fn measure(&self, workload: &Workload, contender: &Contender) -> Result<Sample> {
        let unit = workload.subject.unit;
        let Client::Bookkeeping = workload.setup.client else { return self.once(unit, &workload.setup, contender) };
        let resident = |mib| {
            let full = Setup { memory: Memory::Mib(mib), client: Client::FilledMemory, ..workload.setup };
            self.once(unit, &full, contender).map(|sample| sample.value)
        };
        let [small, large] = CACHES_MIB;
        let more = resident(large)? - resident(small)?;
        Ok(Sample::bare((more / (large - small) as f64 - 1.0) * 100.0))
    }

    /// Replaces the sparse image by a new one, of holes only.
    fn renew_sparse(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        file.set_len(self.bytes(Image::Sparse))?;
        Ok(file.sync_all()?)
    }

    /// Measures with one server.
    fn once(&self, unit: Unit, setup: &Setup, contender: &Contender) -> Result<Sample> {
        let (place, image) = (self.fixture.place()?, self.image(setup.image, setup.disk)?);
        let bytes = self.bytes(setup.image);
        if setup.image == Image::Sparse {
            self.renew_sparse(&image)?;
        }
        forget(&image)?;
        let connections = match &setup.client {
            Client::Fio { jobs, .. } => jobs.iter().map(|job| job.connections).sum(),
            Client::PeakMemory(job) => job.connections,
            _ => 1,
        };
        let group = flushed_together(&setup.client);
        let export = Export::Image { path: &image, bytes, memory: setup.memory, connections, group };
        self.fixture.with_server(contender, export, place.path(), |server| {
            Driver { images: self, unit, setup, image: &image, bytes, place: place.path(), server }.run(contender.peer)
        })
    }
}

/// Writes and flushes that a client has in flight, if each write is flushed.
fn flushed_together(client: &Client) -> u32 {
    let Client::Fio { jobs, .. } = client else { return 1 };
    let flushes = |job: &&Job| matches!(job.operation, Operation::Overwrite(_, Stability::Flushed { writes: 1.. }));
    jobs.iter().filter(flushes).map(|job| job.in_flight * job.connections).sum::<u32>().max(1)
}

/// The client of a running server.
struct Driver<'a> {
    images: &'a Images,
    unit: Unit,
    setup: &'a Setup,
    image: &'a Path,
    bytes: u64,
    place: &'a Path,
    server: Option<&'a Server>,
}

impl Driver<'_> {
    fn run(&self, peer: Peer) -> Result<Sample> {
        if self.setup.cache == Cache::Filled {
            match peer {
                Peer::NbdkitMemory => drop(self.nbdcopy(&[&self.image.to_string_lossy(), &self.uri()?])?),
                _ => self.fill()?,
            };
        }
        let mib = |bytes: u64| Ok(Sample::bare(bytes as f64 / MIB));
        match &self.setup.client {
            Client::Fio { before, jobs } => self.fio(before, jobs),
            Client::CopyIn => {
                let source = self.images.source();
                // Read once, so that it is in memory for all contenders.
                std::io::copy(&mut File::open(&source)?, &mut std::io::sink())?;
                self.copy(&["--flush", &source.to_string_lossy(), &self.uri()?])
            }
            Client::CopyOut => self.copy(&[&self.uri()?, "null:"]),
            Client::QemuImg { write } => self.qemu_img(*write),
            Client::IdleMemory => mib(self.process()?.resident_bytes()?),
            Client::PeakMemory(job) => {
                self.fio(&[], std::slice::from_ref(job))?;
                mib(self.process()?.peak_resident_bytes()?)
            }
            Client::FilledMemory => {
                self.fill()?;
                mib(self.process()?.resident_bytes()?)
            }
            Client::Bookkeeping => bail!("this takes two servers"),
        }
    }

    /// Reads the whole image until the server's memory stops growing: a cache may grow in the background.
    fn fill(&self) -> Result<()> {
        let mut before = 0;
        for _ in 0..FILLS_MAX {
            self.nbdcopy(&[&self.uri()?, "null:"])?;
            let now = self.process()?.resident_bytes()?;
            if now < before + before / 100 {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// The server's export, for clients.
    fn uri(&self) -> Result<String> {
        match &self.server.context("this needs a server")?.target {
            load::Target::Nbd { at: load::Address::Unix(socket), export } => {
                Ok(format!("nbd+unix:///{export}?socket={}", socket.display()))
            }
            other => bail!("{other:?} is no disk on a Unix socket"),
        }
    }

    fn process(&self) -> Result<&Process> {
        Ok(&self.server.context("this needs a server")?.process)
    }

    fn cpu(&self) -> Result<Option<Duration>> {
        self.server.map(|server| server.process.cpu()).transpose()
    }

    /// Processor time of the server since `before`, for each of `count` units of work.
    fn cpu_us(&self, before: Option<Duration>, count: f64) -> Result<Option<f64>> {
        let after = self.cpu()?;
        Ok(before.zip(after).map(|(before, after)| (after - before).as_secs_f64() * 1e6 / count))
    }

    fn fio(&self, before: &[Job], jobs: &[Job]) -> Result<Sample> {
        let uri = self.server.map(|_| self.uri()).transpose()?;
        let target = uri.as_deref().map_or(Target::File(self.image), Target::Uri);
        let run = |jobs: &[Job]| {
            let (bytes, seconds) = (self.bytes, self.images.scale.seconds);
            Run { jobs, target, bytes, seconds, log: &self.place.join("fio.log") }.run(&self.images.fixture.interrupted)
        };
        for job in before {
            run(std::slice::from_ref(job))?;
        }
        let cpu_before = self.cpu()?;
        let report = run(jobs)?;
        let value = match self.unit {
            Unit::MibASecond => report.bytes_a_second / MIB,
            Unit::MeanMicros => report.mean_us,
            Unit::P99Micros => report.p99_us,
            Unit::P999Micros => report.p999_us,
            _ => report.rate,
        };
        let cpu_us = self.cpu_us(cpu_before, report.requests.max(1) as f64)?;
        Ok(Sample { value, cpu_us, latency_us: Some((report.p50_us, report.p99_us)) })
    }

    /// Runs nbdcopy and returns how long it took.
    fn nbdcopy(&self, arguments: &[&str]) -> Result<Duration> {
        let mut command = Command::new("nbdcopy");
        command.args(arguments);
        let start = Instant::now();
        self.finish(command, "nbdcopy.log")?;
        Ok(start.elapsed())
    }

    fn finish(&self, command: Command, log: &str) -> Result<String> {
        Process::start(command, &self.place.join(log), &self.images.fixture.interrupted)?.finish(CLIENT_TIMEOUT)
    }

    fn copy(&self, arguments: &[&str]) -> Result<Sample> {
        let before = self.cpu()?;
        let took = self.nbdcopy(arguments)?;
        let mib = self.bytes as f64 / MIB;
        Ok(Sample { value: mib / took.as_secs_f64(), cpu_us: self.cpu_us(before, mib)?, latency_us: None })
    }

    fn qemu_img(&self, write: bool) -> Result<Sample> {
        let requests = self.images.scale.requests.min(self.bytes / QEMU_IMG_BYTES);
        let mut command = Command::new("qemu-img");
        command.args(["bench", "-f", "raw", "-d", "32", "-t", "none", "-c", &requests.to_string()]);
        command.args(["-s", &QEMU_IMG_BYTES.to_string()]);
        if write {
            command.args(["-w", "--flush-interval=64"]);
        }
        command.arg(self.uri()?);
        let before = self.cpu()?;
        let output = self.finish(command, "qemu-img.log")?;
        let seconds = qemu_img_seconds(&output).with_context(|| format!("qemu-img bench printed {output:?}"))?;
        let cpu_us = self.cpu_us(before, requests as f64)?;
        Ok(Sample { value: requests as f64 / seconds, cpu_us, latency_us: None })
    }
}

fn qemu_img_seconds(output: &str) -> Option<f64> {
    output.split("Run completed in ").nth(1)?.split_whitespace().next()?.parse().ok().filter(|seconds| *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_qemu_img_is_read() {
        let output = "Sending 100 read requests, 4096 bytes each, 32 in parallel\nRun completed in 0.979 seconds.\n";
        assert_eq!(qemu_img_seconds(output), Some(0.979));
        assert_eq!(qemu_img_seconds("Failed"), None);
    }
}
