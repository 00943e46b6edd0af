//! What becomes of trees when machines die.

use crate::operation::{OpState, Operation};
use crate::storage::FileEntry;
use crate::world::{HostId, Inner};
use machine::Op;

impl Inner {
    /// The operations `died` ended with their machine: what each of them would have changed in a tree landed or did
    /// not, in any order.
    pub(crate) fn abandon_in_trees(&mut self, died: &[Operation]) {
        let mut under_way: Vec<&Operation> =
            died.iter().filter(|operation| operation.state == OpState::UnderWay).collect();
        while !under_way.is_empty() {
            let next = self.next_to_land(&under_way);
            self.abandon_in_tree(under_way.swap_remove(next));
        }
    }

    /// Which of `under_way` lands first. Only what is on trees draws: disks have numbers of their own.
    fn next_to_land(&mut self, under_way: &[&Operation]) -> usize {
        match self.tree_of(under_way[0]) {
            Some(tree) => self.trees[tree].disk.random.below(under_way.len() as u64) as usize,
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

    /// Nobody on `host` has a file open any more.
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
