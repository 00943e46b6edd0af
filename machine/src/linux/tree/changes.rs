//! Tells our own changes of the names in a directory from others': inotify(7), with a watch on each directory in which names
//! were changed lately.
//!
//! Clients are told a directory's attributes from before their change only where nobody else changed it in between: a
//! client that gets them takes all of the difference for its own change (RFC 1813, 2.6: `wcc_data`). The host queues an
//! event under the directory's lock (Linux, fs/namei.c: `open_last_lookups`, `vfs_unlink`), so those of changes before
//! ours are there when ours returns. What can be missed is a change behind ours whose new times are visible already and
//! whose event is not queued yet: the host gives no way to see both at once.
//!
//! Fanotify was rejected: its group is the process's, whose threads would take each other's events.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io;

use super::call;
use crate::tree::Node;

const BUFFER_BYTES: usize = 4096;

/// Watches that stay for the next change in their directories, at most. To remove one wakes two threads of the host's, which
/// take the core from others for longer than the change itself; to close its group would wait for them.
const KEPT_MAX: usize = 16;

/// Watches that nobody uses, the one used last at the end.
static KEPT: Mutex<VecDeque<Watch>> = Mutex::new(VecDeque::new());

/// A watch of the names in one directory. It keeps no file system from being unmounted, and no removed directory allocated.
struct Watch {
    /// The tree and the directory.
    of: (u32, Node),
    /// For this watch only: a group has one queue for all of its watches.
    group: OwnedFd,
    number: i32,
}

impl Watch {
    /// `None` where the host cannot.
    fn new(of: (u32, Node), dir: BorrowedFd) -> Option<Watch> {
        Watch::begin(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?, of, dir)
    }

    fn begin(group: OwnedFd, of: (u32, Node), dir: BorrowedFd) -> Option<Watch> {
        let kinds = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        let number = call::watch_names(group.as_fd(), dir, kinds).ok()?;
        Some(Watch { of, group, number })
    }

    /// Watches another directory instead.
    fn turn_to(self, of: (u32, Node), dir: BorrowedFd) -> Option<Watch> {
        // Its directory may be gone, and the watch with it.
        let _ = inotify::remove_watch(&self.group, self.number);
        Watch::begin(self.group, of, dir)
    }

    fn saw_only(&self, names: &[&[u8]]) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = Reader::new(&self.group, &mut buffer);
        let (mut seen, mut others) = (0, false);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => others = true,
                // Of the directory before.
                Ok(event) if event.wd() != self.number => {}
                Ok(event) => {
                    seen += 1;
                    others |= !event.file_name().is_some_and(|name| names.contains(&name.to_bytes()));
                }
                Err(io::Errno::INTR) => {}
                Err(error) => return error == io::Errno::AGAIN && !others && seen <= names.len(),
            }
        }
    }
}

/// A kept watch of this directory, or else, if there are many, the one that was not used for longest.
fn take_kept(of: (u32, Node)) -> Option<Watch> {
    let mut kept = KEPT.lock();
    let found = kept.iter().rposition(|watch| watch.of == of);
    let oldest = (kept.len() >= KEPT_MAX).then_some(0);
    kept.remove(found.or(oldest)?)
}

/// A watch that this thread uses.
pub(super) struct Watching(Option<Watch>);

impl Watching {
    /// Watches this directory of a tree from now on: what happened before does not count. `None` where the host cannot.
    pub(super) fn begin(of: (u32, Node), dir: BorrowedFd) -> Option<Watching> {
        let watch = match take_kept(of) {
            Some(watch) if watch.of == of => {
                watch.saw_only(&[]);
                watch
            }
            Some(watch) => watch.turn_to(of, dir)?,
            None => Watch::new(of, dir)?,
        };
        Some(Watching(Some(watch)))
    }

    /// Whether all changes since the last call, or since the beginning, were of these names, and no more than there are
    /// names.
    pub(super) fn saw_only(&self, names: &[&[u8]]) -> bool {
        self.0.as_ref().is_some_and(|watch| watch.saw_only(names))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|watch| KEPT.lock().push_back(watch));
    }
}
