//! One run of one contender: images, a fresh server, the client, the numbers.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::bench::fio::{Job, Run, Target};
use crate::bench::process::{Interrupted, Process};
use crate::bench::sample::{Sample, Unit};
use crate::bench::server::{Order, Peer, Server};
use crate::bench::workload::{Cache, Client, Contender, Image, Memory, Workload};
use crate::spread::XorShift;

/// Timeout of nbdcopy and qemu-img.
const CLIENT_PATIENCE: Duration = Duration::from_secs(600);

/// Request size of `qemu-img bench`.
const QEMU_IMG_BYTES: u64 = 4096;

const MIB: f64 = 1048576.0;

/// Two sizes of a cache, in MiB: the difference in memory beyond the difference in cache is bookkeeping.
const CACHES_MIB: [u64; 2] = [64, 320];

/// Reads of an image until it counts as cached.
const FILLS_MAX: usize = 10;

/// `f_type` of file systems that are not on a disk (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub large_bytes: u64,
    /// Size of [`Image::Small`] and of the file that is copied in, in bytes.
    pub small_bytes: u64,
    pub seconds: u32,
    pub requests: u64,
}

/// The directory of all measurements; removed with its content at the end.
pub struct Stand {
    directory: TempDir,
    awase: PathBuf,
    scale: Scale,
    interrupted: Interrupted,
}

impl Stand {
    /// Makes the images below `directory`, which must lie on a disk.
    pub fn new(directory: &Path, awase: &Path, scale: Scale, interrupted: &Interrupted) -> Result<Stand> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        if file_system(directory)? == TMPFS_MAGIC {
            bail!("{} lies in memory (tmpfs): give a directory on a disk with --directory", directory.display());
        }
        let directory = tempfile::Builder::new().prefix("bench-").tempdir_in(fs::canonicalize(directory)?)?;
        let stand = Stand { directory, awase: awase.to_owned(), scale, interrupted: interrupted.clone() };
        for (path, bytes) in [
            (stand.image(Image::Large), scale.large_bytes),
            (stand.image(Image::Small), scale.small_bytes),
            (stand.source(), scale.small_bytes),
        ] {
            stand.fill(&path, bytes)?;
        }
        Ok(stand)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn image(&self, image: Image) -> PathBuf {
        self.directory().join(if image == Image::Large { "large.img" } else { "small.img" })
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
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&random.number().to_le_bytes());
            }
            image.write_all(&block).with_context(file)?;
        }
        image.sync_all().with_context(file)
    }

    /// Reads the image of a workload once. Disks have caches of their own (a virtual disk's may be the memory of the
    /// VM's host), which would answer every contender but the first.
    pub fn warm_disk(&self, workload: &Workload) -> Result<()> {
        let image = self.image(workload.image);
        forget(&image)?;
        std::io::copy(&mut File::open(&image)?, &mut std::io::sink())?;
        Ok(())
    }

    pub fn measure(&self, workload: &Workload, contender: &Contender) -> Result<Sample> {
        match workload.client {
            Client::Bookkeeping => self.bookkeeping(workload, contender),
            _ => self.measure_with_one_server(workload, contender),
        }
    }

    fn bookkeeping(&self, workload: &Workload, contender: &Contender) -> Result<Sample> {
        let resident = |mib| {
            let full = Workload { memory: Memory::Mib(mib), client: Client::FilledMemory, ..workload.clone() };
            self.measure_with_one_server(&full, contender).map(|sample| sample.value)
        };
        let [small, large] = CACHES_MIB;
        let more = resident(large)? - resident(small)?;
        Ok(Sample::bare((more / (large - small) as f64 - 1.0) * 100.0))
    }

    fn measure_with_one_server(&self, workload: &Workload, contender: &Contender) -> Result<Sample> {
        for image in [Image::Large, Image::Small] {
            forget(&self.image(image))?;
        }
        let place = tempfile::Builder::new().prefix("server-").tempdir_in(self.directory())?;
        let image = self.image(workload.image);
        let connections = match &workload.client {
            Client::Fio { jobs, .. } => jobs.iter().map(|job| job.connections).sum(),
            Client::PeakMemory(job) => job.connections,
            _ => 1,
        };
        let bytes = self.bytes(workload.image);
        let order = Order {
            awase: &self.awase,
            image: &image,
            bytes,
            memory: workload.memory,
            connections,
            place: place.path(),
        };
        let server = Server::start(&contender.peer, &order, &self.interrupted)?;
        let turn = Turn { stand: self, workload, image: &image, bytes, place: place.path(), server: server.as_ref() };
        let sample = turn.take(&contender.peer);
        let sample = sample.with_context(|| match &server {
            Some(server) => format!("{} says: {:?}", contender.label, server.process.messages()),
            None => contender.label.to_owned(),
        })?;
        if let Some(server) = server {
            server.process.stop()?;
        }
        Ok(sample)
    }
}

/// One run with a running server.
struct Turn<'a> {
    stand: &'a Stand,
    workload: &'a Workload,
    image: &'a Path,
    bytes: u64,
    place: &'a Path,
    server: Option<&'a Server>,
}

impl Turn<'_> {
    fn take(&self, peer: &Peer) -> Result<Sample> {
        if self.workload.cache == Cache::Filled {
            match peer {
                Peer::NbdkitMemory => drop(self.nbdcopy(&[&self.image.to_string_lossy(), &self.uri()?])?),
                _ => self.fill()?,
            };
        }
        match &self.workload.client {
            Client::Fio { before, jobs } => self.fio(before, jobs),
            Client::CopyIn => {
                let source = self.stand.source();
                // Read once, so that it is in memory for all contenders.
                std::io::copy(&mut File::open(&source)?, &mut std::io::sink())?;
                self.copy(&["--flush", &source.to_string_lossy(), &self.uri()?])
            }
            Client::CopyOut => self.copy(&[&self.uri()?, "null:"]),
            Client::QemuImg { write } => self.qemu_img(*write),
            Client::IdleMemory => Ok(Sample::bare(self.process()?.resident_bytes()? as f64 / MIB)),
            Client::PeakMemory(job) => {
                self.fio(&[], std::slice::from_ref(job))?;
                Ok(Sample::bare(self.process()?.peak_resident_bytes()? as f64 / MIB))
            }
            Client::FilledMemory => {
                self.fill()?;
                Ok(Sample::bare(self.process()?.resident_bytes()? as f64 / MIB))
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

    fn uri(&self) -> Result<String> {
        Ok(self.server.context("this needs a server")?.uri())
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
        let uri = self.server.map(Server::uri);
        let target = uri.as_deref().map_or(Target::File(self.image), Target::Uri);
        let log = self.place.join("fio.log");
        let (bytes, seconds, interrupted) = (self.bytes, self.stand.scale.seconds, &self.stand.interrupted);
        for job in before {
            let run = Run { jobs: std::slice::from_ref(job), target, bytes, seconds, log: &log };
            run.finish(run.start(interrupted)?)?;
        }
        let run = Run { jobs, target, bytes, seconds, log: &log };
        let cpu_before = self.cpu()?;
        let report = run.finish(run.start(interrupted)?)?;
        let value = match self.workload.unit {
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
        Process::start(command, &self.place.join("nbdcopy.log"), &self.stand.interrupted)?.finish(CLIENT_PATIENCE)?;
        Ok(start.elapsed())
    }

    fn copy(&self, arguments: &[&str]) -> Result<Sample> {
        let before = self.cpu()?;
        let took = self.nbdcopy(arguments)?;
        let mib = self.bytes as f64 / MIB;
        Ok(Sample { value: mib / took.as_secs_f64(), cpu_us: self.cpu_us(before, mib)?, latency_us: None })
    }

    fn qemu_img(&self, write: bool) -> Result<Sample> {
        let requests = self.stand.scale.requests.min(self.bytes / QEMU_IMG_BYTES);
        let mut command = Command::new("qemu-img");
        command.args(["bench", "-f", "raw", "-d", "32", "-t", "none", "-c", &requests.to_string()]);
        command.args(["-s", &QEMU_IMG_BYTES.to_string()]);
        if write {
            command.args(["-w", "--flush-interval=64"]);
        }
        command.arg(self.uri()?);
        let before = self.cpu()?;
        let log = self.place.join("qemu-img.log");
        let output = Process::start(command, &log, &self.stand.interrupted)?.finish(CLIENT_PATIENCE)?;
        let seconds = qemu_img_seconds(&output).with_context(|| format!("qemu-img bench printed {output:?}"))?;
        let cpu_us = self.cpu_us(before, requests as f64)?;
        Ok(Sample { value: requests as f64 / seconds, cpu_us, latency_us: None })
    }
}

fn qemu_img_seconds(output: &str) -> Option<f64> {
    output.split("Run completed in ").nth(1)?.split_whitespace().next()?.parse().ok().filter(|seconds| *seconds > 0.0)
}

/// Writes a file's cached pages to the disk and drops them from memory.
pub fn forget(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: posix_fadvise takes an open descriptor and numbers.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if result != 0 {
        bail!("posix_fadvise {}: {}", path.display(), std::io::Error::from_raw_os_error(result));
    }
    Ok(())
}

fn file_system(path: &Path) -> Result<i64> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a structure of numbers, for which zeroes are values.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends with zero and a structure of the kind that statfs fills; both live until it returns.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut facts) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| path.display().to_string());
    }
    Ok(facts.f_type as i64)
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
