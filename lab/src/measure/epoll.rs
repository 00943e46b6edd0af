//! Which connections are ready.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// Connections that one call reports.
const EVENTS_MAX: usize = 256;

pub struct Epoll {
    epoll: OwnedFd,
}

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: epoll_create1 takes a number and returns a new descriptor, which has no other owner.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error()).context("epoll_create1");
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Epoll { epoll })
    }

    /// Reports input on `what` from now on, as `number`.
    pub fn add(&self, what: &impl AsRawFd, number: usize) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, what, number, false)
    }

    /// Starts or stops reporting that it can be sent to.
    pub fn change(&self, what: &impl AsRawFd, number: usize, for_sending: bool) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, what, number, for_sending)
    }

    fn control(&self, operation: i32, what: &impl AsRawFd, number: usize, for_sending: bool) -> Result<()> {
        let events = libc::EPOLLIN | if for_sending { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: number as u64 };
        // SAFETY: two open descriptors and an event that lives until the call returns.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, what.as_raw_fd(), &raw mut event) } != 0 {
            return Err(io::Error::last_os_error()).context("epoll_ctl");
        }
        Ok(())
    }

    /// Puts the numbers of ready connections into `ready`; waits for the first until the timeout.
    pub fn wait(&self, ready: &mut Vec<usize>, timeout_ms: i32) -> Result<()> {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let (at, most) = (events.as_mut_ptr(), EVENTS_MAX as i32);
        // SAFETY: `at` points to `most` events, which live until the call returns.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), at, most, timeout_ms) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error).context("epoll_wait") };
        }
        ready.extend(events[..count as usize].iter().map(|event| event.u64 as usize));
        Ok(())
    }
}
