//! What a call does to a file and to names.

use std::ops::Range;

use nfs3_types::nfs3::{nfs_fh3, stable_how};

use crate::ledger::{ChangeId, Stamp};

/// A call that may have been done or not when the server is killed under it.
pub enum Doing {
    Write { id: ChangeId, sectors: Range<usize>, stable: stable_how },
    SetSize { id: ChangeId, sectors: Range<usize> },
    Commit { sent: Stamp },
    Read { sectors: Range<usize> },
    Create { name: usize, mode: u32, is_directory: bool },
    Remove { name: usize, is_directory: bool },
    Rename { from: usize, to: usize },
    SetMode { name: usize, mode: u32 },
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub struct Object {
    /// Unknown when the answer that had it never came.
    pub handle: Option<nfs_fh3>,
    pub mode: u32,
    pub is_directory: bool,
}

/// Names, and what must be there under them.
pub type Names = Vec<Option<Object>>;

impl Doing {
    /// The names that it is about.
    pub fn names(&self) -> Vec<usize> {
        match *self {
            Doing::Create { name, .. } | Doing::Remove { name, .. } | Doing::SetMode { name, .. } => vec![name],
            Doing::Rename { from, to } => vec![from, to],
            Doing::Write { .. } | Doing::SetSize { .. } | Doing::Commit { .. } | Doing::Read { .. } => Vec::new(),
        }
    }

    pub fn touches(&self, other: &Range<usize>) -> bool {
        match self {
            Doing::Write { sectors, .. } | Doing::Read { sectors } => {
                sectors.start < other.end && other.start < sectors.end
            }
            // Where a file ends matters to all of it.
            Doing::SetSize { .. } => true,
            _ => false,
        }
    }

    /// Does it to the names. Gives the handle of what is gone with it.
    pub fn apply(&self, names: &mut Names) -> Option<nfs_fh3> {
        let replaced = match *self {
            Doing::Write { .. } | Doing::SetSize { .. } | Doing::Commit { .. } | Doing::Read { .. } => None,
            Doing::Create { name, mode, is_directory } => {
                names[name].replace(Object { handle: None, mode, is_directory })
            }
            Doing::Remove { name, .. } => names[name].take(),
            Doing::Rename { from, to } => {
                let moved = names[from].take();
                std::mem::replace(&mut names[to], moved)
            }
            Doing::SetMode { name, mode } => {
                names[name].as_mut().expect("it is there").mode = mode;
                None
            }
        };
        replaced.and_then(|object| object.handle)
    }
}

/// Is what was found what is known? A handle that is known must be the same: clients keep theirs.
pub fn is_same(found: &Option<Object>, known: &Option<Object>) -> bool {
    match (found, known) {
        (None, None) => true,
        (Some(found), Some(known)) => {
            (found.mode, found.is_directory) == (known.mode, known.is_directory)
                && (known.handle.is_none() || found.handle == known.handle)
        }
        _ => false,
    }
}
