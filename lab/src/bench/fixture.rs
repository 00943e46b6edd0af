//! What is made for measurements beside other servers: a directory on a disk, and one server at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use machine::linux::file_system::FileSystem;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::bench::contender::{Contender, Export, Order, Server};
use crate::measure::process::Interrupted;

pub const MIB: f64 = 1048576.0;

/// The directory of all measurements; removed with its content at the end.
pub struct Fixture {
    directory: TempDir,
    awase: PathBuf,
    pub interrupted: Interrupted,
}

impl Fixture {
    /// Makes it below `directory`, which must lie on a disk. `awase`: the program.
    pub fn new(directory: &Path, awase: &Path, interrupted: &Interrupted) -> Result<Fixture> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        if FileSystem::at(directory).lives_in_memory() {
            bail!("{} lies in memory: give a directory on a disk with --directory", directory.display());
        }
        let directory = tempfile::Builder::new().prefix("bench-").tempdir_in(fs::canonicalize(directory)?)?;
        Ok(Fixture { directory, awase: awase.to_owned(), interrupted: interrupted.clone() })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A directory for one server.
    pub fn place(&self) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("server-").tempdir_in(self.directory())?)
    }

    /// Starts a contender's server, if it has one, measures, and stops it.
    pub fn with_server<T>(
        &self,
        contender: &Contender,
        export: Export<'_>,
        place: &Path,
        measure: impl FnOnce(Option<&Server>) -> Result<T>,
    ) -> Result<T> {
        let result = (|| -> Result<T> {
            let server = Server::start(contender, &Order { awase: &self.awase, export, place }, &self.interrupted)?;
            let measured = measure(server.as_ref()).with_context(|| match &server {
                Some(server) => format!("{} says: {:?}", contender.label, server.process.messages()),
                None => contender.label.to_owned(),
            })?;
            server.map_or(Ok(()), Server::stop)?;
            Ok(measured)
        })();
        if result.is_err() {
            // It was killed, and has left its trace in memory.
            awase::trace::file::remove_of(place);
        }
        result
    }
}

/// Writes a file's cached pages to the disk and drops them from memory.
pub fn forget(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed).with_context(|| format!("posix_fadvise {}", path.display()))
}
