//! Which nodes end in order, and how far.

use std::collections::BTreeMap;

use policy::coherence::{Incarnation, NodeId};

use crate::wire::Word;

#[derive(Default)]
pub(crate) struct Ends {
    /// Nodes that have said that they end in order.
    pub(crate) left: BTreeMap<NodeId, Incarnation>,
    pub(crate) own: Phase,
}

/// How far the end of this node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Serving,
    /// It stores what it has written.
    Storing,
    Stored,
    /// What others have written is returned. Those that end, too, are granted more.
    Returning,
    /// The same, and nobody is granted anything to write.
    Closed,
}

impl Ends {
    /// What a peer is told when it is connected.
    pub(crate) fn word(&self) -> Option<Word> {
        (self.own == Phase::Storing).then_some(Word::Ending { has_stored: false })
    }
}
