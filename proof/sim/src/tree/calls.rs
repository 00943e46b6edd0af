//! Calls on a tree, from their start to their reply.

use super::in_flight::TreeJob;
use super::journal::Coverage;
use super::permission::Credentials;
use super::{Answer, SimTree};
use crate::faults::OpClass;
use crate::operation::OpRef;
use crate::world::{EventKind, Inner};
use machine::tree::{Around, Caller, Node, OpenNode, Tree, TreeCall, TreeOp, TreeReply, Watch};
use machine::{Errno, Op};
use std::sync::Arc;

impl SimTree {
    /// Starts `call`: returns what it covers, and its duration in nanoseconds.
    fn begin(&mut self, call: &TreeCall) -> (TreeJob, u64) {
        let (class, latency, sync) = match call {
            TreeCall::Sync { nodes } => {
                self.counters.syncs += 1;
                self.counters.nodes_synced += nodes.len() as u64;
                (OpClass::Sync, self.config.sync, Some(self.begin_sync(nodes)))
            }
            _ => {
                self.counters.calls += 1;
                (OpClass::Call, self.config.call, None)
            }
        };
        let disk = &mut self.disk;
        let fault = disk.injections.on_start(class, &disk.config.faults, &mut disk.random);
        let mut ns = latency.draw(&mut disk.random);
        if disk.random.permille(disk.config.stall_permille) {
            ns += disk.config.stall.draw(&mut disk.random);
        }
        (TreeJob { fault, sync }, ns)
    }

    /// A removed node has nothing to lose.
    fn begin_sync(&mut self, nodes: &[Node]) -> Coverage {
        let found: Vec<u64> = nodes.iter().filter_map(|node| self.find(*node).ok()).collect();
        let mut coverage = self.capture(&found);
        if self.config.journal {
            let others: Vec<u64> = self.inodes.keys().copied().filter(|number| !found.contains(number)).collect();
            let others = self.capture(&others).nodes.into_iter();
            coverage.nodes.extend(others.map(|node| node.without_content()));
        }
        coverage
    }

    fn finish_sync(&mut self, coverage: &Coverage, fault: Option<Errno>) -> Answer {
        let told = self.write_back_before_sync(coverage);
        if let Some(errno) = fault.or(told) {
            self.drop_covered(coverage, errno);
            return Err(errno);
        }
        if !self.disk.random.permille(self.disk.config.faults.flush_lie_permille) {
            self.make_durable(coverage);
        }
        Ok(TreeReply::Done)
    }

    /// Performs `call` at once. Not for syncs and opening.
    pub(super) fn perform(&mut self, caller: Option<&Caller>, call: &TreeCall, now: u64) -> Answer {
        let cred = Credentials { caller, time: self.time(now) };
        if self.config.read_only && call.changes() {
            return Err(Errno::READ_ONLY);
        }
        match call {
            TreeCall::Root => Ok(self.root()),
            TreeCall::Attributes { node } => Ok(TreeReply::Attributes(self.attributes(self.find(*node)?))),
            TreeCall::Lookup { dir, name } => self.lookup(cred, *dir, name),
            TreeCall::Access { node, wanted } => self.access(cred, *node, *wanted),
            TreeCall::ReadLink { node } => self.read_link(*node),
            TreeCall::ReadDirectory { dir, cookie, entries_max, with_nodes } => {
                self.list(cred, *dir, *cookie, *entries_max, *with_nodes)
            }
            TreeCall::Space => Ok(self.space_reply()),
            TreeCall::Limits { node } => self.limits(*node),
            TreeCall::Create { dir, name, how, attributes } => self.create(cred, (*dir, name), *how, *attributes),
            TreeCall::MakeDirectory { dir, name, attributes } => self.make_directory(cred, (*dir, name), *attributes),
            TreeCall::MakeSymbolicLink { dir, name, target, attributes } => {
                self.make_symbolic_link(cred, (*dir, name), target, *attributes)
            }
            TreeCall::MakeSpecial { dir, name, kind, attributes } => {
                self.make_special(cred, (*dir, name), *kind, *attributes)
            }
            TreeCall::Remove { dir, name } => self.remove(cred, (*dir, name)),
            TreeCall::RemoveDirectory { dir, name } => self.remove_directory(cred, (*dir, name)),
            TreeCall::Rename { from_dir, from_name, to_dir, to_name } => {
                self.rename(cred, (*from_dir, from_name), (*to_dir, to_name))
            }
            TreeCall::Link { node, dir, name } => self.link(cred, *node, (*dir, name)),
            TreeCall::SetAttributes { node, attributes, guard } => {
                let number = self.find(*node)?;
                if guard.is_some_and(|guard| guard != self.inodes[&number].stat.changed) {
                    return Ok(TreeReply::GuardFailed);
                }
                self.set_attributes(cred, number, *attributes)?;
                Ok(TreeReply::Attributes(self.attributes(number)))
            }
            TreeCall::Sync { .. } | TreeCall::Open { .. } => Err(Errno::INVALID),
        }
    }

    /// The machine that made `call` died before its reply: it was done, or was not.
    pub(super) fn abandon_call(&mut self, caller: Option<&Caller>, call: &TreeCall, now: u64) {
        if call.changes() && self.disk.random.permille(500) {
            // No caller gets the result.
            let _ = self.perform(caller, call, now);
        }
    }
}

impl Inner {
    pub(crate) fn submit_tree_call(&mut self, of: OpRef) {
        let Inner { operations, processors, trees, now, .. } = self;
        let Some(operation) = operations.get_mut(of) else {
            return;
        };
        let Op::Tree(op) = &operation.op else {
            return;
        };
        let host = processors[operation.processor].host;
        let Some(tree) = trees.get_mut(op.tree.0 as usize).filter(|tree| tree.host == host) else {
            return self.complete(of, Err(Errno(libc::EBADF)));
        };
        let (job, ns) = tree.begin(&op.call);
        operation.tree_job = job;
        let at = *now + ns;
        self.schedule(at, EventKind::TreeCallDone(of));
    }

    pub(crate) fn finish_tree_call(&mut self, of: OpRef) {
        let Some(operation) = self.operations.get_mut(of) else {
            return;
        };
        let Op::Tree(op) = &operation.op else {
            return;
        };
        let TreeOp { tree, caller, call, reply, around } = TreeOp::clone(op);
        let job = std::mem::take(&mut operation.tree_job);
        let attributes_of = |world: &Self, node: Node| {
            let tree = &world.trees[tree.0 as usize];
            tree.find(node).ok().map(|number| tree.attributes(number))
        };
        // Calls take no time: nobody else changes anything in between.
        let before: Vec<_> = around.iter().flat_map(|of| &of.nodes).map(|node| attributes_of(self, *node)).collect();
        let result = self.answer(tree, caller.as_ref(), &call, &job).map(|answer| {
            if let Some(Around { nodes, attributes }) = around {
                let after = nodes.iter().map(|node| attributes_of(self, *node));
                *attributes.lock() = before.into_iter().zip(after).collect();
            }
            // A thread that panicked with the lock held did not set it.
            *reply.lock() = Some(answer);
            0
        });
        let late_ns = self.trees.get_mut(tree.0 as usize).map_or(0, |tree| tree.disk.lateness());
        self.complete_late(of, result, late_ns);
    }

    fn answer(&mut self, of: Tree, caller: Option<&Caller>, call: &TreeCall, job: &TreeJob) -> Answer {
        let tree = &mut self.trees[of.0 as usize];
        match (call, &job.sync, job.fault) {
            (_, Some(sync), fault) => tree.finish_sync(sync, fault),
            (_, None, Some(errno)) => Err(errno),
            (TreeCall::Open { node, writable }, ..) => self.open_node(of.0 as usize, *node, *writable),
            _ => tree.perform(caller, call, self.now),
        }
    }

    /// Performs `call` without taking time and without faults.
    pub(super) fn perform_at_once(&mut self, index: usize, caller: Option<&Caller>, call: &TreeCall) -> Answer {
        let sync = match call {
            TreeCall::Sync { nodes } => Some(self.trees[index].begin_sync(nodes)),
            _ => None,
        };
        self.answer(Tree(index as u32), caller, call, &TreeJob { fault: None, sync })
    }

    fn open_node(&mut self, index: usize, node: Node, writable: bool) -> Answer {
        let tree = &self.trees[index];
        if writable && tree.config.read_only {
            return Err(Errno::READ_ONLY);
        }
        let number = tree.find(node)?;
        if writable && tree.inodes[&number].is_executed {
            return Err(Errno(libc::ETXTBSY));
        }
        let align = tree.config.disk.align;
        let attributes = tree.attributes(number);
        let direct = self.open_inode(index, number, align, writable)?;
        let buffered = if writable && align > 1 { Some(self.open_inode(index, number, 1, true)?) } else { None };
        let tree = &self.trees[index];
        let changes = tree.config.watches.then(|| Arc::clone(&tree.inodes[&number].others));
        let watch = changes.map(|changes| Watch { changes, take: super::reports::take, owner: Arc::new(()) });
        Ok(TreeReply::Opened(OpenNode { direct, buffered, watch, attributes, bytes_max: tree.config.file_bytes_max }))
    }
}
