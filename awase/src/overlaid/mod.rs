//! Disks whose changes go beside (`overlay = true`), and how they are kept.

pub mod redo;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel::device::{HeldChanges, Overlay};
use kernel::job::NOBODY;
use kernel::request::Context;
use kernel::{Kernel, Volume};
use machine::linux::file::{Excluded, OpenError};
use machine::{Errno, OpenFile};
use policy::unit::{BLOCK_BYTES, ProcessorId};

use crate::processors::start_task;
use redo::RedoError;

/// A disk whose changes go beside.
pub struct Overlaid {
    pub overlay: Arc<Overlay>,
    /// Where they go, read through the host's page cache.
    pub content: File,
    /// The disk's file, open for reading, and its path; `None`: it is none.
    pub file: Option<(OpenFile, PathBuf)>,
}

/// Why changes are not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("what clients wrote cannot be stored beside it: {0}")]
    Volume(Errno),
    #[error("only files can take what was written beside them, not devices and memory")]
    NotAFile,
    #[error(transparent)]
    Refused(#[from] OpenError),
    #[error("{}: {error}; nothing has changed", .path.display())]
    Log { path: PathBuf, error: io::Error },
    #[error("{} has {found} bytes now, and not {expected} as when it was served; nothing has changed", .path.display())]
    OtherSize { path: PathBuf, expected: u64, found: u64 },
    #[error("{}: {error}; {} finishes it when the disk is served next, or kept again", .path.display(), .log.display())]
    Unfinished { path: PathBuf, log: PathBuf, error: RedoError },
    #[error("the server ends")]
    Ends,
}

impl Overlaid {
    /// Of its file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Writes what is beside into the disk itself, durably: it is as one who had flushed then would have found it, and
    /// never half of that, whatever happens meanwhile. Changes wait until it is done; reads go on. Returns how much
    /// was written, in bytes. For threads that are not processors.
    ///
    /// # Errors
    /// When another server has the disk, too, or the host refuses.
    pub fn keep(&self, kernel: &Kernel, volume: &Arc<Volume>) -> Result<u64, KeepError> {
        let (below, path) = self.file.as_ref().ok_or(KeepError::NotAFile)?;
        let changes = self.hold(kernel, volume)?;
        let runs = changes.runs();
        if !runs.is_empty() {
            let excluded = Excluded::new(below, path)?;
            let expected = below.facts.size;
            let log_error = |error| KeepError::Log { path: path.clone(), error };
            let found = excluded.file().metadata().map_err(log_error)?.len();
            if found != expected {
                return Err(KeepError::OtherSize { path: path.clone(), expected, found });
            }
            redo::write(path, expected, &runs, &self.content).map_err(log_error)?;
            redo::finish(path, excluded.file()).map_err(|error| KeepError::Unfinished {
                path: path.clone(),
                log: redo::path_of(path),
                error,
            })?;
        }
        let forget = move |cpu: kernel::Processor| async move {
            changes.forget(&cpu, Context::asynchronous(NOBODY)).await;
        };
        // It is kept, also if the server ends now.
        let _ = start_task(kernel, ProcessorId(0), forget).recv();
        Ok(runs.iter().map(|run| run.blocks.len() * BLOCK_BYTES).sum())
    }

    fn hold(&self, kernel: &Kernel, volume: &Arc<Volume>) -> Result<HeldChanges, KeepError> {
        let (volume, overlay) = (Arc::clone(volume), Arc::clone(&self.overlay));
        let hold = move |cpu: kernel::Processor| async move {
            volume.flush(&cpu, Context::synchronous(NOBODY)).await?;
            Ok(overlay.hold().await)
        };
        let held = start_task(kernel, ProcessorId(0), hold).recv().map_err(|_| KeepError::Ends)?;
        held.map_err(KeepError::Volume)
    }
}
