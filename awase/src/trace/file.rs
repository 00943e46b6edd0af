//! Where the server's trace is: a file in memory, to which `trace` in the data directory leads.
//!
//! It is not on a disk: the host would write it there all the time, and hold up whoever records meanwhile. So it outlives
//! the server's end by any signal, but not the host's. The next server that starts there keeps it, as the one before, and
//! takes away what was kept until then.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use kernel::trace::{Mode, TraceMemory, Tracer};
use machine::linux::shared_memory::SharedMemory;

const BYTES: usize = 8 << 20;

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// Its name in the data directory.
const NAME: &str = "trace";

/// There, the name of the one before.
const PREVIOUS: &str = "trace.previous";

/// The trace of a server that runs; its file goes when it is dropped.
pub struct TraceFile {
    link: PathBuf,
    file: PathBuf,
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // Only what is still ours: a successor may have its own by now.
        if fs::read_link(&self.link).is_ok_and(|to| to == self.file) {
            let _ = fs::remove_file(&self.link);
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// A tracer that records into a new file, to which nothing leads before it is [published](TraceFile::publish).
///
/// # Errors
/// When the host has no room for it.
pub fn create(data: &Path, mode: Mode, processors: u16) -> anyhow::Result<(Tracer, TraceFile)> {
    fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    let link = data.join(NAME);
    let file = Path::new(MEMORY).join(format!("awase-{}.trace", std::process::id()));
    let words = map(&file).with_context(|| format!("cannot make {}", file.display()))?;
    let trace = TraceFile { link, file };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    Ok((Tracer::new(mode, processors, words, now_ns), trace))
}

impl TraceFile {
    /// Leads to the file from now on, and to that of a server that was killed as the one before. Only a server that has
    /// what it serves does so: one that is refused because another has it must leave the other's trace where it is.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn publish(&self) -> anyhow::Result<()> {
        replace_link(self).with_context(|| format!("cannot make {}", self.link.display()))
    }
}

/// Processors record into it for as long as the program runs.
fn map(file: &Path) -> io::Result<TraceMemory> {
    let memory: &'static SharedMemory = Box::leak(Box::new(SharedMemory::create(file, BYTES / 8)?));
    Ok(memory.words())
}

/// Leads to the new file from now on, and to that of a server that was killed as the one before: who starts a server again
/// at once must not take away what would tell why.
fn replace_link(trace: &TraceFile) -> io::Result<()> {
    if let Some(before) = left_by_the_dead(&trace.link, &trace.file) {
        let previous = trace.link.with_file_name(PREVIOUS);
        if let Some(older) = left_by_the_dead(&previous, &trace.file)
            && older != before
        {
            let _ = fs::remove_file(older);
        }
        remove_if_there(&previous)?;
        fs::rename(&trace.link, &previous)?;
    }
    remove_if_there(&trace.link)?;
    symlink(&trace.file, &trace.link)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Where `link` leads, if that is a trace that no server records any more. `own` is ours.
fn left_by_the_dead(link: &Path, own: &Path) -> Option<PathBuf> {
    let file = fs::read_link(link).ok()?;
    (file.starts_with(MEMORY) && file != own && file.exists() && !is_alive(&file)).then_some(file)
}

/// Removes the trace of a server that was killed, and had this data directory.
pub fn remove_of(data: &Path) {
    let link = data.join(NAME);
    if let Ok(file) = fs::read_link(&link)
        && file.starts_with(MEMORY)
    {
        // Whoever has removed it already has done the same.
        let _ = fs::remove_file(file);
        let _ = fs::remove_file(link);
    }
}

/// Does the server live that records there? Its number may be another process's by now, which has not mapped the file.
fn is_alive(file: &Path) -> bool {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(process) = name.strip_prefix("awase-").and_then(|process| process.parse::<u32>().ok()) else {
        return true;
    };
    match fs::read_to_string(format!("/proc/{process}/maps")) {
        Ok(maps) => maps.lines().any(|line| line.ends_with(&*file.to_string_lossy())),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
