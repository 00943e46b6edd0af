//! The members that this node has seen.

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
            return Err(StaleView::Revision { seen: self.seen, got: revision });
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
}
