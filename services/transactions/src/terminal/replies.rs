//! Replies in the order of what they answer, though some must wait until something is durable (OLTP-6).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use kernel::connection::{Header, Outbound, Release, Reply};

/// A place in the order.
#[derive(Clone, Copy)]
pub struct Slot(u64);

pub struct Replies {
    outbound: Rc<Outbound>,
    waiting: RefCell<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Slot of the first.
    first: u64,
    replies: VecDeque<Option<(Header, Release)>>,
}

impl Replies {
    pub fn new(outbound: &Rc<Outbound>) -> Rc<Replies> {
        Rc::new(Replies { outbound: Rc::clone(outbound), waiting: RefCell::default() })
    }

    /// A reply is in flight from now on: a client that takes none may not ask for ever more.
    pub fn hold(&self, release: Release, bytes: usize) -> Release {
        self.outbound.grow(bytes as u64);
        Release { bytes: release.bytes + bytes as u64, ..release }
    }

    /// The next place; it must be filled. Their number is that of the requests in flight, which is bounded.
    pub fn reserve(&self) -> Slot {
        let mut waiting = self.waiting.borrow_mut();
        waiting.replies.push_back(None);
        Slot(waiting.first + waiting.replies.len() as u64 - 1)
    }

    pub fn fill(&self, slot: Slot, reply: Header, release: Release) {
        let mut waiting = self.waiting.borrow_mut();
        let index = (slot.0 - waiting.first) as usize;
        waiting.replies[index] = Some((reply, release));
        while waiting.replies.front().is_some_and(Option::is_some) {
            let Some(Some((header, release))) = waiting.replies.pop_front() else { break };
            waiting.first += 1;
            self.outbound.push(Reply { header, release, ..Reply::default() });
        }
    }
}
