//! The host on which the lab measures: kernels on this machine's processors, a scratch file on its disk.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{LocalError, Medium, SCRATCH_BYTES_MAX, ServerConfig, Setup, Spent};
use kernel::counters::Count;
use kernel::device::{DeviceRef, Faults};
use kernel::trace::{Mode, Tracer};
use kernel::{Kernel, KernelConfig, Switches};
use machine::OpenFile;
use machine::linux::file::{self, DirectIo, OpenError, OpenOptions};
use machine::linux::{self, Cores};
use policy::{sizing, writeback};
use tempfile::TempDir;

use super::drive::DriveDevice;
use super::server::{Scratch, Server, cpu_time};
use awase::config::{Behaviour, Given, Place, set_switch};
use awase::processors::{FIXED_SHARE, PROCESSOR_THREADS, Processors};
use awase::stack::{Bottom, Layers, disk_in_memory, queued, stack};

/// Size of the writes that fill the scratch file. Bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Queue depth of the disks of 1990.
const ONE_AT_A_TIME: u16 = 1;

/// Space left free in a file system, for others. Bytes.
const LEFT_FREE: u64 = 64 << 20;

/// Timeout for dropping the tasks of a kernel.
const ABANDON_TIME_MAX: Duration = Duration::from_secs(10);

pub struct Host {
    directory: PathBuf,
    cores: Cores,
    program: PathBuf,
    interrupted: Arc<AtomicBool>,
    /// The image and the directory of servers. They have names, and are removed with this value.
    served: Mutex<Option<(TempDir, Arc<Scratch>)>>,
    /// The largest scratch file so far. It has no name, so the host frees it after its last user's end.
    scratch: Mutex<Option<OpenFile>>,
}

impl Host {
    /// This machine, with a scratch file in `directory` when one is needed, and servers of `program`.
    pub fn new(directory: &Path, program: &Path) -> Self {
        Host {
            directory: directory.to_owned(),
            cores: Cores::allowed(),
            program: program.to_owned(),
            interrupted: Arc::default(),
            served: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    /// Setting this ends the measurement.
    #[must_use]
    pub fn ended_by(self, interrupted: &Arc<AtomicBool>) -> Self {
        Host { interrupted: Arc::clone(interrupted), ..self }
    }

    /// Setting it ends the measurement.
    pub fn interrupted(&self) -> &Arc<AtomicBool> {
        &self.interrupted
    }

    /// The image, of at least `bytes`, and the directory of servers.
    fn served(&self, bytes: u64) -> Result<Arc<Scratch>, LocalError> {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let long = |scratch: &Scratch| std::fs::metadata(&scratch.image).is_ok_and(|found| found.len() >= bytes);
        if let Some((_, scratch)) = served.as_ref().filter(|(_, scratch)| long(scratch)) {
            return Ok(Arc::clone(scratch));
        }
        *served = None;
        let made = make_served(&self.directory, bytes)?;
        let scratch = Arc::clone(&made.1);
        *served = Some(made);
        Ok(scratch)
    }

    /// A scratch file of at least `bytes`.
    fn scratch(&self, bytes: u64) -> Result<OpenFile, LocalError> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = scratch.as_ref().filter(|open| open.facts.size >= bytes) {
            return Ok(open.clone());
        }
        // The smaller one must free its space first.
        *scratch = None;
        let open = make_scratch(&self.directory, bytes)?;
        *scratch = Some(open.clone());
        Ok(open)
    }

    /// Starts processors, with a kernel of their own.
    ///
    /// # Errors
    /// When the host is short of memory, or refuses.
    pub fn start(&self, setup: &Setup) -> Result<Stage<'_>, LocalError> {
        let available = memory_for_cache();
        if available < setup.memory {
            return Err(LocalError::NoMemory { needed: setup.memory, available });
        }
        let count = self.cores.count().min(setup.processors_max.into()).clamp(1, linux::PROCESSORS_MAX);
        let machine = linux::Config { processors: linux::Processors::Count(count), ..linux::Config::default() };
        let tracer = |count| setup.trace.map_or_else(Tracer::none, |words| Tracer::new(Mode::Direct, count, words, 0));
        let processors = Processors::start_kernel(&machine, |count| kernel_config(setup, count), tracer)
            .map_err(|error| LocalError::Start(format!("{error:#}")))?;
        Ok(Stage { host: self, kernel: Arc::clone(processors.kernel()), processors: Some(processors) })
    }

    /// Starts a whole server in a process of its own, as users do.
    ///
    /// # Errors
    /// When the server does not start, and why.
    pub fn serve(&self, config: &ServerConfig) -> Result<Server, LocalError> {
        let bytes = |medium: &Medium| if let Medium::Disk { bytes } = medium { *bytes } else { 0 };
        let scratch = self.served(config.exports.iter().map(|export| bytes(&export.medium)).max().unwrap_or(0))?;
        Server::start(&self.program, config, &scratch, &self.interrupted)
    }

    /// The same, with a directory of its own, which is removed with what this returns.
    pub(crate) fn serve_alone(&self, config: &ServerConfig) -> Result<(TempDir, Server), LocalError> {
        let (directory, scratch) = make_served(&self.directory, 0)?;
        let server = Server::start(&self.program, config, &scratch, &self.interrupted)?;
        Ok((directory, server))
    }

    /// The program that servers run.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Pins the calling thread to a core beyond the first `processors`, which are the server's, if there is one; else
    /// it stays. `number` counts the threads that ask.
    pub fn pin_beyond(&self, processors: u16, number: usize) {
        let (all, theirs) = (self.cores.count(), usize::from(processors));
        if all > theirs {
            // If pinning is refused, the thread may run anywhere.
            let _ = self.cores.pin(theirs + number % (all - theirs));
        }
    }

    /// Lets the calling thread run only on otherwise idle cores. (With the lowest nice level alone, a thread that wakes
    /// up there would still wait for the end of a time slice.)
    pub fn run_when_idle() {
        let parameters = libc::sched_param { sched_priority: 0 };
        // If refused, the thread competes with others, no more.
        // SAFETY: the parameters live until the call returns.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    }

    /// Was the measurement interrupted?
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub fn processors(&self) -> u16 {
        self.cores.count().min(linux::PROCESSORS_MAX) as u16
    }

    /// A description of its disk, for the report.
    pub fn disk(&self) -> String {
        let number = std::fs::metadata(&self.directory).map(|found| found.dev()).unwrap_or(0);
        let link = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
        match std::fs::canonicalize(link).ok().as_deref().and_then(Path::file_name) {
            Some(name) => format!("this host's disk {}", name.display()),
            None => "this host's disk".to_owned(),
        }
    }
}

fn kernel_config(setup: &Setup, processors: u16) -> KernelConfig {
    let dynamic = setup.switches.dynamic_cache;
    let memory_max = if dynamic { setup.memory } else { setup.memory / FIXED_SHARE };
    let mode = if dynamic { sizing::Mode::Dynamic } else { sizing::Mode::Fixed { bytes: memory_max } };
    KernelConfig {
        processors,
        memory_max,
        chunk_bytes: None,
        sizing: Some(sizing::Config { mode, ..sizing::Config::default() }),
        write_back: writeback::Config { smooth: setup.switches.smooth_write_back, ..setup.write_back.clone() },
        switches: setup.switches.clone(),
    }
}

/// Size of a dynamic cache on this host: available memory beyond the reservation for others. Bytes.
fn memory_for_cache() -> u64 {
    let (facts, config) = (linux::memory(), sizing::Config::default());
    let room = |total: u64, free: u64| {
        let reserve = (total / 1000 * config.reserve_permille).max(config.reserve_bytes_min);
        free.saturating_sub(reserve.min(total / 1000 * config.reserve_permille_max))
    };
    let host = room(facts.total, facts.available);
    facts.group.map_or(host, |group| host.min(room(group.limit, group.limit.saturating_sub(group.used))))
}

/// A kernel that runs until this is dropped; dirty blocks are then discarded.
pub struct Stage<'a> {
    host: &'a Host,
    kernel: Arc<Kernel>,
    /// Present until drop.
    processors: Option<Processors>,
}

impl Stage<'_> {
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// A device behind the queue that every disk of Awase has. At most one at a time of the host's disk.
    ///
    /// # Errors
    /// When there is no space for it, or the host can't bypass its page cache there.
    pub fn device(&self, medium: &Medium) -> Result<DeviceRef, LocalError> {
        let (bottom, behaviour) = match *medium {
            Medium::Disk { bytes } => (Bottom::File(self.host.scratch(bytes)?), Behaviour::Plain),
            Medium::Ram { bytes } => (Bottom::Ram { size: bytes }, Behaviour::Plain),
            Medium::FixedLatency { bytes, latency } => (Bottom::Ram { size: bytes }, Behaviour::FixedLatency(latency)),
            Medium::Mechanical { bytes, model } => {
                let device = Arc::new(DriveDevice::new(model, bytes, disk_in_memory()));
                return Ok(queued(&self.kernel, device, None, ONE_AT_A_TIME));
            }
        };
        let layers = Layers { behaviour, access: None, delay: Duration::ZERO, faults: Faults::default() };
        Ok(stack(&self.kernel, bottom, &layers))
    }

    /// Sets a switch, as `awase set` does.
    ///
    /// # Errors
    /// When there is no such switch or value.
    pub fn set(&self, switch: &str, value: &str) -> Result<(), LocalError> {
        let given = Given::Text(value.to_owned());
        let change = |switches: &mut Switches| set_switch(switches, switch, &given, &Place::Default);
        self.kernel.change_switches(change).map(drop).map_err(|problem| LocalError::Start(problem.to_string()))
    }

    /// What its processors have spent so far.
    ///
    /// # Errors
    /// When the host does not report it.
    pub fn spent(&self) -> Result<Spent, LocalError> {
        let counted = self.kernel.counters().read();
        let kernel_entries = counted.iter().map(|processor| processor.count(Count::KernelEntries)).sum();
        Ok(Spent { cpu: cpu_time(std::process::id(), PROCESSOR_THREADS)?, kernel_entries })
    }
}

impl Drop for Stage<'_> {
    /// Tasks refer to their processor, which owns its tasks: without this, no memory would be freed.
    fn drop(&mut self) {
        // Twice: a task dropped on one processor may have started another on a different one.
        for _ in 0..2 {
            let (sender, abandoned) = channel();
            for mailbox in self.kernel.mailboxes() {
                let sender = sender.clone();
                mailbox.start(move |cpu| {
                    cpu.abandon();
                    // The receiver may have timed out.
                    let _ = sender.send(());
                });
            }
            drop(sender);
            while abandoned.recv_timeout(ABANDON_TIME_MAX).is_ok() {}
        }
        if let Some(processors) = self.processors.take() {
            processors.stop();
        }
    }
}

/// The files that servers export from the host's disk, in a directory of their own.
fn make_served(directory: &Path, bytes: u64) -> Result<(TempDir, Arc<Scratch>), LocalError> {
    let failed =
        |what: &'static str| move |source| LocalError::Scratch { what, directory: directory.to_owned(), source };
    check_space(directory, bytes)?;
    // Servers need the whole path, whatever their working directory.
    let place = std::fs::canonicalize(directory).map_err(failed("find the place of"))?;
    let place = tempfile::Builder::new().prefix("live-").tempdir_in(place).map_err(failed("make"))?;
    let scratch = Scratch { image: place.path().join("disk.img"), files: place.path().join("files") };
    let image = File::create_new(&scratch.image).map_err(failed("make"))?;
    fill(&image, bytes).map_err(failed("fill"))?;
    std::fs::create_dir(&scratch.files).map_err(failed("make"))?;
    Ok((place, Arc::new(scratch)))
}

/// A file without a name, preallocated, opened for direct I/O.
fn make_scratch(directory: &Path, bytes: u64) -> Result<OpenFile, LocalError> {
    let failed =
        |what: &'static str| move |source| LocalError::Scratch { what, directory: directory.to_owned(), source };
    let no_space = |needed: u64, free: u64| LocalError::NoSpace { directory: directory.to_owned(), needed, free };
    if bytes > SCRATCH_BYTES_MAX {
        return Err(no_space(bytes, SCRATCH_BYTES_MAX));
    }
    let free = check_space(directory, bytes)?;
    let file = tempfile::tempfile_in(directory).map_err(failed("make"))?;
    fill(&file, bytes).map_err(|source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => no_space(bytes, free),
        _ => failed("fill")(source),
    })?;
    // Opened like any file of the kernel, under the only name that it has.
    let place = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let options = OpenOptions { writable: true, direct: DirectIo::Always, ..OpenOptions::default() };
    file::open(&place, options).map_err(|error| match error {
        OpenError::NoDirectIo(_) => LocalError::NoDirectIo(directory.to_owned()),
        other => failed("open")(std::io::Error::other(other)),
    })
}

/// Writes the whole file: otherwise the measurement would include the journal's work for space allocation, and reads of
/// unwritten parts would not access the disk.
fn fill(file: &File, bytes: u64) -> std::io::Result<()> {
    let piece = vec![0xa5; PIECE_BYTES];
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let len = (bytes - at).min(PIECE_BYTES as u64) as usize;
        file.write_all_at(&piece[..len], at)?;
    }
    file.sync_all()
}

/// Checks that a file of `bytes` fits, and returns the bytes that are free.
fn check_space(directory: &Path, bytes: u64) -> Result<u64, LocalError> {
    let directory = directory.to_owned();
    // What this process may still write there.
    let free = rustix::fs::statvfs(&directory).map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize));
    match free {
        Ok(free) if free >= bytes + LEFT_FREE => Ok(free),
        Ok(free) => Err(LocalError::NoSpace { directory, needed: bytes + LEFT_FREE, free }),
        Err(source) => Err(LocalError::Scratch { what: "find room for", directory, source: source.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_has_no_name_and_all_its_bytes() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let host = Host::new(directory.path(), Path::new("awase"));
        let Ok(open) = host.scratch(1 << 20) else {
            // A file system without direct I/O: nothing can be measured there, and no file remains.
            assert_eq!(std::fs::read_dir(directory.path()).expect("read").count(), 0);
            return;
        };
        assert_eq!(open.facts.size, 1 << 20);
        assert!(open.facts.direct);
        assert_eq!(host.scratch(4096).expect("the same").file, open.file, "one is large enough for less");
        assert_eq!(std::fs::read_dir(directory.path()).expect("read").count(), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_there_is() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let error = make_scratch(directory.path(), SCRATCH_BYTES_MAX + 1).err().expect("too much").to_string();
        assert!(error.contains("bytes free") && error.contains("--out"), "{error}");
        let error = make_scratch(Path::new("/nowhere/at/all"), 4096).err().expect("missing").to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let error = Host::new(directory.path(), Path::new("awase"))
            .start(&Setup::with_memory(1 << 60))
            .err()
            .expect("too much");
        assert!(matches!(error, LocalError::NoMemory { .. }), "{error}");
    }
}
