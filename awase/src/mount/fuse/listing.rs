//! Replies to the listing of directories.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use mount::{Listed, NodeId, Sink};

use super::{convert, data};

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

    fn is_abandoned(&self) -> bool {
        self.0.borrow().is_none()
    }
}

/// `fuse_entry_out`: the object of an entry and its attributes. With zeroes the host takes the entry alone.
const OBJECT_BYTES: usize = 128;

/// The least for which the host has room in a reply.
const BARE_BYTES_MAX: usize = 4096;

/// A reply with entries of which nothing is known but name and number: in the crate's, each has a kind, or an object to which
/// the host refers. It takes the place of that one as long as nothing was added there.
pub struct Bare {
    unique: u64,
    device: Arc<OnceLock<OwnedFd>>,
    bytes: Vec<u8>,
    is_barred: bool,
}

impl Bare {
    pub fn new(unique: u64, device: Arc<OnceLock<OwnedFd>>) -> Bare {
        Bare { unique, device, bytes: Vec::new(), is_barred: false }
    }

    /// Whether the crate's reply may have entries; from then on this one may not.
    fn gives_way(&mut self) -> bool {
        self.is_barred = self.bytes.is_empty();
        self.is_barred
    }

    /// `object_bytes`: of each entry in this kind of listing.
    fn add(&mut self, entry: &Listed<'_>, object_bytes: usize) -> bool {
        let begin = self.bytes.len();
        self.bytes.resize(begin + object_bytes, 0);
        // `fuse_dirent`, of type 0.
        self.bytes.extend([entry.file_id, entry.cookie].map(u64::to_ne_bytes).concat());
        self.bytes.extend([entry.name.len() as u32, 0].map(u32::to_ne_bytes).concat());
        self.bytes.extend(entry.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let is_taken = !self.is_barred && self.bytes.len() <= BARE_BYTES_MAX;
        if !is_taken {
            self.bytes.truncate(begin);
        }
        is_taken
    }

    /// False: it is the crate's reply that has the entries.
    fn send(&self) -> bool {
        if let Some(device) = self.device.get().filter(|_| !self.bytes.is_empty()) {
            let header = data::header(self.unique, self.bytes.len());
            // It is whole or fails: then the host has given up the request.
            let _ = rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(&self.bytes)]);
        }
        !self.bytes.is_empty()
    }
}

/// Names and kinds.
pub struct Names {
    pub reply: ReplyDirectory,
    pub bare: Bare,
}

impl Listing for Names {
    fn referred(&self) -> &[NodeId] {
        &[]
    }

    fn end(self, result: Result<(), fuser::Errno>) {
        match result {
            // It holds nothing but a count of the device's users, and would send an error when it is dropped.
            Ok(()) if self.bare.send() => std::mem::forget(self.reply),
            Ok(()) => self.reply.ok(),
            Err(errno) => self.reply.error(errno),
        }
    }
}

impl Sink for Names {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let Some(kind) = entry.kind else { return self.bare.add(entry, 0) };
        let name = OsStr::from_bytes(entry.name);
        self.bare.gives_way() && !self.reply.add(INodeNo(entry.file_id), entry.cookie, convert::file_type(kind), name)
    }
}

/// Entries with their attributes, to which the host refers from then on.
pub struct Entries {
    reply: ReplyDirectoryPlus,
    bare: Bare,
    referred: Vec<NodeId>,
}

impl Entries {
    pub fn new(reply: ReplyDirectoryPlus, bare: Bare) -> Self {
        Entries { reply, bare, referred: Vec::new() }
    }
}

impl Listing for Entries {
    fn referred(&self) -> &[NodeId] {
        &self.referred
    }

    fn end(self, result: Result<(), fuser::Errno>) {
        match result {
            // As of [`Names`].
            Ok(()) if self.bare.send() => std::mem::forget(self.reply),
            Ok(()) => self.reply.ok(),
            Err(errno) => self.reply.error(errno),
        }
    }
}

impl Sink for Entries {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let Some(kind) = entry.kind else { return self.bare.add(entry, OBJECT_BYTES) };
        if !self.bare.gives_way() {
            return false;
        }
        let name = OsStr::from_bytes(entry.name);
        // Of `.` and `..` the host takes nothing but the name.
        let (attributes, holds) = match &entry.found {
            Some(found) => {
                // There is one time for both.
                let holds = found.name_holds.min(found.attributes_hold);
                (convert::referred(found), holds)
            }
            None => (convert::bare(entry.file_id, kind), Duration::ZERO),
        };
        let is_taken = !self.reply.add(attributes.ino, entry.cookie, name, &holds, &attributes, Generation(0));
        if is_taken && let Some(found) = &entry.found {
            self.referred.push(found.id);
        }
        is_taken
    }
}
