//! Which connections are ready.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Connections that one call reports.
const EVENTS_MAX: usize = 256;

pub struct Epoll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Epoll {
    pub fn new() -> Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create1")?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Reports input on `what` from now on, as `number`.
    pub fn add(&self, what: &impl AsRawFd, number: usize) -> Result<()> {
        epoll::add(&self.epoll, borrowed(what), EventData::new_u64(number as u64), EventFlags::IN).context("epoll_ctl")
    }

    /// Starts or stops reporting that it can be sent to.
    pub fn change(&self, what: &impl AsRawFd, number: usize, for_sending: bool) -> Result<()> {
        let events = if for_sending { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.epoll, borrowed(what), EventData::new_u64(number as u64), events).context("epoll_ctl")
    }

    /// Puts the numbers of ready connections into `ready`; waits for the first until the timeout, if there is one.
    pub fn wait(&mut self, ready: &mut Vec<usize>, timeout_ms: Option<u32>) -> Result<()> {
        ready.clear();
        self.events.clear();
        let timeout =
            timeout_ms.map(|ms| Timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll_wait"),
        }
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

fn borrowed(what: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: it is open, and borrowed for as long as the descriptor is used.
    unsafe { BorrowedFd::borrow_raw(what.as_raw_fd()) }
}
