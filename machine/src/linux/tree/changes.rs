//! Tells our own changes of the names in a directory from others': inotify(7), with a watch for as long as a thread holds
//! the directory open.
//!
//! Clients are told a directory's attributes from before their change only where nobody else changed it in between: a
//! client that gets them takes all of the difference for its own change (RFC 1813, 2.6: `wcc_data`). The host queues an
//! event under the directory's lock (Linux, fs/namei.c: `open_last_lookups`, `vfs_unlink`), so those of changes before
//! ours are there when ours returns. What can be missed is a change behind ours whose new times are visible already and
//! whose event is not queued yet: the host gives no way to see both at once.
//!
//! Fanotify was rejected: its group is the process's, whose threads would take each other's events.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io;

use super::call;

thread_local! {
    static GROUP: Option<OwnedFd> = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
}

const BUFFER_BYTES: usize = 4096;

/// A watch of the names in one directory, by this thread. Removed on drop.
pub(super) struct Watch(i32);

impl Watch {
    /// `None` where the host cannot.
    pub(super) fn new(dir: BorrowedFd) -> Option<Watch> {
        let kinds = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        let add = |group: &OwnedFd| call::watch_names(group.as_fd(), dir, kinds).ok();
        GROUP.with(|group| group.as_ref().and_then(add)).map(Watch)
    }

    /// Whether all changes since the last call, or since the watch was made, were of these names, and no more than there
    /// are names.
    pub(super) fn saw_only(&self, names: &[&[u8]]) -> bool {
        GROUP.with(|group| group.as_ref().is_some_and(|group| self.has_read_only(group, names)))
    }

    fn has_read_only(&self, group: &OwnedFd, names: &[&[u8]]) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = Reader::new(group, &mut buffer);
        let (mut seen, mut others) = (0, false);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => others = true,
                // Of a watch that was removed.
                Ok(event) if event.wd() != self.0 => {}
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

impl Drop for Watch {
    fn drop(&mut self) {
        // It may be gone with its directory.
        GROUP.with(|group| group.as_ref().map(|group| inotify::remove_watch(group, self.0)));
    }
}
