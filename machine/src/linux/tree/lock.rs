//! Locks on exported directories: two servers of one directory would have caches that are not coherent.
//!
//! `flock(2)` locks the directory itself, whatever path leads to it: exclusively, or against writers only. The
//! directories above it are locked against exports for writing, as far as they can be opened: so servers of a directory
//! and of one in it exclude each other. Not detected are a server on another host (of a network file system), and a
//! directory in an exported one that is reached through a bind mount only. The root directory and directories writable
//! for all (`/tmp`) are not locked from below: others lock them for their own purposes.
//!
//! A process may export one directory more than once, and the locks belong to the process: the table counts. Rings keep
//! the locked directories open (`uring::locks`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::OpenTreeError;
use crate::Errno;
use crate::linux::syscall::{self, check};

/// A directory: its file system and inode number.
type Name = (u64, u64);

struct Held {
    directory: Arc<File>,
    exclusive: usize,
    shared: usize,
}

impl Held {
    /// The operation of `flock` for the present counts.
    fn operation(&self) -> libc::c_int {
        match (self.exclusive, self.shared) {
            (0, 0) => libc::LOCK_UN,
            (0, _) => libc::LOCK_SH,
            _ => libc::LOCK_EX,
        }
    }
}

/// The directories that this process has locked.
static HELD: Mutex<BTreeMap<Name, Held>> = Mutex::new(BTreeMap::new());

/// For rings, which must not wait while the host locks or unlocks one: those that are locked exclusively first.
static LOCKED: Mutex<Vec<Arc<File>>> = Mutex::new(Vec::new());

/// Counts its changes.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How often other directories were locked.
pub(in crate::linux) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// The locked directories, those that are locked exclusively first, and after how many changes.
pub(in crate::linux) fn directories() -> (u64, Vec<Arc<File>>) {
    let locked = LOCKED.lock();
    (changes(), locked.clone())
}

fn publish(all: &BTreeMap<Name, Held>) {
    let (exclusive, shared): (Vec<&Held>, Vec<&Held>) = all.values().partition(|held| held.exclusive > 0);
    let directories = exclusive.into_iter().chain(shared).map(|held| Arc::clone(&held.directory)).collect();
    let mut locked = LOCKED.lock();
    *locked = directories;
    CHANGES.fetch_add(1, Ordering::Release);
}

fn held() -> MutexGuard<'static, BTreeMap<Name, Held>> {
    HELD.lock()
}

/// Locks on a directory and those above it, until this is dropped.
pub(super) struct Locked(Vec<(Name, bool)>);

impl Locked {
    /// Locks the directory `path`: exclusively, or, with `read_only`, against writers.
    ///
    /// # Errors
    /// [`OpenTreeError::Locked`] with the directory that another process has locked; when it is not a directory.
    pub(super) fn new(path: &Path, read_only: bool) -> Result<Self, OpenTreeError> {
        let mut locked = Locked(Vec::new());
        let host = |what, path: &Path, errno| OpenTreeError::Host { what, path: path.to_owned(), errno };
        let directory = open(path).map_err(|error| super::not_opened(path, &error))?;
        locked.add(path, directory, !read_only).map_err(|errno| refused(path, errno))?;
        let real = std::fs::canonicalize(path).map_err(|error| host("find", path, syscall::errno(&error)))?;
        for above in real.ancestors().skip(1) {
            // A directory that cannot be opened cannot be locked.
            let Ok(directory) = open(above) else { continue };
            if !is_shared(&directory, above) {
                locked.add(above, directory, false).map_err(|errno| refused(above, errno))?;
            }
        }
        Ok(locked)
    }

    fn add(&mut self, path: &Path, directory: File, exclusive: bool) -> Result<(), Errno> {
        let found = directory.metadata().map_err(|error| syscall::errno(&error))?;
        let name = (found.dev(), found.ino());
        debug_assert!(found.is_dir(), "{path:?} was opened as a directory");
        let mut all = held();
        let held = all.entry(name).or_insert_with(|| Held { directory: Arc::new(directory), exclusive: 0, shared: 0 });
        let before = held.operation();
        if exclusive {
            held.exclusive += 1
        } else {
            held.shared += 1
        }
        self.0.push((name, exclusive));
        let now = held.operation();
        let locked = if now == before { Ok(()) } else { lock(&held.directory, now) };
        publish(&all);
        drop(all);
        match locked {
            // File systems that have no such locks, or none on directories (NFS).
            Err(Errno(libc::EBADF | libc::EINVAL | libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP)) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let mut all = held();
        for (name, exclusive) in &self.0 {
            let Some(held) = all.get_mut(name) else { continue };
            if *exclusive {
                held.exclusive -= 1
            } else {
                held.shared -= 1
            }
            // Unlocked before it is closed: a program that this process starts holds a copy for a moment.
            let operation = held.operation();
            let _ = lock(&held.directory, operation);
            if operation == libc::LOCK_UN {
                all.remove(name);
            }
        }
        publish(&all);
    }
}

fn lock(directory: &File, operation: libc::c_int) -> Result<(), Errno> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::flock(directory.as_raw_fd(), operation | libc::LOCK_NB) }).map(drop)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NONBLOCK).open(path)
}

/// Whether others lock the directory for their own purposes.
fn is_shared(directory: &File, path: &Path) -> bool {
    let is_writable_for_all = |mode: u32| mode & libc::S_ISVTX != 0 && mode & libc::S_IWOTH != 0;
    path.parent().is_none() || directory.metadata().is_ok_and(|found| is_writable_for_all(found.mode()))
}

fn refused(path: &Path, errno: Errno) -> OpenTreeError {
    let path: PathBuf = path.to_owned();
    match errno.0 {
        libc::EWOULDBLOCK => OpenTreeError::Locked(path),
        _ => OpenTreeError::Host { what: "lock", path, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process's lock: of an open file of its own.
    fn others(path: &Path, operation: libc::c_int) -> Result<File, Errno> {
        let directory = open(path).expect("opens");
        lock(&directory, operation).map(|()| directory)
    }

    #[test]
    fn a_directory_is_locked_for_one_process_however_often_it_is_opened() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let (above, path) = (place.path(), place.path().join("in"));
        std::fs::create_dir(&path).expect("made");
        let first = Locked::new(&path, true).expect("free");
        assert!(others(&path, libc::LOCK_EX).is_err() && others(&path, libc::LOCK_SH).is_ok());
        let second = Locked::new(&path, false).expect("ours");
        assert!(others(&path, libc::LOCK_SH).is_err(), "now for changes");
        assert!(others(above, libc::LOCK_EX).is_err() && others(above, libc::LOCK_SH).is_ok());
        drop(first);
        assert!(others(&path, libc::LOCK_SH).is_err());
        drop(second);
        let other = others(&path, libc::LOCK_EX).expect("free again");
        assert!(matches!(Locked::new(&path, true), Err(OpenTreeError::Locked(at)) if at == path));
        drop(other);
        let other = others(above, libc::LOCK_EX).expect("free again");
        assert!(matches!(Locked::new(&path, true), Err(OpenTreeError::Locked(at)) if at == above));
        drop(other);
        let reads = Locked::new(&path, true).expect("free");
        let other = others(&path, libc::LOCK_SH).expect("reads, too");
        assert!(Locked::new(&path, false).is_err(), "not for changes while another one reads");
        drop(other);
        assert!(others(&path, libc::LOCK_EX).is_err(), "still locked for reading");
        drop(reads);
        assert!(others(&path, libc::LOCK_EX).is_ok());
    }
}
