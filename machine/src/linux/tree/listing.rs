//! Reading directories in parts.
//!
//! The cookie of an entry is its position in the file system (`d_off`). With ext4, XFS, Btrfs and (since Linux 6.6)
//! tmpfs it stays valid when other entries are added or removed, and across restarts of the host.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;

use super::HostTree;
use super::call;
use super::permission::{READ, SEARCH};
use crate::Errno;
use crate::tree::{Attributes, Caller, Entry, InodeNo, Node, TreeReply};

/// Directories held open between the parts of their listings.
const OPEN_MAX: usize = 64;

/// Maximum of entries in one part.
const PART_MAX: usize = 4096;

/// Memory for entries in one call, in bytes: enough for at least one with the longest name.
const BUFFER_BYTES_MAX: usize = 32 << 10;
const BUFFER_BYTES_MIN: usize = 512;

/// Offsets in `struct linux_dirent64`: the length of the record, and the kind, which the name follows.
const LEN_AT: usize = 16;
const KIND_AT: usize = 18;

/// Directories open at the end of a part of their listing. Continuing in the same descriptor saves the file system from
/// finding the position again, for which ext4 has to sort a block of entries.
#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<Listing>>);

struct Listing {
    dir: Node,
    /// The last entry read.
    cookie: u64,
    fd: OwnedFd,
}

impl Listings {
    fn take(&self, dir: &Node, cookie: u64) -> Option<OwnedFd> {
        let mut open = self.0.lock();
        let at = open.iter().position(|listing| listing.cookie == cookie && listing.dir == *dir)?;
        open.remove(at).map(|listing| listing.fd)
    }

    fn insert(&self, listing: Listing) {
        let mut open = self.0.lock();
        let oldest = if open.len() < OPEN_MAX { None } else { open.pop_front() };
        open.push_back(listing);
        // Closed without the lock: the last descriptor of a removed directory has the host free its blocks.
        drop(open);
        drop(oldest);
    }

    pub(super) fn forget(&self, dir: &Node) {
        let mut forgotten = Vec::new();
        let mut open = self.0.lock();
        while let Some(at) = open.iter().position(|listing| listing.dir == *dir) {
            forgotten.extend(open.remove(at));
        }
        drop(open);
    }
}

impl HostTree {
    pub(super) fn read_directory(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        cookie: u64,
        entries_max: usize,
        with_nodes: bool,
    ) -> Result<TreeReply, Errno> {
        let place = self.find_directory(dir)?;
        let may_search = {
            self.require(caller, place.fd(), READ)?;
            let _acting = self.identity.act_as(caller)?;
            if !call::may(place.fd(), READ)? {
                return Err(Errno(libc::EACCES));
            }
            with_nodes && self.require(caller, place.fd(), SEARCH).is_ok() && call::may(place.fd(), SEARCH)?
        };
        let fd = match self.listings.take(dir, cookie) {
            Some(fd) => fd,
            None => {
                let fd = self.reopen(&place, libc::O_RDONLY | libc::O_DIRECTORY)?;
                if cookie != 0 {
                    call::seek(fd.as_fd(), cookie)?;
                }
                fd
            }
        };
        let (mut entries, last) = read(fd.as_fd(), entries_max.clamp(1, PART_MAX))?;
        if let Some(entry) = entries.last().filter(|_| !last) {
            self.listings.insert(Listing { dir: *dir, cookie: entry.cookie, fd });
        }
        for entry in &mut entries {
            if may_search {
                entry.node = self.node_of_entry(place.fd(), dir, &entry.name);
            }
            if entry.name == b".." && *dir == self.root_node {
                entry.number = self.root_number;
            }
        }
        Ok(TreeReply::Entries(entries, last))
    }

    /// The node of an entry; `None` when it is gone by now, or on another file system.
    fn node_of_entry(&self, place: BorrowedFd, dir: &Node, name: &[u8]) -> Option<(Node, Attributes)> {
        let found = match name {
            b"." => self.find(dir),
            b".." => self.parent(place, dir),
            name => self.child(place, &CString::new(name).ok()?),
        };
        found.ok().map(|found| (found.node, found.attributes()))
    }
}

/// The next entries from the directory's position, and whether they are the last.
fn read(fd: BorrowedFd, max: usize) -> Result<(Vec<Entry>, bool), Errno> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut buffer = Vec::new();
    while entries.len() < max {
        // Estimates names of some ten bytes.
        let room = ((max - entries.len()) * 32).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        buffer.resize(room / size_of::<u64>(), 0u64);
        let bytes = match call::entries(fd, &mut buffer) {
            // Removed while it was listed.
            Ok(0) | Err(Errno(libc::ENOENT)) => return Ok((entries, true)),
            bytes => bytes?,
        };
        for Record { name, number, cookie, .. } in Records::new(&buffer, bytes) {
            if entries.len() == max {
                // One entry too many: go back.
                call::seek(fd, entries.last().map_or(0, |last| last.cookie))?;
                return Ok((entries, false));
            }
            entries.push(Entry { name: name.to_vec(), number, cookie, node: None });
        }
    }
    Ok((entries, false))
}

fn bytes_of(buffer: &[u64]) -> &[u8] {
    // SAFETY: eight bytes a word, all of them initialized.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), size_of_val(buffer)) }
}

/// An entry in the host's format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) name: &'a [u8],
    pub(super) number: InodeNo,
    pub(super) cookie: u64,
    /// `DT_DIR` and so on; `DT_UNKNOWN` when the file system does not report it.
    pub(super) kind: u8,
}

/// The records in a buffer that the host filled.
pub(super) struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// Records in its first `bytes`.
    pub(super) fn new(buffer: &'a [u64], bytes: usize) -> Self {
        let all = bytes_of(buffer);
        Records(all.get(..bytes).unwrap_or(all))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let number = InodeNo(u64::from_ne_bytes(*self.0.first_chunk()?));
        let cookie = u64::from_ne_bytes(*self.0.get(8..)?.first_chunk()?);
        let len = u16::from_ne_bytes(*self.0.get(LEN_AT..)?.first_chunk()?);
        let (record, behind) = self.0.split_at_checked(len.into())?;
        let (&kind, name) = record.get(KIND_AT..)?.split_first()?;
        let name = name.split(|&byte| byte == 0).next()?;
        self.0 = behind;
        Some(Record { name, number, cookie, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &[u8], number: u64, cookie: u64) -> Vec<u8> {
        let len = (KIND_AT + 1 + name.len() + 1).next_multiple_of(8);
        let mut bytes = [number.to_ne_bytes(), cookie.to_ne_bytes()].concat();
        bytes.extend((len as u16).to_ne_bytes());
        bytes.push(libc::DT_REG);
        bytes.extend(name);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn records_are_parsed_whatever_their_names() {
        let records = [record(b"a", 3, 5), record(&[0xff; 255], 4, u64::MAX >> 1)].concat();
        let mut records = Records(&records);
        let first = records.next().expect("a record");
        assert_eq!(first, Record { name: b"a", number: InodeNo(3), cookie: 5, kind: libc::DT_REG });
        let second = records.next().expect("a record");
        assert_eq!(
            second,
            Record { name: &[0xff; 255], number: InodeNo(4), cookie: u64::MAX >> 1, kind: libc::DT_REG }
        );
        assert_eq!(records.next(), None);
    }
}
