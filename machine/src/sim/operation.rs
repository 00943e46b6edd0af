//! Operations of a simulated world, from start to hand-over.

use slab::Slab;

use super::disk::DiskJob;
use super::tree::TreeJob;
use crate::{Errno, Op, Token};

/// Names an operation. The serial number tells it from a later one in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpRef {
    key: usize,
    serial: u64,
}

#[derive(Debug)]
pub(super) struct Operation {
    serial: u64,
    /// Index of the processor that started it.
    pub(super) processor: usize,
    pub(super) token: Token,
    pub(super) op: Op,
    pub(super) state: OpState,
    pub(super) job: DiskJob,
    pub(super) tree_job: TreeJob,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    /// The world has not seen it yet.
    Started,
    UnderWay,
    /// It has had its effect; its end is seen later.
    Unseen(Result<u64, Errno>),
    /// Waits to be handed over.
    Done(Result<u64, Errno>),
}

/// All operations that were started and not yet handed over.
#[derive(Debug, Default)]
pub(super) struct Operations {
    slab: Slab<Operation>,
    serial: u64,
}

impl Operations {
    pub(super) fn insert(&mut self, processor: usize, token: Token, op: Op) -> OpRef {
        self.serial += 1;
        let serial = self.serial;
        let (state, job, tree_job) = (OpState::Started, DiskJob::default(), TreeJob::default());
        let key = self.slab.insert(Operation { serial, processor, token, op, state, job, tree_job });
        OpRef { key, serial }
    }

    /// None when it was handed over or its machine is dead.
    pub(super) fn get_mut(&mut self, of: OpRef) -> Option<&mut Operation> {
        self.slab.get_mut(of.key).filter(|operation| operation.serial == of.serial)
    }

    pub(super) fn remove(&mut self, of: OpRef) -> Option<Operation> {
        self.get_mut(of)?;
        Some(self.slab.remove(of.key))
    }

    /// Removes all of the processor at index `processor`, in the order in which they were started.
    pub(super) fn remove_all(&mut self, processor: usize) -> Vec<Operation> {
        let keys: Vec<usize> =
            self.slab.iter().filter(|(_, operation)| operation.processor == processor).map(|(key, _)| key).collect();
        let mut removed: Vec<Operation> = keys.into_iter().map(|key| self.slab.remove(key)).collect();
        removed.sort_unstable_by_key(|operation| operation.serial);
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.slab.iter().map(|(_, operation)| operation)
    }
}
