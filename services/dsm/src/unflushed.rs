//! What is to be flushed where, and which flushes are under way.

use std::collections::BTreeMap;

use policy::coherence::{Incarnation, NodeId};

#[derive(Default)]
pub(crate) struct Flushes {
    /// Homes with something of this node that was not flushed.
    pub(crate) touched: BTreeMap<NodeId, Incarnation>,
    /// Numbers requests.
    pub(crate) asked: u64,
    pub(crate) answers: BTreeMap<u64, Option<bool>>,
    /// A flush of this home's storage failed, and may have dropped what these nodes had stored.
    pub(crate) to_fail: Vec<NodeId>,
}

impl Flushes {
    /// Something is stored at `home`.
    pub(crate) fn touch(&mut self, home: NodeId, incarnation: Incarnation) {
        self.touched.entry(home).or_insert(incarnation);
    }

    pub(crate) fn on_answer(&mut self, number: u64, ok: bool) {
        self.answers.entry(number).and_modify(|answer| *answer = Some(ok));
    }
}
