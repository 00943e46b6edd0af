//! What one call to a node leads to.

use smallvec::SmallVec;

use super::{Action, Address, Message, NodeId, PageNo};
use crate::unit::Instant;

/// The actions and messages of one call, in order.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) now: Instant,
    pub(super) steps: SmallVec<[Step; 4]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Do(Action),
    ToHome(PageNo, Message),
    To(NodeId, Message),
    /// To another node, in that incarnation only.
    Forward(Address, Message),
}

impl Outbox {
    pub(super) fn new(now: Instant) -> Self {
        Outbox { now, steps: SmallVec::new() }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.steps.push(Step::Do(action));
    }

    pub(super) fn send_home(&mut self, page: PageNo, message: Message) {
        self.steps.push(Step::ToHome(page, message));
    }

    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        self.steps.push(Step::To(to, message));
    }

    pub(super) fn send_to(&mut self, to: Address, message: Message) {
        self.steps.push(Step::Forward(to, message));
    }
}
