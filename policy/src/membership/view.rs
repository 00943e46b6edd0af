//! The members that this node has seen, and which messages it may act upon.

use std::collections::BTreeMap;

use super::homes::Map;
use super::{Action, Actions, Address, Incarnation, NodeId, Revision, StaleView};

/// Members with their epochs.
pub type Members = BTreeMap<NodeId, Incarnation>;

/// A change at the arbiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Joined(Address),
    /// Its key was deleted.
    Left(NodeId),
    Map(Map),
}

/// What every message between nodes carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub from: Address,
    pub to: Address,
    /// The sender's version of the map.
    pub map: Revision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Act upon it, if the receiver's own map says that its sender, or the receiver, is the home it claims to be.
    Accept,
    /// From or to an epoch that is over: never act upon it.
    Refuse,
    /// From a node, or with a map, that this node has not seen: do not act upon it before this node has. The sender
    /// retransmits.
    Early,
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    seen: Revision,
    members: Members,
}

impl View {
    pub fn seen(&self) -> Revision {
        self.seen
    }

    pub fn reach(&mut self, revision: Revision) {
        self.seen = self.seen.max(revision);
    }

    pub fn has(&self, address: Address) -> bool {
        self.members.get(&address.node) == Some(&address.incarnation)
    }

    pub fn members(&self) -> impl Iterator<Item = Address> + '_ {
        self.members.iter().map(|(&node, &incarnation)| Address { node, incarnation })
    }

    pub fn on_snapshot(
        &mut self,
        revision: Revision,
        members: Members,
        actions: &mut Actions,
    ) -> Result<(), StaleView> {
        if revision < self.seen {
            return Err(StaleView { seen: self.seen, got: revision });
        }
        self.seen = revision;
        let is_in = |members: &Members, of: &Address| members.get(&of.node) == Some(&of.incarnation);
        let dead: Vec<_> = self.members().filter(|of| !is_in(&members, of)).collect();
        let before = std::mem::replace(&mut self.members, members);
        actions.extend(dead.into_iter().map(Action::Dead));
        actions.extend(self.members().filter(|of| !is_in(&before, of)).map(Action::Alive));
        Ok(())
    }

    pub fn on_joined(&mut self, address: Address, actions: &mut Actions) {
        if let Some(incarnation) = self.members.insert(address.node, address.incarnation)
            && incarnation != address.incarnation
        {
            actions.push(Action::Dead(Address { incarnation, ..address }));
        }
        actions.push(Action::Alive(address));
    }

    pub fn on_left(&mut self, node: NodeId, actions: &mut Actions) {
        if let Some(incarnation) = self.members.remove(&node) {
            actions.push(Action::Dead(Address { node, incarnation }));
        }
    }

    pub fn judge(&self, stamp: Stamp, me: Option<Address>, map: Revision) -> Verdict {
        let Stamp { from, to, map: theirs } = stamp;
        // Epochs are revisions: one that this node has seen without the sender's key is over, one beyond is news.
        let is_ahead = |revision: u64| Revision(revision) > self.seen;
        if me != Some(to) {
            // To a registration of this node that it has not heard of itself yet, or to one that is over.
            let is_ours = me.is_none_or(|me| me.node == to.node && me.incarnation < to.incarnation);
            return if is_ours && is_ahead(to.incarnation.0.into()) { Verdict::Early } else { Verdict::Refuse };
        }
        if !self.has(from) {
            return if is_ahead(from.incarnation.0.into()) { Verdict::Early } else { Verdict::Refuse };
        }
        if theirs > map { Verdict::Early } else { Verdict::Accept }
    }
}
