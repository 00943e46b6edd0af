//! A file system in memory whose disk fails, mounted by FUSE: its `fsync` fails now and then, and a power cut takes back
//! what no successful `fsync` has covered. What it does is what ARCHITECTURE.md assumes of media and file systems, and
//! nothing better:
//!
//! - A sector of a file is as one `write` left it, never a mixture (M1).
//! - A successful `fsync` of a file makes durable what was complete when it started (M2, M9), and not what was written
//!   while it ran. One at a time; each takes some time.
//! - Forced writes (`RWF_DSYNC`, `O_DSYNC`) are plain writes, as on most file systems in user space: a server must not
//!   believe in them untried (M3 is not promised of files in general).
//! - An `fsync` that fails loses what is not durable at that time, also what was written while it ran: it is read as
//!   before until the power is cut, and no later `fsync` makes it durable; written anew, it is as any write (M7; Linux marks pages
//!   clean whose write-back failed).
//! - Names, modes and owners are durable at once (what `fsync` of a directory adds is tested elsewhere); it may fail all
//!   the same.
//! - A write's completion may be seen late, after that of an `fsync` which began later.
//!
//! After a power cut every call fails until the file system is mounted again.

mod content;
mod system;
mod tree;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};

use crate::random::Random;
use system::System;
use tree::Tree;

/// Threads that answer the kernel: an `fsync` holds one.
const THREADS: usize = 6;

#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// So many of 1000 `fsync`s fail.
    pub fsync_permille: u64,
    /// So many of 1000 writes are answered late, or done late.
    pub delay_permille: u64,
    /// So many microseconds at most.
    pub delay_us_max: u64,
}

/// What all mounts of the disk share.
struct Shared {
    tree: Mutex<Tree>,
    random: Mutex<Random>,
    faults: Mutex<Faults>,
    /// Power cuts so far: a mount of before is dead.
    cuts: AtomicU64,
    /// Held by the `fsync` that is under way.
    flushing: Mutex<()>,
}

/// A disk that fails. Unmounted when dropped.
pub struct FailingDisk {
    shared: Arc<Shared>,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl FailingDisk {
    /// An empty one at a directory, mounted. `Err` where FUSE cannot be used.
    pub fn new(path: &Path, faults: Faults, seed: u64) -> io::Result<FailingDisk> {
        let shared = Shared {
            tree: Mutex::new(Tree::new()),
            random: Mutex::new(Random(seed)),
            faults: Mutex::new(faults),
            cuts: AtomicU64::new(0),
            flushing: Mutex::new(()),
        };
        let mut disk = FailingDisk { shared: Arc::new(shared), path: path.to_owned(), session: None };
        disk.mount()?;
        Ok(disk)
    }

    /// Changes how often what fails.
    pub fn set_faults(&self, faults: Faults) {
        *self.shared.faults.lock().expect("no panic") = faults;
    }

    /// Cuts the power. With `keeps_some` some of what was not durable is there, as a disk may have kept it.
    pub fn cut(&mut self, keeps_some: bool) {
        let mut tree = self.shared.tree.lock().expect("no panic");
        // From now on nothing that is under way has an effect.
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
        let mut random = self.shared.random.lock().expect("no panic");
        tree.contents().for_each(|content| content.cut(keeps_some.then_some(&mut *random)));
    }

    /// Mounts it again after a cut, when all who used it are gone.
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
        let path = CString::new(self.path.as_os_str().as_bytes()).expect("no zero in a path");
        // SAFETY: the path is a C string. Whoever still has files open there ends by itself.
        let result = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        if result != 0 {
            eprintln!("{} is left mounted: {}", self.path.display(), io::Error::last_os_error());
            return;
        }
        // It ends when nobody uses the file system any more.
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
