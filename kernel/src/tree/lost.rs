//! Files that were closed after data of them was lost: when opened again, they must not seem healthy.

use std::collections::HashMap;

use machine::Errno;
use machine::tree::Node;

use crate::volume::Loss;

/// Runs of lost blocks remembered, of all files; beyond that, whole files count as lost.
const RUNS_MAX: usize = 1 << 16;

/// Files remembered. Beyond that, every file that is opened counts as lost.
const FILES_MAX: usize = 1 << 16;

/// The lost files of a tree that are not open.
#[derive(Default)]
pub(super) struct LostFiles {
    files: HashMap<Node, Loss>,
    runs: usize,
    /// The error of a lost file that is not remembered.
    others: Option<Errno>,
}

impl LostFiles {
    /// A lost file is closed.
    pub(super) fn insert(&mut self, node: Node, loss: Loss) {
        self.remove(&node);
        if self.files.len() >= FILES_MAX {
            self.others = Some(loss.errno);
            return;
        }
        let fits = self.runs + loss.runs() <= RUNS_MAX;
        let loss = if fits { loss } else { Loss { forgotten: None, ..loss } };
        self.runs += loss.runs();
        self.files.insert(node, loss);
    }

    /// The earlier loss of a file that is opened.
    pub(super) fn of(&self, node: &Node) -> Option<Loss> {
        let others = || self.others.map(|errno| Loss { errno, size: 0, forgotten: None });
        self.files.get(node).cloned().or_else(others)
    }

    /// The file was removed.
    pub(super) fn remove(&mut self, node: &Node) {
        if let Some(loss) = self.files.remove(node) {
            self.runs -= loss.runs();
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::unit::BlockNo;

    use super::*;

    fn node(number: u64) -> Node {
        Node::new(&number.to_le_bytes()).expect("short")
    }

    fn loss(runs: usize) -> Loss {
        Loss {
            errno: Errno::IO,
            size: 0,
            forgotten: Some((0..runs as u64).map(|run| BlockNo(2 * run).run(1)).collect()),
        }
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_nothing_lost_is_ever_taken_to_be_well() {
        let mut lost = LostFiles::default();
        lost.insert(node(0), loss(RUNS_MAX));
        lost.insert(node(1), loss(1));
        assert_eq!(lost.of(&node(0)), Some(loss(RUNS_MAX)));
        assert_eq!(lost.of(&node(1)), Some(Loss { forgotten: None, ..loss(0) }));
        assert_eq!(lost.of(&node(2)), None);
        lost.remove(&node(0));
        for number in 2..FILES_MAX as u64 + 10 {
            lost.insert(node(number), loss(1));
        }
        assert_eq!(lost.files.len(), FILES_MAX);
        assert!(lost.runs <= RUNS_MAX);
        assert_eq!(lost.of(&node(u64::MAX)), Some(Loss { forgotten: None, ..loss(0) }));
    }
}
