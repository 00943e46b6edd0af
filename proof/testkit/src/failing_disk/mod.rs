//! A file system in memory on a failing disk, mounted by FUSE: `fsync` and writes sometimes fail, and a power cut loses what no
//! successful `fsync` has covered. It is no better than ARCHITECTURE.md assumes of media and file systems:
//!
//! - A sector of a file has the content of one `write`, never a mixture (M1).
//! - A successful `fsync` of a file makes durable what was complete when it started (M2, M9), and not what was written
//!   while it ran. One runs at a time, and takes some time.
//! - Forced writes (`RWF_DSYNC`, `O_DSYNC`) are plain writes, as on most file systems in user space: a server must not
//!   trust them (M3 does not hold for files in general).
//! - After a failed `fsync`, what is not durable by then, also what was written while it ran, is read as before, but no
//!   later `fsync` makes it durable unless it is written again (M7; Linux marks pages clean whose write-back failed).
//! - Names, modes and owners are durable at once (`fsync` of directories is tested elsewhere), yet `fsync` of a directory
//!   may fail.
//! - The completion of a write may be delayed past that of an `fsync` that began later.
//!
//! After a power cut every call fails until the file system is mounted again.

mod content;
mod system;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use parking_lot::Mutex;

use crate::random::Random;
use system::System;
use tree::Tree;

/// Threads that answer the kernel: an `fsync` occupies one.
const THREADS: usize = 6;

#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// `fsync`s that fail, of 1000.
    pub fsync_permille: u64,
    /// Writes that fail and do nothing, of 1000.
    pub write_permille: u64,
    /// Writes that are done late, and writes that are answered late, of 1000.
    pub delay_permille: u64,
    /// Longest delay. Microseconds.
    pub delay_us_max: u64,
}

/// Shared by all mounts of the disk.
struct Shared {
    tree: Mutex<Tree>,
    random: Mutex<Random>,
    faults: Mutex<Faults>,
    /// Power cuts so far: earlier mounts are dead.
    cuts: AtomicU64,
    /// Held by the `fsync` in flight.
    flushing: Mutex<()>,
    /// Inode numbers of directories that were synced, in order.
    synced: Mutex<Vec<u64>>,
    /// The file system finds nodes by handle that the kernel has forgotten.
    has_persistent_handles: bool,
}

/// Unmounted when dropped.
pub struct FailingDisk {
    shared: Arc<Shared>,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl FailingDisk {
    /// An empty disk, mounted at `path`. Fails where FUSE cannot be used.
    pub fn new(path: &Path, faults: Faults, seed: u64) -> io::Result<FailingDisk> {
        FailingDisk::make(path, faults, seed, true)
    }

    /// The same without faults. As with most file systems in user space, a handle is valid only while the kernel has its node
    /// in memory.
    pub fn with_volatile_handles(path: &Path) -> io::Result<FailingDisk> {
        let none = Faults { fsync_permille: 0, write_permille: 0, delay_permille: 0, delay_us_max: 0 };
        FailingDisk::make(path, none, 1, false)
    }

    fn make(path: &Path, faults: Faults, seed: u64, has_persistent_handles: bool) -> io::Result<FailingDisk> {
        let shared = Shared {
            tree: Mutex::new(Tree::new()),
            random: Mutex::new(Random(seed)),
            faults: Mutex::new(faults),
            cuts: AtomicU64::new(0),
            flushing: Mutex::new(()),
            synced: Mutex::default(),
            has_persistent_handles,
        };
        let mut disk = FailingDisk { shared: Arc::new(shared), path: path.to_owned(), session: None };
        disk.mount()?;
        Ok(disk)
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.shared.faults.lock() = faults;
    }

    /// Inode numbers of the directories that were synced so far, in order.
    pub fn synced_directories(&self) -> Vec<u64> {
        self.shared.synced.lock().clone()
    }

    /// Cuts the power. With `keeps_some` a random part of what was not durable survives.
    pub fn cut(&mut self, keeps_some: bool) {
        let mut tree = self.shared.tree.lock();
        // From now on calls in flight have no effect.
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
        let mut random = self.shared.random.lock();
        tree.contents().for_each(|content| content.cut(keeps_some.then_some(&mut *random)));
    }

    /// Mounts it again after a cut, once no process uses it.
    pub fn mount_again(&mut self) -> io::Result<()> {
        self.unmount();
        self.mount()
    }

    fn mount(&mut self) -> io::Result<()> {
        let system = System { shared: Arc::clone(&self.shared), cuts: self.shared.cuts.load(Ordering::SeqCst) };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("awase-failing-disk".into()), MountOption::DefaultPermissions];
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        self.session = Some(fuser::spawn_mount(system, &self.path, &config)?);
        Ok(())
    }

    fn unmount(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Detaching does not wait for open files.
        if let Err(error) = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("{} is left mounted: {error}", self.path.display());
            return;
        }
        // It ends when the file system is no longer used.
        if let Err(error) = session.join() {
            eprintln!("the file system at {} ended badly: {error}", self.path.display());
        }
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        self.unmount();
    }
}
