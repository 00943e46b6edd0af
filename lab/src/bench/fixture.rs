//! What is made for measurements beside other servers: a directory on a disk, and one server at a time.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::bench::contender::{Contender, Export, Order, Server};
use crate::measure::process::Interrupted;

pub const MIB: f64 = 1048576.0;

/// `f_type` of file systems that are not on a disk (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

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
        if file_system(directory)? == TMPFS_MAGIC {
            bail!("{} lies in memory (tmpfs): give a directory on a disk with --directory", directory.display());
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
        let server = Server::start(contender, &Order { awase: &self.awase, export, place }, &self.interrupted)?;
        let measured = measure(server.as_ref()).with_context(|| match &server {
            Some(server) => format!("{} says: {:?}", contender.label, server.process.messages()),
            None => contender.label.to_owned(),
        })?;
        server.map_or(Ok(()), Server::stop)?;
        Ok(measured)
    }
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
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a structure of numbers, for which zeroes are values.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends with zero and a structure of the kind that statfs fills; both live until it returns.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut facts) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| path.display().to_string());
    }
    Ok(facts.f_type as i64)
}
