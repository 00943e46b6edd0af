//! The limit of changes of names: as many files created, then removed, by the host alone, as there are requests in flight,
//! with a sync of the directory after each batch.
//!
//! On ext4 with a journal this makes all of them durable. Elsewhere the new files would have to be synced, too: there,
//! the result is above the real limit.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::measure::load::Load;

/// Creates and removes names in a directory, by one thread. Returns changes a second.
pub fn create_remove(load: &Load, directory: &Path, duration: Duration) -> Result<f64> {
    let paths: Vec<PathBuf> = (0..load.in_flight).map(|slot| directory.join(format!("raw-{slot}"))).collect();
    let sync = File::open(directory)?;
    let start = Instant::now();
    let mut requests = 0;
    while start.elapsed() < duration {
        for path in &paths {
            OpenOptions::new().write(true).create_new(true).open(path)?;
        }
        sync.sync_all()?;
        for path in &paths {
            fs::remove_file(path)?;
        }
        sync.sync_all()?;
        requests += 2 * u64::from(load.in_flight);
    }
    Ok(requests as f64 / start.elapsed().as_secs_f64())
}
