//! Reports changes that others make to open files: fanotify(7), with a mark on each file. Unprivileged since Linux 5.13
//! (a process without privileges only learns whether it caused an event itself, which suffices).
//!
//! Rejected: leases (`F_SETLEASE`). A lease that others' writes break is granted only to the sole opener of the file,
//! and Awase has it open twice; and every process on the host that opens the file would wait for our answer.
//!
//! Others' changes of a file are reported by fanotify, not excluded by leases. A lease on a file that is written goes
//! only to who has it open once, and each who opens the file would wait for Awase. A mark on each open file takes no
//! privilege since Linux 5.13, and tells our own writes by the process. To read a block again before each change of a
//! part of it would not do: the host may write between the two.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::call;
use crate::linux::syscall::check;
use crate::tree::Watch;
use crate::{Errno, OpenFile};

/// Reports gather this long before they are read: our own writes cause one each, too, and unread ones of the same file
/// are merged.
const GATHER: Duration = Duration::from_millis(2);

/// The handle that identifies a file in reports. Files of two file systems may share one, as in a file system and its copy;
/// then both count as changed.
type Name = Vec<u8>;

/// The number of a file system's device: major, minor.
type Device = (u32, u32);

/// The watches of one file.
struct Watched {
    device: Device,
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
    /// Held while reports are read, so that a caller of `take` has seen all of them.
    watched: Mutex<HashMap<Name, Vec<Watched>>>,
}

/// One for the process; `None` where the host does not report.
static WATCHER: OnceLock<Option<Watcher>> = OnceLock::new();

/// The mark on a file, removed on drop.
struct Mark {
    watcher: &'static Watcher,
    name: Name,
    device: Device,
    /// Holds the descriptor open, by which the mark is removed.
    file: OpenFile,
}

/// Watches an open file; `None` where the host cannot.
pub(super) fn watch(file: &OpenFile) -> Option<Watch> {
    let watcher = WATCHER.get_or_init(start).as_ref()?;
    let fd = crate::linux::file::descriptor(file.file);
    // SAFETY: the file is open as long as its owner lives, which is borrowed.
    let open = unsafe { BorrowedFd::borrow_raw(fd) };
    let name = call::node_of(open).ok()?.as_bytes().get(1..)?.to_vec();
    let found = call::status(open).ok()?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let mut all = watcher.watched.lock();
    let known = all.get_mut(&name).and_then(|files| files.iter_mut().find(|file| file.device == device));
    let changes = if let Some(watched) = known {
        watched.watches += 1;
        Arc::clone(&watched.changes)
    } else {
        watcher.mark(libc::FAN_MARK_ADD, fd).ok()?;
        let changes = Arc::default();
        all.entry(name.clone()).or_default().push(Watched { device, changes: Arc::clone(&changes), watches: 1 });
        changes
    };
    drop(all);
    let mark = Mark { watcher, name, device, file: file.clone() };
    Some(Watch { changes, take: take_reports, owner: Arc::new(mark) })
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut all = self.watcher.watched.lock();
        let Some(files) = all.get_mut(&self.name) else { return };
        let Some(at) = files.iter().position(|file| file.device == self.device) else { return };
        files[at].watches -= 1;
        if files[at].watches == 0 {
            files.swap_remove(at);
            if files.is_empty() {
                all.remove(&self.name);
            }
            // A mark that stays only costs occasional reports.
            let _ = self.watcher.mark(libc::FAN_MARK_REMOVE, crate::linux::file::descriptor(self.file.file));
        }
    }
}

fn take_reports() {
    if let Some(Some(watcher)) = WATCHER.get() {
        watcher.take();
    }
}

/// Starts watching, with a thread that waits for reports.
fn start() -> Option<Watcher> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let init = |flags: libc::c_uint| {
        // SAFETY: no pointer is passed.
        check(unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint) })
    };
    // Without a limit of marks, where permitted.
    let fd = init(flags | libc::FAN_UNLIMITED_MARKS).or_else(|_| init(flags)).ok()?;
    // SAFETY: the host has just made it, and it has no other owner.
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

    /// Counts the reports so far.
    fn take(&self) {
        let mut buffer = [0_u64; 1024];
        let all = self.watched.lock();
        loop {
            let room = size_of_val(&buffer);
            // SAFETY: the host writes at most `room` bytes.
            let read = unsafe { libc::read(self.group.as_raw_fd(), buffer.as_mut_ptr().cast(), room) };
            let Some(len) = usize::try_from(read).ok().filter(|len| *len > 0) else { return };
            // SAFETY: they are bytes of the buffer, which has no padding.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), len) };
            count(&all, bytes);
        }
    }
}

/// Counts the events in `bytes`: `struct fanotify_event_metadata`, each with its information records.
fn count(all: &HashMap<Name, Vec<Watched>>, mut bytes: &[u8]) {
    let own = std::process::id();
    while let Some(event) = Event::parse(bytes) {
        let named = event.name.and_then(|name| all.get(name));
        if event.mask & libc::FAN_Q_OVERFLOW != 0 {
            all.values().flatten().for_each(Watched::note);
        } else if event.pid != own {
            named.into_iter().flatten().for_each(Watched::note);
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
    /// The first event in `bytes`.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let len = number(bytes, 0, 4)? as usize;
        let event = bytes.get(..len)?;
        let metadata_len = number(event, 6, 2)? as usize;
        let (mask, pid) = (number(event, 8, 8)?, number(event, 20, 4)? as u32);
        Some(Event { len, mask, pid, name: Self::name(event.get(metadata_len..)?) })
    }

    /// The handle in `struct fanotify_event_info_fid`: `struct file_handle`, after a header of 4 bytes and the file
    /// system's number of 8.
    fn name(info: &'a [u8]) -> Option<&'a [u8]> {
        let is_handle = number(info, 0, 1)? == u64::from(libc::FAN_EVENT_INFO_TYPE_FID);
        let len = number(info, 12, 4)? as usize;
        info.get(20..20 + len).filter(|_| is_handle)
    }
}

/// The number of `len` bytes at `at`, in host byte order.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut value = [0; 8];
    let from = bytes.get(at..at + len)?;
    let start = if cfg!(target_endian = "big") { 8 - len } else { 0 };
    value[start..start + len].copy_from_slice(from);
    Some(u64::from_ne_bytes(value))
}
