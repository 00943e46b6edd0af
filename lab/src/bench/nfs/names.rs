//! The limit of changes of names: as many files created, then removed, by the host alone, as there are requests in flight,
//! with a sync of the directory after each batch.
//!
//! On ext4 with a journal this makes all of them durable. Elsewhere each new file is synced, too.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use io_uring::{IoUring, opcode, types};
use machine::linux::tree::is_committed_as_a_whole;

use crate::measure::load::Load;

/// Creates and removes names in a directory, by one thread. Returns changes a second.
pub fn create_remove(load: &Load, directory: &Path, duration: Duration) -> Result<f64> {
    let paths: Vec<PathBuf> = (0..load.in_flight).map(|slot| directory.join(format!("raw-{slot}"))).collect();
    let directory = File::open(directory)?;
    let needs_files_synced = !is_committed_as_a_whole(&directory);
    let mut ring = IoUring::new(load.in_flight.next_power_of_two())?;
    let start = Instant::now();
    let mut requests = 0;
    while start.elapsed() < duration {
        let create = |path| OpenOptions::new().write(true).create_new(true).open(path);
        let mut made: Vec<File> = paths.iter().map(create).collect::<io::Result<_>>()?;
        if !needs_files_synced {
            made.clear();
        }
        sync(&mut ring, &made, &directory)?;
        for path in &paths {
            fs::remove_file(path)?;
        }
        directory.sync_all()?;
        requests += 2 * u64::from(load.in_flight);
    }
    Ok(requests as f64 / start.elapsed().as_secs_f64())
}

/// Syncs the files side by side, and the directory meanwhile.
fn sync(ring: &mut IoUring, files: &[File], directory: &File) -> io::Result<()> {
    for file in files {
        let entry = opcode::Fsync::new(types::Fd(file.as_raw_fd())).build();
        // SAFETY: the entry leads to no memory, and the file stays open until the end is reported below.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    }
    ring.submit()?;
    directory.sync_all()?;
    ring.submit_and_wait(files.len())?;
    for end in ring.completion() {
        if end.result() < 0 {
            return Err(io::Error::from_raw_os_error(-end.result()));
        }
    }
    Ok(())
}
