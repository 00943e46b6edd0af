//! The open files of a world.

use machine::{File, Op};

use crate::ids::DiskId;
use crate::tree::OpenInode;

#[derive(Debug)]
pub(crate) enum FileEntry {
    Disk { disk: DiskId, writable: bool, align: u32 },
    Node(OpenInode),
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
