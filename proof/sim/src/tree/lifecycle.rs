//! Effects of dying machines on trees.

use crate::file::FileEntry;
use crate::ids::HostId;
use crate::operation::{OpState, Operation};
use crate::world::Inner;
use machine::Op;

impl Inner {
    /// The operations `died` ended with their machine: the change of each in a tree landed or did not, in any order.
    pub(crate) fn abandon_in_trees(&mut self, died: &[Operation]) {
        let mut in_flight: Vec<&Operation> =
            died.iter().filter(|operation| operation.state == OpState::InFlight).collect();
        while !in_flight.is_empty() {
            let next = self.next_to_land(&in_flight);
            self.abandon_in_tree(in_flight.swap_remove(next));
        }
    }

    /// Which of `in_flight` lands first. Draws only for trees: disks have their own random numbers.
    fn next_to_land(&mut self, in_flight: &[&Operation]) -> usize {
        match self.tree_of(in_flight[0]) {
            Some(tree) => self.trees[tree].disk.random.below(in_flight.len() as u64) as usize,
            None => 0,
        }
    }

    fn tree_of(&self, operation: &Operation) -> Option<usize> {
        match &operation.op {
            Op::Tree(op) => Some(op.tree.0 as usize).filter(|tree| *tree < self.trees.len()),
            op => self.open_inode_of(op).map(|open| open.tree),
        }
    }

    fn abandon_in_tree(&mut self, operation: &Operation) {
        let now = self.now;
        let Some(tree) = self.tree_of(operation) else {
            return;
        };
        match (&operation.op, self.open_inode_of(&operation.op)) {
            (Op::Tree(op), _) => self.trees[tree].abandon_call(op.caller.as_ref(), &op.call, now),
            (op, Some(open)) => self.trees[tree].abandon_file_op(&open, op, &operation.job),
            (_, None) => {}
        }
    }

    /// Closes all files of trees on `host`.
    pub(crate) fn close_files(&mut self, host: HostId) {
        for entry in &mut self.files {
            if let FileEntry::Node(open) = entry
                && self.trees[open.tree].host == host
            {
                open.close();
            }
        }
        for tree in self.trees.iter_mut().filter(|tree| tree.host == host) {
            tree.close_all();
        }
    }
}
