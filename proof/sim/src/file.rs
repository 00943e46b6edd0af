//! The open files of a world.

use std::sync::Weak;

use machine::{File, Op};

use crate::ids::DiskId;
use crate::tree::OpenInode;

#[derive(Debug)]
pub(crate) enum FileEntry {
    Disk { disk: DiskId, writable: bool, align: u32, owner: Weak<()> },
    Node(OpenInode),
}

impl FileEntry {
    pub(crate) fn is_open(&self) -> bool {
        let (FileEntry::Disk { owner, .. } | FileEntry::Node(OpenInode { owner, .. })) = self;
        owner.strong_count() > 0
    }
}

/// The file of an operation.
pub(crate) fn file_of(op: &Op) -> Option<File> {
    match *op {
        Op::Read { file, .. }
        | Op::Write { file, .. }
        | Op::Flush { file }
        | Op::WriteBack { file }
        | Op::Zero { file, .. }
        | Op::Discard { file, .. }
        | Op::FindData { file, .. } => Some(file),
        Op::Populate { .. }
        | Op::Accept { .. }
        | Op::Receive { .. }
        | Op::Send { .. }
        | Op::Faults { .. }
        | Op::Tree(_) => None,
    }
}
