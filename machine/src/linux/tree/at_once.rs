//! Calls that are answered at once, on the processor that has them to make.
//!
//! Most calls on a tree may wait for a disk, so another thread makes them, which takes two thread switches: several
//! times as long as the call itself if the host has all of it in memory. What surely waits for nothing is done here: names
//! in directories that are open, which the host can be asked to look up in its memory alone (`RESOLVE_CACHED`, Linux 5.12);
//! attributes of what is open, and permissions for it where there can be no access control list, which the host may have to
//! read; files that were made just now and are still open. The rest another thread has to do.
//!
//! Not on file systems that may have to ask others for attributes (FUSE, network). Nothing that is not open already is
//! opened but for its path: it may have to be read from the disk. What is open is opened for writing here, without waiting
//! for who has a lease on it; but a program on the host may want to be asked (`FAN_OPEN_PERM`), which cannot be known
//! before. After two that took long in a row another thread opens files for some time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::HostTree;
use super::call;
use super::content::Lease;
use super::names::entry_name;
use super::permission::SEARCH;
use super::status;
use crate::Errno;
use crate::tree::{Attributes, BeforeAndAfter, Caller, Node, OpenNode, TreeCall, TreeOp, TreeReply};

/// Directories that stay open, at most. One that was removed on the host stays allocated until others replace it.
pub(super) const DIRECTORIES_MAX: usize = 64;

/// An opening that takes longer has waited for somebody, or was interrupted: two in a row are no accident.
const SLOW_OPEN: Duration = Duration::from_micros(500);

/// How long another thread then opens files.
const SLOW_OPENS_LAST: Duration = Duration::from_secs(10);

/// Whether files take long to open, because a program on the host wants to be asked.
#[derive(Default)]
pub(super) struct SlowOpens {
    in_row: AtomicU32,
    until: Mutex<Option<Instant>>,
}

impl SlowOpens {
    fn are_expected(&self) -> bool {
        self.until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn note(&self, took: Duration) {
        if took < SLOW_OPEN {
            self.in_row.store(0, Ordering::Relaxed);
        } else if self.in_row.fetch_add(1, Ordering::Relaxed) > 0 {
            *self.until.lock() = Some(Instant::now() + SLOW_OPENS_LAST);
        }
    }
}

impl HostTree {
    /// The result of a call that waits for nothing; `None`: another thread must make it, and nothing was done.
    pub(super) fn perform_at_once(&self, op: &TreeOp) -> Option<Result<u64, Errno>> {
        if !self.answers_at_once {
            return None;
        }
        let answer = match &op.call {
            TreeCall::Lookup { dir, name } => self.lookup_at_once(op.caller.as_ref(), dir, name)?,
            TreeCall::Attributes { node } => Ok(TreeReply::Attributes(self.attributes_at_hand(node)?)),
            TreeCall::Access { node, wanted } => self.on_open(node, |fd, status| {
                let caller = op.caller.as_ref();
                let is_clear = self.identity.acting_uid(caller) == status.stx_uid || has_no_list(status);
                is_clear.then(|| self.access_to(caller, fd, status, *wanted))
            })??,
            TreeCall::Open { node, writable: false } => Ok(TreeReply::Opened(self.open_made(node)?)),
            TreeCall::Open { node, writable: true } => self.open_for_writing(node)?.map(TreeReply::Opened),
            _ => return None,
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(errno) => return Some(Err(errno)),
        };
        if let Some(around) = &op.around {
            let after = |node| Some((None, Some(self.attributes_at_hand(node)?)));
            let attributes: Option<Vec<BeforeAndAfter>> = around.nodes.iter().map(after).collect();
            *around.attributes.lock() = attributes?;
        }
        *op.reply.lock() = Some(reply);
        Some(Ok(0))
    }

    fn lookup_at_once(&self, caller: Option<&Caller>, dir: &Node, name: &[u8]) -> Option<Result<TreeReply, Errno>> {
        let (dir, name) = (self.directories.get(dir)?, entry_name(name).ok()?);
        self.require(caller, dir.as_fd(), SEARCH).ok()?;
        let opened = {
            let _acting = self.identity.act_as(caller).ok()?;
            call::open_cached(dir.as_fd(), &name)
        };
        let found = match opened {
            Ok(fd) => self.opened(fd).ok()?,
            // In a removed directory nothing is found: another thread tells that from a missing name.
            Err(Errno(libc::ENOENT)) if is_linked(dir.as_fd()) => return Some(Err(Errno(libc::ENOENT))),
            Err(_) => return None,
        };
        self.note(dir.as_fd(), &name, &found);
        let reply = TreeReply::Node(found.node, found.attributes());
        if found.is_directory() {
            self.directories.insert(found.node, Arc::new(found.fd));
        }
        Some(Ok(reply))
    }

    fn open_for_writing(&self, node: &Node) -> Option<Result<OpenNode, Errno>> {
        if self.read_only || self.slow_opens.are_expected() {
            return None;
        }
        let began = Instant::now();
        let opened = self.open_again_for_writing(node, Lease::Refuse);
        self.slow_opens.note(began.elapsed());
        match opened {
            Err(Errno(libc::EWOULDBLOCK)) => None,
            opened => opened.transpose(),
        }
    }

    fn attributes_at_hand(&self, node: &Node) -> Option<Attributes> {
        self.on_open(node, |_, status| status::attributes(status))
    }

    /// Does something with a directory or file that is open. `None`: it is not, or has no name any more.
    fn on_open<T>(&self, node: &Node, act: impl FnOnce(BorrowedFd, &libc::statx) -> T) -> Option<T> {
        let linked = |fd| call::status(fd).ok().filter(|status| status.stx_nlink > 0);
        if let Some(dir) = self.directories.get(node) {
            return linked(dir.as_fd()).map(|status| act(dir.as_fd(), &status));
        }
        let file = self.at_hand(node)?;
        linked(file.as_fd()).map(|status| act(file.as_fd(), &status))
    }
}

/// An access control list has its mask, which is not empty, where the mode has the group's permissions; owners are not in it.
fn has_no_list(status: &libc::statx) -> bool {
    u32::from(status.stx_mode) & libc::S_IRWXG == 0
}

fn is_linked(dir: BorrowedFd) -> bool {
    call::status(dir).is_ok_and(|status| status.stx_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_openings_in_a_row_are_no_accident() {
        let opens = SlowOpens::default();
        for took in [SLOW_OPEN, Duration::ZERO, SLOW_OPEN] {
            opens.note(took);
            assert!(!opens.are_expected());
        }
        opens.note(SLOW_OPEN);
        assert!(opens.are_expected());
    }
}
