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
/// take the core from others for longer than the change itself; to close its group would wait for them. Meanwhile the host keeps
/// what others change in these directories: as much as it allows a group (`fs.inotify.max_queued_events`).
const KEPT_MAX: usize = 8;

/// Watches at most, with those in use: the host allows a user so many groups (128 by default).
const WATCHES_MAX: usize = 32;

static WATCHES: Mutex<Watches> = Mutex::new(Watches { kept: VecDeque::new(), count: 0 });

struct Watches {
    /// Those that nobody uses, the one used last at the end.
    kept: VecDeque<Watch>,
    /// All that there are.
    count: usize,
}

/// A watch of the names in one directory. It keeps no file system from being unmounted, and no removed directory allocated.
struct Watch {
    /// The tree and the directory.
    of: (u32, Node),
    /// For this watch only: a group has one queue for all of its watches.
    group: OwnedFd,
    /// `None`: not there yet.
    number: Option<i32>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHES.lock().count -= 1;
    }
}

impl Watch {
    /// A kept watch of this directory, or else, if there are many, the one that was not used for longest, or a new one. `None`
    /// where the host cannot, or too many are in use.
    fn take(of: (u32, Node)) -> Option<Watch> {
        let mut watches = WATCHES.lock();
        let found = watches.kept.iter().rposition(|watch| watch.of == of);
        let oldest = (watches.kept.len() >= KEPT_MAX).then_some(0);
        if let Some(at) = found.or(oldest) {
            return watches.kept.remove(at);
        }
        if watches.count >= WATCHES_MAX {
            return None;
        }
        let group = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        watches.count += 1;
        Some(Watch { of, group, number: None })
    }

    /// Watches this directory from now on: what happened before does not count.
    fn turn_to(&mut self, of: (u32, Node), dir: BorrowedFd) -> Option<()> {
        if let Some(number) = self.number
            && self.of != of
        {
            // Its directory may be gone, and the watch with it.
            let _ = inotify::remove_watch(&self.group, number);
            self.number = None;
        }
        self.of = of;
        let is_there = self.drain();
        if !is_there {
            let kinds = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
            self.number = Some(call::watch_names(self.group.as_fd(), dir, kinds).ok()?);
        }
        Some(())
    }

    /// Forgets the events so far. Returns whether the watch is known to be there.
    fn drain(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = Reader::new(&self.group, &mut buffer);
        let mut is_there = self.number.is_some();
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => is_there = false,
                Ok(event) => {
                    is_there &= Some(event.wd()) != self.number || !event.events().contains(ReadFlags::IGNORED)
                }
                Err(io::Errno::INTR) => {}
                Err(error) => return is_there && error == io::Errno::AGAIN,
            }
        }
    }

    fn saw_only(&self, names: &[&[u8]]) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = Reader::new(&self.group, &mut buffer);
        let (mut seen, mut others) = (0, false);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => others = true,
                // Of the directory before.
                Ok(event) if Some(event.wd()) != self.number => {}
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

/// A watch that this thread uses.
pub(super) struct Watching(Option<Watch>);

impl Watching {
    /// Watches this directory of a tree from now on: what happened before does not count. `None` where the host cannot.
    pub(super) fn begin(of: (u32, Node), dir: BorrowedFd) -> Option<Watching> {
        let mut watch = Watch::take(of)?;
        watch.turn_to(of, dir)?;
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
        self.0.take().into_iter().for_each(|watch| WATCHES.lock().kept.push_back(watch));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn each_watch_that_is_used_again_sees_others_changes_and_none_from_before() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let dirs = (0..2 * KEPT_MAX).map(|k| place.path().join(k.to_string())).map(|path| {
            fs::create_dir(&path).expect("made");
            let fd = File::open(&path).expect("opened");
            let node = call::node_of(fd.as_fd()).expect("named");
            (path, fd, node)
        });
        let dirs: Vec<_> = dirs.collect();
        for round in 0..3 {
            for (path, fd, node) in &dirs {
                for turn in 0..3 {
                    let make = |name: &str| drop(fs::create_dir(path.join(format!("{name} {round} {turn}"))));
                    let own = format!("own {round} {turn}");
                    make("before");
                    let watching = Watching::begin((u32::MAX, *node), fd.as_fd()).expect("watched");
                    make("own");
                    assert!(watching.saw_only(&[own.as_bytes()]), "only our own");
                    assert!(watching.saw_only(&[]), "nothing since");
                    make("another's");
                    assert!(!watching.saw_only(&[own.as_bytes()]), "another's");
                }
            }
        }
    }

    #[test]
    fn a_watch_that_the_host_has_removed_is_made_again() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let dir = File::open(place.path()).expect("opened");
        let of = (u32::MAX, call::node_of(dir.as_fd()).expect("named"));
        let mut watch = Watch::take(of).expect("a watch");
        watch.turn_to(of, dir.as_fd()).expect("watched");
        inotify::remove_watch(&watch.group, watch.number.expect("watched")).expect("removed");
        watch.turn_to(of, dir.as_fd()).expect("watched");
        fs::create_dir(place.path().join("another's")).expect("made");
        assert!(!watch.saw_only(&[]));
    }
}
