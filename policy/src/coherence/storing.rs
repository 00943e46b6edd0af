//! What a home has of its pages, and what only others may have.

use super::{Actions, Node, NodeId, Outbox, PageNo, Serial};
use crate::unit::Instant;

impl Node {
    /// Has all stored at this home that these nodes have written before: the writers of its pages are recalled, and retain
    /// copies to read. Returns the grants that are waited for ([`Node::awaited`]).
    pub fn store_all(&mut self, now: Instant, is_meant: impl Fn(NodeId) -> bool) -> (Vec<(PageNo, Serial)>, Actions) {
        let mut out = Outbox::new(now);
        let awaited = self.directory.store_all(&self.places, is_meant, &mut out);
        (awaited, self.end(out))
    }

    /// The node that is to give up a page of this home, if one may write it under this grant. If not, all that was written has
    /// been given to [`Action::Store`](super::Action::Store), or was lost.
    pub fn awaited(&self, page: PageNo, serial: Serial) -> Option<NodeId> {
        self.directory.holder_for(page, serial)
    }

    /// This home ends: it grants nobody anything to write any more, also who has asked before.
    pub fn close(&mut self) {
        self.directory.is_closed = true;
    }

    /// How many pages of this home a node may have written, that this home does not have.
    pub fn written_by(&self, node: NodeId) -> usize {
        self.directory.written_by(node)
    }

    /// Nodes that have not answered the survey of this one, which grants nothing before.
    pub fn is_surveying(&self) -> bool {
        self.directory.is_surveying()
    }

    /// Whether this node is one of them.
    pub fn is_surveying_node(&self, node: NodeId) -> bool {
        self.directory.is_surveying_node(node)
    }
}
