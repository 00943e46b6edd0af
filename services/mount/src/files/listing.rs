//! Listing directories. A stream of a directory keeps what the server said last; the host's offsets are the server's
//! cookies, so that a host may go on anywhere it has been, and a directory of any size is never held as a whole. Where the server
//! takes its cookies back, the listing begins anew, and leaves out what the host has.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kernel::Processor;
use kernel::wait::TaskMutex;
use machine::Errno;
use parking_lot::Mutex;
use policy::unit::Instant;

use super::{Files, Found};
use crate::attributes::{Attributes, Kind};
use crate::client::{BAD_COOKIE, Entry, Listing};
use crate::node::{Node, NodeId};

/// Directories open at a time, at most: the host's limit of open files is below.
const STREAMS_MAX: usize = 1 << 20;

/// Entries of a stream that are remembered as given, at most. The listing of a larger directory cannot begin anew.
const GIVEN_MAX: usize = 1 << 18;

/// In one call of the host: a directory that changes all the time is never listed.
const RESTARTS_MAX: u32 = 16;

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
    /// `None`: the server does not say more of it than is here.
    pub kind: Option<Kind>,
}

/// Takes entries until it is full.
pub trait Sink {
    /// False: it is full and has not taken the entry.
    fn add(&mut self, entry: &Listed<'_>) -> bool;

    /// Does nobody wait for the entries any more? A server may have more and more that are not given to it.
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// What became of an entry.
enum Added {
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
    given: Mutex<Given>,
}

/// What the host has, of a listing that may have to begin anew.
#[derive(Default)]
struct Given {
    entries: HashSet<u64>,
    /// Not all of it is known.
    is_partial: bool,
}

impl Given {
    /// `name`: if the object may have others in the directory.
    fn key(entry: &Entry, name: Option<&[u8]>) -> u64 {
        let mut hasher = DefaultHasher::new();
        // A number is used again for a new file, a handle is not.
        match &entry.handle {
            Some(handle) => (handle, name).hash(&mut hasher),
            None => (entry.file_id, name).hash(&mut hasher),
        }
        hasher.finish()
    }

    fn has(&self, entry: &Entry) -> bool {
        // Also under another name: else a program that renames all that it finds would never end.
        [None, Some(&entry.name[..])].into_iter().any(|name| self.entries.contains(&Given::key(entry, name)))
    }

    /// The host goes on behind the entry at `cookie` of `listing`, if it is there. `is_again`: the listing has begun anew.
    fn note(&mut self, listing: &Listing, cookie: u64, is_again: bool) {
        let count = listing.entries.iter().position(|entry| entry.cookie == cookie).map_or(0, |index| index + 1);
        // A server that has no verifier does not take cookies back.
        let is_known = count > 0 && listing.verifier != [0; 8] && self.entries.len() + count <= GIVEN_MAX;
        self.is_partial |= !is_known;
        if !self.is_partial {
            self.entries.extend(listing.entries[..count].iter().map(|entry| {
                let is_linked = |attributes: Attributes| attributes.kind != Kind::Directory && attributes.links > 1;
                let name = entry.attributes.is_some_and(is_linked).then_some(&entry.name[..]);
                Given::key(entry, name)
            }));
        } else if !is_again {
            self.entries = HashSet::new();
        }
    }
}

/// A part of the directory, from a cookie on.
#[derive(Clone, Default)]
struct Part {
    /// When it was asked for.
    asked: Instant,
    begin: Option<u64>,
    listing: Arc<Listing>,
    /// The listing has begun anew: some of its entries the host has.
    is_again: bool,
    way: Way,
}

impl Part {
    /// The index of the entry after `cookie`; `None`: it is not here.
    fn index_after(&self, cookie: u64) -> Option<usize> {
        let entries = &self.listing.entries;
        // Not the beginning if an entry has the cookie that was asked for: the host would be given it again and again.
        let Some(index) = entries.iter().position(|entry| entry.cookie == cookie) else {
            return (self.begin == Some(cookie)).then_some(0);
        };
        (index + 1 < entries.len() || self.listing.is_end).then_some(index + 1)
    }

    /// The way to the part after `cookie`, where the host goes on.
    fn way_on(&self, cookie: u64) -> Way {
        let is_next = self.listing.entries.last().is_some_and(|last| last.cookie == cookie);
        if is_next { self.way } else { Way::default() }
    }
}

/// The cookies of parts that were asked for one after the other. Where they lead in a circle, the server would be asked, and the
/// host be given entries, for ever. It is found by R. P. Brent's algorithm: one cookie is compared with those that follow, and a
/// later one takes its place after 1, 2, 4, ... parts.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    parts: u64,
    mark: u64,
}

impl Way {
    /// False: the way leads here again.
    fn go_on(&mut self, cookie: u64) -> bool {
        let is_new = cookie != self.mark;
        self.parts += 1;
        if self.parts.is_power_of_two() {
            self.mark = cookie;
        }
        is_new
    }
}

/// Does the last entry of `listing`, which was asked for at `cookie`, lead to what is not in it? Other cookies may be used twice:
/// those of names whose hashes are equal are, and some servers give "." the cookie 0.
fn leads_on(listing: &Listing, cookie: u64) -> bool {
    let Some((last, before)) = listing.entries.split_last() else { return true };
    // 0 is where every listing begins.
    last.cookie != 0 && last.cookie != cookie && before.iter().all(|entry| entry.cookie != last.cookie)
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
        let (reading, part, given) = (TaskMutex::default(), Mutex::default(), Mutex::default());
        streams.open.insert(stream, Arc::new(Stream { directory, reading, part, given }));
        Ok(stream)
    }

    pub fn close_directory(&self, stream: StreamId) {
        self.streams.lock().open.remove(&stream);
    }

    /// Gives `sink` the entries after `cookie`, 0 for all. `refers`: the host refers to what it is given, as after a lookup.
    /// The attributes are asked for in any case: a host must know which entries are directories.
    ///
    /// # Errors
    /// The server's; `ELOOP` if its cookies lead in a circle, `EINTR` if `sink` is abandoned.
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
        let (mut at, mut is_empty, mut restarts) = (cookie, true, 0);
        loop {
            let (part, first) = match self.part_after(cpu, &stream, at).await {
                Err(BAD_COOKIE) if restarts < RESTARTS_MAX => {
                    restarts += 1;
                    (self.first_part_again(cpu, &stream).await?, 0)
                }
                part => part?,
            };
            let listing = &part.listing;
            for entry in &listing.entries[first..] {
                if sink.is_abandoned() {
                    return Err(Errno(libc::EINTR));
                }
                if part.is_again && stream.given.lock().has(entry) {
                    at = entry.cookie;
                    continue;
                }
                match self.give(cpu, &stream.directory, part.asked, (entry, refers), sink).await? {
                    Added::Taken => is_empty = false,
                    Added::Full => return Ok(()),
                    Added::Gone => {}
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
        if cookie == 0 {
            *stream.given.lock() = Given::default();
            return Ok((self.ask_part(cpu, stream, (0, [0; 8]), (false, Way::default())).await?, 0));
        }
        let before = stream.part.lock().clone();
        if let Some(index) = before.index_after(cookie) {
            return Ok((before, index));
        }
        stream.given.lock().note(&before.listing, cookie, before.is_again);
        let mut way = before.way_on(cookie);
        if !way.go_on(cookie) {
            return Err(Errno(libc::ELOOP));
        }
        let part = self.ask_part(cpu, stream, (cookie, before.listing.verifier), (before.is_again, way)).await?;
        Ok((part, 0))
    }

    /// The server has taken its cookies back, as it may when the directory has changed (RFC 1813, section 3.3.16): the first
    /// part again, unless nobody knows what of it the host has.
    async fn first_part_again(&self, cpu: &Processor, stream: &Stream) -> Result<Part, Errno> {
        if stream.given.lock().is_partial {
            return Err(BAD_COOKIE);
        }
        self.ask_part(cpu, stream, (0, [0; 8]), (true, Way::default())).await
    }

    async fn ask_part(
        &self,
        cpu: &Processor,
        stream: &Stream,
        (cookie, verifier): (u64, [u8; 8]),
        (is_again, way): (bool, Way),
    ) -> Result<Part, Errno> {
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
        if !leads_on(&listing, cookie) {
            return Err(Errno(libc::ELOOP));
        }
        let part = Part { asked, begin: Some(cookie), listing, is_again, way };
        *stream.part.lock() = part.clone();
        Ok(part)
    }

    async fn give(
        self: &Arc<Self>,
        cpu: &Processor,
        directory: &Arc<Node>,
        asked: Instant,
        (entry, refers): (&Entry, bool),
        sink: &mut impl Sink,
    ) -> Result<Added, Errno> {
        let given = |is_taken| if is_taken { Added::Taken } else { Added::Full };
        let Entry { file_id, name, cookie, .. } = entry;
        let mut listed = Listed { name, cookie: *cookie, file_id: *file_id, found: None, kind: None };
        if name == b"." || name == b".." {
            listed.kind = Some(Kind::Directory);
            return Ok(given(sink.add(&listed)));
        }
        if let Some(attributes) = entry.attributes.filter(|_| !refers) {
            listed.kind = Some(attributes.kind);
            return Ok(given(sink.add(&listed)));
        }
        let node = async {
            let Some(node) = self.node_listed(cpu, directory, asked, entry).await? else { return Ok(None) };
            if !refers {
                return Ok(Some((node, None)));
            }
            match self.found_current(cpu, directory, &node).await {
                Err(Errno::STALE) => Ok(None),
                found => Ok(Some((node, Some(found?)))),
            }
        };
        let node = match node.await {
            Ok(Some((node, found))) => {
                (listed.kind, listed.found) = (Some(node.kind), found);
                node
            }
            Ok(None) => return Ok(Added::Gone),
            // It is there nevertheless. Who may read a directory need not have the right to search it.
            Err(errno) if is_of_one(errno) => return Ok(given(sink.add(&listed))),
            Err(errno) => return Err(errno),
        };
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

    /// The object of an entry, unless it was removed meanwhile; a server may leave out what it does not have at hand.
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
            Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(Errno::STALE) => {
                // Of the entry, unless the directory is gone.
                self.server.attributes(cpu, &directory.handle).await?;
                return Ok(None);
            }
            found => found?,
        };
        let handle = found.handle.ok_or(Errno::IO)?;
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => match self.server.attributes(cpu, &handle).await {
                Err(Errno::STALE) => return Ok(None),
                attributes => attributes?,
            },
        };
        Ok(Some(self.note_object(asked, &handle, attributes)))
    }
}

/// Is it an error of one entry, and not of the directory, or of a server that cannot be reached?
fn is_of_one(errno: Errno) -> bool {
    use libc::{ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETDOWN, ENETUNREACH, EPIPE};
    let of_all = [Errno::STALE, Errno::TIMED_OUT, Errno::SHUT_DOWN];
    let of_the_network = [ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETDOWN, ENETUNREACH, EPIPE];
    !of_all.contains(&errno) && !of_the_network.contains(&errno.0)
}
