//! Readiness of sockets and of the doorbell, by epoll.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::syscall;
use crate::Errno;

/// Events fetched with one call.
const EVENTS_PER_CALL: usize = 64;

/// An epoll instance. Sockets are armed for one event at a time; the doorbell's eventfd stays armed.
pub(super) struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: no pointer is passed.
        let fd = syscall::check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll {
            // SAFETY: the descriptor was just created and has no other owner.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// Reports whenever `fd` is readable, until it is closed.
    pub(super) fn watch(&self, fd: RawFd) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32)
    }

    /// Reports once when one of `events` is true for `fd`, or it fails. `known`: it was armed before. Another processor
    /// may have closed a descriptor and reused its number since: hence the second attempt.
    pub(super) fn arm(&self, fd: RawFd, events: u32, known: bool) -> Result<(), Errno> {
        let events = events | libc::EPOLLONESHOT as u32;
        let (first, second) =
            if known { (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD) } else { (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD) };
        match self.control(first, fd, events) {
            Err(Errno(libc::ENOENT | libc::EEXIST)) => self.control(second, fd, events),
            other => other,
        }
    }

    pub(super) fn forget(&self, fd: RawFd) {
        // Fails only when it is not known, which is as good.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0);
    }

    /// Appends what is ready now; what is [watched](Self::watch) perhaps more than once.
    pub(super) fn ready(&self, ready: &mut Vec<(RawFd, u32)>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_CALL];
        loop {
            let (at, room) = (events.as_mut_ptr(), EVENTS_PER_CALL as libc::c_int);
            // SAFETY: the kernel writes at most `room` events.
            let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), at, room, 0) };
            // Fails only when interrupted, which a call with timeout 0 is not.
            let count = usize::try_from(count).unwrap_or(0);
            ready.extend(events[..count].iter().map(|e| (e.u64 as RawFd, e.events)));
            if count < EVENTS_PER_CALL {
                return;
            }
        }
    }

    /// Sleeps until something is ready, a signal arrives or the time is over. `ppoll` for its resolution of
    /// nanoseconds, which `epoll_wait` lacks.
    pub(super) fn sleep(&self, time: Option<Duration>) {
        let mut watched = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = time.map(|time| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one descriptor is passed; the time, if any, outlives the call; no signal mask is given.
        unsafe { libc::ppoll(&raw mut watched, 1, time, std::ptr::null()) };
    }

    fn control(&self, what: libc::c_int, fd: RawFd, events: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the event lives on the stack during the call.
        let done = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), what, fd, &raw mut event) };
        syscall::check(done).map(drop)
    }
}
