//! Calls in flight, and their effect on a file and on names.

use std::ops::Range;

use nfs3_types::nfs3::{nfs_fh3, stable_how};

use crate::ledger::{ChangeId, Stamp};

/// A call in flight: if the server is killed, it may have taken effect or not.
pub enum Call {
    Write { id: ChangeId, sectors: Range<usize>, stable: stable_how },
    SetSize { id: ChangeId, sectors: Range<usize> },
    Commit { sent: Stamp },
    Read { sectors: Range<usize> },
    Create { name: usize, mode: u32, is_directory: bool },
    Remove { name: usize, is_directory: bool },
    Rename { from: usize, to: usize },
    SetMode { name: usize, mode: u32 },
}

#[derive(Clone, Debug)]
pub struct Object {
    /// Unknown if the answer with it was not received.
    pub handle: Option<nfs_fh3>,
    pub mode: u32,
    pub is_directory: bool,
}

/// The expected object of each name.
pub type Names = Vec<Option<Object>>;

impl Call {
    /// The names that it changes.
    pub fn names(&self) -> Vec<usize> {
        match *self {
            Call::Create { name, .. } | Call::Remove { name, .. } | Call::SetMode { name, .. } => {
                vec![name]
            }
            Call::Rename { from, to } => vec![from, to],
            Call::Write { .. } | Call::SetSize { .. } | Call::Commit { .. } | Call::Read { .. } => Vec::new(),
        }
    }

    pub fn touches(&self, other: &Range<usize>) -> bool {
        match self {
            Call::Write { sectors, .. } | Call::Read { sectors } => {
                sectors.start < other.end && other.start < sectors.end
            }
            // A change of the size may affect all of the file.
            Call::SetSize { .. } => true,
            _ => false,
        }
    }

    /// Applies it to the names. Returns the handle of an object that it removes.
    pub fn apply(&self, names: &mut Names) -> Option<nfs_fh3> {
        let replaced = match *self {
            Call::Write { .. } | Call::SetSize { .. } | Call::Commit { .. } | Call::Read { .. } => None,
            Call::Create { name, mode, is_directory } => {
                names[name].replace(Object { handle: None, mode, is_directory })
            }
            Call::Remove { name, .. } => names[name].take(),
            Call::Rename { from, to } => {
                let moved = names[from].take();
                std::mem::replace(&mut names[to], moved)
            }
            Call::SetMode { name, mode } => {
                names[name].as_mut().expect("the name exists").mode = mode;
                None
            }
        };
        replaced.and_then(|object| object.handle)
    }
}

/// True if what was found is as expected, with the same handle where it is known.
pub fn is_same(found: &Option<Object>, expected: &Option<Object>) -> bool {
    match (found, expected) {
        (None, None) => true,
        (Some(found), Some(expected)) => {
            (found.mode, found.is_directory) == (expected.mode, expected.is_directory)
                && (expected.handle.is_none() || found.handle == expected.handle)
        }
        _ => false,
    }
}
