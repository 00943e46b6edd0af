//! Replies to the listing of directories.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use mount::{Listed, NodeId, Sink};

use super::convert;

/// A reply that is filled with entries.
pub trait Listing: Sink + 'static {
    /// What the host refers to from then on.
    fn referred(&self) -> &[NodeId];

    fn end(self, result: Result<(), fuser::Errno>);
}

/// A listing that is filled until it is taken away.
pub struct Shared<L>(Rc<RefCell<Option<L>>>);

impl<L> Clone for Shared<L> {
    fn clone(&self) -> Self {
        Shared(Rc::clone(&self.0))
    }
}

impl<L> Shared<L> {
    pub fn new(listing: L) -> Self {
        Shared(Rc::new(RefCell::new(Some(listing))))
    }

    pub fn take(&self) -> Option<L> {
        self.0.borrow_mut().take()
    }
}

impl<L: Sink> Sink for Shared<L> {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        self.0.borrow_mut().as_mut().is_some_and(|listing| listing.add(entry))
    }
}

/// Names and kinds.
pub struct Names(pub ReplyDirectory);

impl Listing for Names {
    fn referred(&self) -> &[NodeId] {
        &[]
    }

    fn end(self, result: Result<(), fuser::Errno>) {
        match result {
            Ok(()) => self.0.ok(),
            Err(errno) => self.0.error(errno),
        }
    }
}

impl Sink for Names {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        !self.0.add(INodeNo(entry.file_id), entry.cookie, convert::file_type(entry.kind), name)
    }
}

/// Entries with their attributes, to which the host refers from then on.
pub struct Entries {
    reply: ReplyDirectoryPlus,
    referred: Vec<NodeId>,
}

impl Entries {
    pub fn new(reply: ReplyDirectoryPlus) -> Self {
        Entries { reply, referred: Vec::new() }
    }
}

impl Listing for Entries {
    fn referred(&self) -> &[NodeId] {
        &self.referred
    }

    fn end(self, result: Result<(), fuser::Errno>) {
        match result {
            Ok(()) => self.reply.ok(),
            Err(errno) => self.reply.error(errno),
        }
    }
}

impl Sink for Entries {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        // Of `.` and `..` the host takes nothing but the name.
        let (attributes, holds) = match &entry.found {
            Some(found) => {
                // There is one time for both.
                let holds = found.name_holds.min(found.attributes_hold);
                (convert::attributes(found.id, &found.attributes), holds)
            }
            None => (convert::bare(entry.file_id, entry.kind), Duration::ZERO),
        };
        let is_taken = !self.reply.add(attributes.ino, entry.cookie, name, &holds, &attributes, Generation(0));
        if is_taken && let Some(found) = &entry.found {
            self.referred.push(found.id);
        }
        is_taken
    }
}
