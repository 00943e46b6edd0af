//! What the world has of a tree: its open files, and its calls in flight.

use std::sync::Weak;

use machine::Errno;

use super::errseq::Told;
use super::journal::Coverage;

/// An open regular file of a tree.
#[derive(Clone, Debug)]
pub(crate) struct OpenInode {
    pub(crate) tree: usize,
    pub(super) number: u64,
    pub(super) generation: u32,
    pub(super) align: u32,
    pub(crate) writable: bool,
    /// Dead once the file was closed, or its process died.
    pub(crate) owner: Weak<()>,
    pub(super) told: Told,
}

impl OpenInode {
    pub(super) fn close(&mut self) {
        self.owner = Weak::new();
    }
}

/// The tree's state of a call in flight.
#[derive(Debug, Default)]
pub(crate) struct TreeJob {
    pub(super) fault: Option<Errno>,
    pub(super) sync: Option<Coverage>,
}
