//! Has the host report what others do to open files: fanotify(7), with a mark on each file. That takes no privilege since
//! Linux 5.13 (a process without it learns of an event only whether it was itself its cause, which is all that is asked here).
//!
//! Leases (`F_SETLEASE`) were considered: a lease that others' writes break is given only to who has the file open once,
//! and we have it open twice; and everybody on the host who opens the file would wait for our answer.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::call;
use crate::linux::syscall::check;
use crate::tree::Watch;
use crate::{Errno, OpenFile};

/// Reports gather so long before they are looked at: of our own writes there is one each time, too, and those of one file
/// become one as long as nobody has looked.
const GATHER: Duration = Duration::from_millis(2);

/// What reports name a file by: its handle on its file system. Two on different file systems may have the same, and then
/// both count as changed.
type Name = Vec<u8>;

/// A file that is watched.
struct Watched {
    changes: Arc<AtomicU64>,
    watches: usize,
}

impl Watched {
    fn note(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}

struct Watcher {
    group: OwnedFd,
    /// Held while reports are taken, so that who has asked for that has all of them.
    watched: Mutex<HashMap<Name, Watched>>,
}

/// The only one of the process; nothing where the host does not report.
static WATCHER: OnceLock<Option<Watcher>> = OnceLock::new();

/// A mark on a file, while it lasts.
struct Mark {
    watcher: &'static Watcher,
    name: Name,
    /// Keeps the descriptor open, by which the mark is taken away.
    file: OpenFile,
}

/// Watches an open file; `None` where the host can't.
pub(super) fn watch(file: &OpenFile) -> Option<Watch> {
    let watcher = WATCHER.get_or_init(start).as_ref()?;
    let fd = crate::linux::file::descriptor(file.file);
    // SAFETY: the file is open as long as its owner is there, which is borrowed here.
    let name = call::node_of(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?.as_bytes().get(1..)?.to_vec();
    let mut all = watcher.lock();
    let watched = all.entry(name.clone()).or_insert_with(|| Watched { changes: Arc::default(), watches: 0 });
    if watched.watches == 0 && watcher.mark(libc::FAN_MARK_ADD, fd).is_err() {
        all.remove(&name);
        return None;
    }
    watched.watches += 1;
    let changes = Arc::clone(&watched.changes);
    drop(all);
    let mark = Mark { watcher, name, file: file.clone() };
    Some(Watch { changes, take: take_reports, owner: Arc::new(mark) })
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut all = self.watcher.lock();
        let Some(watched) = all.get_mut(&self.name) else { return };
        watched.watches -= 1;
        if watched.watches == 0 {
            all.remove(&self.name);
            // A mark that stays costs the host a report now and then.
            let _ = self.watcher.mark(libc::FAN_MARK_REMOVE, crate::linux::file::descriptor(self.file.file));
        }
    }
}

fn take_reports() {
    if let Some(Some(watcher)) = WATCHER.get() {
        watcher.take();
    }
}

/// Starts to watch, with a thread that waits for reports.
fn start() -> Option<Watcher> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let init = |flags: libc::c_uint| {
        // SAFETY: no pointer is passed.
        check(unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint) })
    };
    // As many files as there are, where we may.
    let fd = init(flags | libc::FAN_UNLIMITED_MARKS).or_else(|_| init(flags)).ok()?;
    // SAFETY: the host has just made it, and nobody else knows of it.
    let group = unsafe { OwnedFd::from_raw_fd(fd) };
    let waits = std::thread::Builder::new().name("awase-watch".into()).spawn(|| {
        loop {
            if let Some(Some(watcher)) = WATCHER.get() {
                watcher.wait();
                watcher.take();
            }
            std::thread::sleep(GATHER);
        }
    });
    waits.ok()?;
    Some(Watcher { group, watched: Mutex::default() })
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, how: libc::c_uint, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: without a path the descriptor itself is meant.
        let done = unsafe { libc::fanotify_mark(self.group.as_raw_fd(), how, libc::FAN_MODIFY, fd, std::ptr::null()) };
        check(done).map(drop)
    }

    fn wait(&self) {
        let mut ready = libc::pollfd { fd: self.group.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is passed, to be filled in.
        unsafe { libc::poll(&raw mut ready, 1, -1) };
    }

    /// Counts what was reported so far.
    fn take(&self) {
        let mut buffer = [0_u64; 1024];
        let all = self.lock();
        loop {
            let room = size_of_val(&buffer);
            // SAFETY: the host fills in what the buffer has room for.
            let read = unsafe { libc::read(self.group.as_raw_fd(), buffer.as_mut_ptr().cast(), room) };
            let Some(len) = usize::try_from(read).ok().filter(|len| *len > 0) else { return };
            // SAFETY: they are bytes of the buffer, which has no padding.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), len) };
            count(&all, bytes);
        }
    }
}

/// Counts the events in `bytes`: `struct fanotify_event_metadata`, each with what else is known of it.
fn count(all: &HashMap<Name, Watched>, mut bytes: &[u8]) {
    let own = std::process::id();
    while let Some(event) = Event::parse(bytes) {
        let named = event.name.and_then(|name| all.get(name));
        if event.mask & libc::FAN_Q_OVERFLOW != 0 {
            all.values().for_each(Watched::note);
        } else if event.pid != own
            && let Some(watched) = named
        {
            watched.note();
        }
        bytes = &bytes[event.len..];
    }
}

struct Event<'a> {
    len: usize,
    mask: u64,
    pid: u32,
    name: Option<&'a [u8]>,
}

impl<'a> Event<'a> {
    /// The first event in `bytes`; none when they are not one.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let len = number(bytes, 0, 4)? as usize;
        let event = bytes.get(..len)?;
        let metadata_len = number(event, 6, 2)? as usize;
        let (mask, pid) = (number(event, 8, 8)?, number(event, 20, 4)? as u32);
        Some(Event { len, mask, pid, name: Self::name(event.get(metadata_len..)?) })
    }

    /// The handle in `struct fanotify_event_info_fid`: after a header of 4 bytes and the file system's number of 8 comes
    /// `struct file_handle`.
    fn name(info: &'a [u8]) -> Option<&'a [u8]> {
        let is_handle = number(info, 0, 1)? == u64::from(libc::FAN_EVENT_INFO_TYPE_FID);
        let len = number(info, 12, 4)? as usize;
        info.get(20..20 + len).filter(|_| is_handle)
    }
}

/// The number of `len` bytes at `at`, in the host's order of bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut value = [0; 8];
    let from = bytes.get(at..at + len)?;
    let start = if cfg!(target_endian = "big") { 8 - len } else { 0 };
    value[start..start + len].copy_from_slice(from);
    Some(u64::from_ne_bytes(value))
}
