//! The server's trace: a file in memory, with a symbolic link `trace` to it in the data directory.
//!
//! It is not on a disk, where the host would write it back all the time and block processors that record meanwhile. So it
//! survives the server's death by any signal, but not the host's. The next server with this data directory keeps it as
//! `trace.previous`, and removes the previous one before.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use kernel::trace::{Mode, TraceMemory, Tracer};
use machine::linux::file::make_directories;
use machine::linux::shared_memory::SharedMemory;

use crate::predecessor::Deadline;

const BYTES: usize = 8 << 20;

const MEMORY: &str = "/dev/shm";

/// The link in the data directory.
const NAME: &str = "trace";

/// The link to the trace of the killed server before.
const PREVIOUS: &str = "trace.previous";

/// The trace of a running server; its file is removed on drop.
pub struct TraceFile {
    link: PathBuf,
    file: PathBuf,
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // Only if it leads to this file: another server may have it.
        if fs::read_link(&self.link).is_ok_and(|to| to == self.file) {
            let _ = fs::remove_file(&self.link);
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// A tracer that records into a new file, which has no link before it is [published](TraceFile::publish).
///
/// # Errors
/// When the host has no room for it.
pub fn create(data: &Path, mode: Mode, processors: u16) -> anyhow::Result<(Tracer, TraceFile)> {
    make_directories(data).with_context(|| format!("cannot create {}", data.display()))?;
    let link = data.join(NAME);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    // With the time: a server in another namespace of processes may have the same number.
    let file = Path::new(MEMORY).join(format!("awase-{}-{now_ns:x}.trace", std::process::id()));
    let words = map(&file).with_context(|| format!("cannot make {}", file.display()))?;
    let trace = TraceFile { link, file };
    Ok((Tracer::new(mode, processors, words, now_ns), trace))
}

impl TraceFile {
    /// Links to the file, and makes that of a killed server the previous one. Waits with `deadline` for a server before
    /// this one.
    ///
    /// # Errors
    /// When the link is that of a server that runs, or something else has its name, or the host refuses.
    pub fn publish(&self, deadline: Deadline) -> anyhow::Result<()> {
        let made = deadline.retry(|| replace_link(self), |error| error.kind() == io::ErrorKind::ResourceBusy);
        made.with_context(|| format!("cannot make {}", self.link.display()))
    }
}

/// Never unmapped: processors record into it until the process ends.
fn map(file: &Path) -> io::Result<TraceMemory> {
    let memory: &'static SharedMemory = Box::leak(Box::new(SharedMemory::create(file, BYTES / 8)?));
    Ok(memory.words())
}

/// The trace of a killed server becomes the previous one, so that an immediate restart does not destroy the evidence.
/// That of one that runs is [in use](io::ErrorKind::ResourceBusy).
fn replace_link(trace: &TraceFile) -> io::Result<()> {
    match trace_at(&trace.link)? {
        None => {}
        // As after the host's restart.
        Some(gone) if !gone.exists() => fs::remove_file(&trace.link)?,
        Some(other) if is_alive(&other) => {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "it leads to that of another server, which runs"));
        }
        Some(before) => {
            let previous = trace.link.with_file_name(PREVIOUS);
            if let Some(older) = trace_at(&previous)?
                && older != before
                && !is_alive(&older)
            {
                let _ = fs::remove_file(older);
            }
            fs::rename(&trace.link, previous)?;
        }
    }
    symlink(&trace.file, &trace.link)
}

/// The trace to which `link` leads; `None`: there is nothing.
///
/// # Errors
/// What else is there is the user's, and stays.
fn trace_at(link: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read_link(link) {
        Ok(file) if file.starts_with(MEMORY) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
        _ => Err(io::Error::other(format!("{} is no link to a trace; move it away", link.display()))),
    }
}

/// Removes the traces of killed servers with this data directory.
pub fn remove_of(data: &Path) {
    for link in [NAME, PREVIOUS].map(|name| data.join(name)) {
        if let Ok(Some(file)) = trace_at(&link) {
            // It may have been removed already.
            let _ = fs::remove_file(file);
            let _ = fs::remove_file(link);
        }
    }
}

/// True if the server that records into `file` runs. Its process id may have been reused by a process that has not mapped
/// the file.
fn is_alive(file: &Path) -> bool {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(process) = name.split('-').nth(1).and_then(|process| process.parse::<u32>().ok()) else {
        return true;
    };
    match fs::read_to_string(format!("/proc/{process}/maps")) {
        Ok(maps) => maps.lines().any(|line| line.ends_with(&*file.to_string_lossy())),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_one_process_id_have_traces_of_their_own() {
        let data = [(); 2].map(|()| tempfile::tempdir().expect("temporary directory"));
        let traces = data.each_ref().map(|data| create(data.path(), Mode::Off, 1).expect("a trace").1);
        assert_ne!(traces[0].file, traces[1].file);
    }

    #[test]
    fn nothing_is_left_of_killed_servers() {
        let data = tempfile::tempdir().expect("temporary directory");
        let links = [NAME, PREVIOUS].map(|name| data.path().join(name));
        let traces = links.each_ref().map(|link| {
            let trace = tempfile::Builder::new().prefix("awase-").tempfile_in(MEMORY).expect("a file in memory");
            let (_, path) = trace.keep().expect("kept");
            symlink(&path, link).expect("a link");
            path
        });
        remove_of(data.path());
        assert!(links.iter().all(|link| fs::symlink_metadata(link).is_err()), "a link is left");
        assert!(!traces.iter().any(|trace| trace.exists()), "a trace is left");
    }
}
