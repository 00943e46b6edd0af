//! Listing directories. A stream of a directory keeps what the server said last; the host's offsets are the server's
//! cookies, so that a host may go on anywhere it has been, and a directory of any size is never held as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::Processor;
use kernel::wait::TaskMutex;
use machine::Errno;
use parking_lot::Mutex;
use policy::unit::Instant;

use super::{Files, Found};
use crate::attributes::Kind;
use crate::client::{Entry, Listing};
use crate::node::{Node, NodeId};

/// Directories open at a time, at most: the host's limit of open files is below.
const STREAMS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// An entry for the host.
#[derive(Debug)]
pub struct Listed<'a> {
    pub name: &'a [u8],
    /// Where the next one is found.
    pub cookie: u64,
    pub file_id: u64,
    /// Unless it is `.` or `..`, or the host does not refer to what it lists.
    pub found: Option<Found>,
    pub kind: Kind,
}

/// Takes entries until it is full.
pub trait Sink {
    /// False: it is full and has not taken the entry.
    fn add(&mut self, entry: &Listed<'_>) -> bool;
}

/// What became of an entry.
enum Given {
    Taken,
    /// The sink takes no more.
    Full,
    /// It was removed meanwhile.
    Gone,
}

#[derive(Default)]
pub(super) struct Streams {
    open: BTreeMap<StreamId, Arc<Stream>>,
    next: u64,
}

struct Stream {
    directory: Arc<Node>,
    /// One reading at a time.
    reading: TaskMutex,
    part: Mutex<Part>,
}

/// A part of the directory, from a cookie on.
#[derive(Clone, Default)]
struct Part {
    /// When it was asked for.
    asked: Instant,
    begin: Option<u64>,
    listing: Arc<Listing>,
}

impl Part {
    /// The index of the entry after `cookie`; `None`: it is not here.
    fn index_after(&self, cookie: u64) -> Option<usize> {
        if self.begin == Some(cookie) {
            return Some(0);
        }
        let index = self.listing.entries.iter().position(|entry| entry.cookie == cookie)? + 1;
        (index < self.listing.entries.len() || self.listing.is_end).then_some(index)
    }
}

impl Files {
    /// Opens a directory for listing.
    ///
    /// # Errors
    /// `EMFILE` if too many are open.
    pub fn open_directory(&self, id: NodeId) -> Result<StreamId, Errno> {
        let directory = self.node(id)?;
        let mut streams = self.streams.lock();
        if streams.open.len() >= STREAMS_MAX {
            return Err(Errno(libc::EMFILE));
        }
        streams.next += 1;
        let stream = StreamId(streams.next);
        streams
            .open
            .insert(stream, Arc::new(Stream { directory, reading: TaskMutex::default(), part: Mutex::default() }));
        Ok(stream)
    }

    pub fn close_directory(&self, stream: StreamId) {
        self.streams.lock().open.remove(&stream);
    }

    /// Gives `sink` the entries after `cookie`, 0 for all. `refers`: the host refers to what it is given, as after a lookup.
    /// The attributes are asked for in any case: a host must know which entries are directories.
    ///
    /// # Errors
    /// The server's.
    pub async fn list(
        self: &Arc<Self>,
        cpu: &Processor,
        stream: StreamId,
        cookie: u64,
        refers: bool,
        sink: &mut impl Sink,
    ) -> Result<(), Errno> {
        let stream = self.streams.lock().open.get(&stream).cloned().ok_or(Errno(libc::EBADF))?;
        let _one_at_a_time = stream.reading.lock().await;
        let (mut at, mut is_empty) = (cookie, true);
        loop {
            let (part, first) = self.part_after(cpu, &stream, at).await?;
            let listing = &part.listing;
            for entry in &listing.entries[first..] {
                match self.give(cpu, &stream.directory, part.asked, (entry, refers), sink).await? {
                    Given::Taken => is_empty = false,
                    Given::Full => return Ok(()),
                    Given::Gone => {}
                }
                at = entry.cookie;
            }
            // With nothing in it, the host would take it for the end.
            if listing.is_end || !is_empty {
                return Ok(());
            }
            // A part without entries that is not the end.
            if listing.entries.is_empty() {
                return Err(Errno::IO);
            }
        }
    }

    /// The part of the directory with the entry after `cookie`, and its index.
    async fn part_after(&self, cpu: &Processor, stream: &Stream, cookie: u64) -> Result<(Part, usize), Errno> {
        let verifier = {
            let part = stream.part.lock();
            if cookie != 0
                && let Some(index) = part.index_after(cookie)
            {
                return Ok((part.clone(), index));
            }
            if cookie == 0 { [0; 8] } else { part.listing.verifier }
        };
        let directory = &stream.directory;
        let asked = cpu.now();
        let mut listing = self.server.list(cpu, &directory.handle, (cookie, verifier), true).await;
        if listing.as_ref().is_err_and(|errno| *errno == Errno::NOT_SUPPORTED) {
            listing = self.server.list(cpu, &directory.handle, (cookie, verifier), false).await;
        }
        let listing = Arc::new(listing?);
        if let Some(attributes) = listing.attributes {
            directory.known.note(asked, attributes);
        }
        let part = Part { asked, begin: Some(cookie), listing };
        *stream.part.lock() = part.clone();
        Ok((part, 0))
    }

    async fn give(
        self: &Arc<Self>,
        cpu: &Processor,
        directory: &Arc<Node>,
        asked: Instant,
        (entry, refers): (&Entry, bool),
        sink: &mut impl Sink,
    ) -> Result<Given, Errno> {
        let given = |is_taken| if is_taken { Given::Taken } else { Given::Full };
        let Entry { file_id, name, cookie, .. } = entry;
        let mut listed = Listed { name, cookie: *cookie, file_id: *file_id, found: None, kind: Kind::Directory };
        if name == b"." || name == b".." {
            return Ok(given(sink.add(&listed)));
        }
        if let Some(attributes) = entry.attributes.filter(|_| !refers) {
            listed.kind = attributes.kind;
            return Ok(given(sink.add(&listed)));
        }
        let Some(node) = self.node_listed(cpu, directory, asked, entry).await? else {
            return Ok(Given::Gone);
        };
        listed.kind = node.kind;
        if refers {
            listed.found = match self.found_current(cpu, directory, &node).await {
                Ok(found) => Some(found),
                Err(Errno::STALE) => return Ok(Given::Gone),
                Err(errno) => return Err(errno),
            };
        }
        let is_taken = sink.add(&listed);
        if !refers {
            self.forget_unused(&node);
        } else if is_taken {
            self.nodes.lock().set_name(&node, directory.id, name);
        } else {
            self.forget(cpu, node.id, 1);
        }
        Ok(given(is_taken))
    }

    /// The object of an entry; a server may leave out what it does not have at hand.
    async fn node_listed(
        &self,
        cpu: &Processor,
        directory: &Arc<Node>,
        asked: Instant,
        entry: &Entry,
    ) -> Result<Option<Arc<Node>>, Errno> {
        if let (Some(handle), Some(attributes)) = (&entry.handle, entry.attributes) {
            return Ok(Some(self.note_object(asked, handle, attributes)));
        }
        let asked = cpu.now();
        let found = match self.server.lookup(cpu, &directory.handle, &entry.name).await {
            Ok(found) => found,
            Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let handle = found.handle.ok_or(Errno::IO)?;
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.server.attributes(cpu, &handle).await?,
        };
        Ok(Some(self.note_object(asked, &handle, attributes)))
    }
}
