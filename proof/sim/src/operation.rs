//! Operations of a simulated world, from their start until their completion is returned.

use slab::Slab;

use crate::disk::DiskJob;
use crate::tree::TreeJob;
use machine::{Errno, Op, Token};

/// Identifies an operation. The serial number distinguishes it from a later one with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpRef {
    key: usize,
    serial: u64,
}

#[derive(Debug)]
pub(crate) struct Operation {
    serial: u64,
    /// Index of the processor that started it.
    pub(crate) processor: usize,
    pub(crate) token: Token,
    pub(crate) op: Op,
    pub(crate) state: OpState,
    pub(crate) job: DiskJob,
    pub(crate) tree_job: TreeJob,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpState {
    /// Not submitted yet.
    Started,
    InFlight,
    /// It has taken effect; its completion is seen later.
    Unseen(Result<u64, Errno>),
    /// Complete, not returned yet.
    Done(Result<u64, Errno>),
}

/// All operations that were started and not yet returned.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slab: Slab<Operation>,
    serial: u64,
}

impl Operations {
    pub(crate) fn insert(&mut self, processor: usize, token: Token, op: Op) -> OpRef {
        self.serial += 1;
        let serial = self.serial;
        let (state, job, tree_job) = (OpState::Started, DiskJob::default(), TreeJob::default());
        let key = self.slab.insert(Operation { serial, processor, token, op, state, job, tree_job });
        OpRef { key, serial }
    }

    /// `None` when it was returned or its machine is dead.
    pub(crate) fn get_mut(&mut self, of: OpRef) -> Option<&mut Operation> {
        self.slab.get_mut(of.key).filter(|operation| operation.serial == of.serial)
    }

    pub(crate) fn remove(&mut self, of: OpRef) -> Option<Operation> {
        self.get_mut(of)?;
        Some(self.slab.remove(of.key))
    }

    /// Removes all of the processor at index `processor`, in the order in which they were started.
    pub(crate) fn remove_all(&mut self, processor: usize) -> Vec<Operation> {
        let keys: Vec<usize> =
            self.slab.iter().filter(|(_, operation)| operation.processor == processor).map(|(key, _)| key).collect();
        let mut removed: Vec<Operation> = keys.into_iter().map(|key| self.slab.remove(key)).collect();
        removed.sort_unstable_by_key(|operation| operation.serial);
        removed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.slab.iter().map(|(_, operation)| operation)
    }
}
