//! READDIR, READDIRPLUS.
//!
//! A directory is read from the host in batches that fit the reply, so memory does not depend on its size. The cookies
//! are the host's and survive changes, so the cookie verifier is zero.

use machine::tree::{Entry, TreeCall, TreeReply};
use nfs3_types::nfs3::{
    Nfs3Option, READDIR3args, READDIR3resok, READDIRPLUS3args, READDIRPLUS3resok, cookieverf3, dirlist3, dirlistplus3,
    entry3, entryplus3, nfsstat3,
};
use nfs3_types::xdr_codec::{List, Pack};

use super::object::Object;
use super::status::status;
use super::{Answer, arguments, success};
use crate::call::Call;

/// Size of a reply, at most, whatever the client accepts. Bytes; also the `dtpref` of FSINFO.
pub(super) const REPLY_BYTES_MAX: u32 = 64 << 10;

/// Entries requested at a time, at most.
const BATCH_MAX: usize = 512;

/// Each entry of a list is preceded by "value follows".
const FOLLOWS_BYTES: usize = 4;

/// Approximate minimum size of an entry in the results. Bytes: a name of 8 characters.
const ENTRY_BYTES: usize = FOLLOWS_BYTES + 8 + 12 + 8;

/// With attributes and handle.
const ENTRY_PLUS_BYTES: usize = ENTRY_BYTES + 88 + 40;

const NO_VERIFIER: cookieverf3 = cookieverf3([0; 8]);

pub(super) async fn readdir(call: &Call) -> Answer {
    let args: READDIR3args = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.dir)?;
    check_verifier(args.cookie, args.cookieverf)?;
    let mut results = READDIR3resok {
        dir_attributes: Nfs3Option::Some(dir.fattr(&dir.attributes().await?)),
        cookieverf: NO_VERIFIER,
        reply: dirlist3::default(),
    };
    let count = args.count.min(REPLY_BYTES_MAX) as usize;
    let mut listing = Listing::new(count, count, results.packed_size(), wire_entry)?;
    results.reply.eof = listing.read(&dir, args.cookie, false).await?;
    results.reply.entries = List(listing.entries);
    success(&results)
}

pub(super) async fn readdirplus(call: &Call) -> Answer {
    let args: READDIRPLUS3args = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.dir)?;
    check_verifier(args.cookie, args.cookieverf)?;
    let mut results = READDIRPLUS3resok {
        dir_attributes: Nfs3Option::Some(dir.fattr(&dir.attributes().await?)),
        cookieverf: NO_VERIFIER,
        reply: dirlistplus3 { entries: List::default(), eof: false },
    };
    let (dircount, maxcount) = (args.dircount as usize, args.maxcount.min(REPLY_BYTES_MAX) as usize);
    let mut listing = Listing::new(dircount, maxcount, results.packed_size(), |entry| wire_entry_plus(&dir, entry))?;
    results.reply.eof = listing.read(&dir, args.cookie, true).await?;
    results.reply.entries = List(listing.entries);
    success(&results)
}

/// # Errors
/// `NFS3ERR_BAD_COOKIE`: it has another server's verifier.
fn check_verifier(cookie: u64, verifier: cookieverf3) -> Result<(), nfsstat3> {
    if cookie == 0 || verifier == NO_VERIFIER { Ok(()) } else { Err(nfsstat3::NFS3ERR_BAD_COOKIE) }
}

fn wire_entry(entry: Entry) -> entry3<'static> {
    entry3 { fileid: entry.number.0, name: entry.name.into(), cookie: entry.cookie }
}

fn wire_entry_plus(dir: &Object<'_>, entry: Entry) -> entryplus3<'static> {
    let (name_attributes, name_handle) = match &entry.node {
        Some((node, attributes)) => (Nfs3Option::Some(dir.fattr(attributes)), dir.some_handle_of(*node)),
        None => (Nfs3Option::None, Nfs3Option::None),
    };
    entryplus3 { fileid: entry.number.0, name: entry.name.into(), cookie: entry.cookie, name_attributes, name_handle }
}

/// Bytes of number, name and cookie on the wire: what `dircount` counts (RFC 1813, 3.3.17).
fn names_bytes(entry: &Entry) -> usize {
    8 + 4 + entry.name.len().next_multiple_of(4) + 8
}

/// Entries of a reply, up to the client's limits.
struct Listing<T, F> {
    /// Bytes left for numbers, names and cookies.
    names_left: usize,
    /// Bytes left in the results.
    left: usize,
    entries: Vec<T>,
    to_wire: F,
}

impl<T: Pack, F: Fn(Entry) -> T> Listing<T, F> {
    /// `empty`: the size of results without entries. Bytes.
    ///
    /// # Errors
    /// `NFS3ERR_TOOSMALL`: not even these fit.
    fn new(names_max: usize, max: usize, empty: usize, to_wire: F) -> Result<Self, nfsstat3> {
        let left = max.checked_sub(empty).ok_or(nfsstat3::NFS3ERR_TOOSMALL)?;
        Ok(Listing { names_left: names_max, left, entries: Vec::new(), to_wire })
    }

    /// Reads entries after `cookie`; returns true at the end of the directory.
    ///
    /// # Errors
    /// `NFS3ERR_TOOSMALL`: there are entries, but not even one fits.
    async fn read(&mut self, dir: &Object<'_>, mut cookie: u64, with_nodes: bool) -> Result<bool, nfsstat3> {
        let usual = if with_nodes { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        loop {
            let entries_max = (self.left.min(self.names_left) / usual).clamp(1, BATCH_MAX);
            let call = TreeCall::ReadDirectory { dir: dir.node, cookie, entries_max, with_nodes };
            let TreeReply::Entries(batch, last) = dir.ask(call).await.map_err(status)? else {
                return Err(nfsstat3::NFS3ERR_SERVERFAULT);
            };
            let read = batch.len();
            for entry in batch {
                cookie = entry.cookie;
                if !self.push(entry) {
                    return if self.entries.is_empty() { Err(nfsstat3::NFS3ERR_TOOSMALL) } else { Ok(false) };
                }
            }
            if last {
                return Ok(true);
            }
            if read == 0 {
                return Err(nfsstat3::NFS3ERR_SERVERFAULT);
            }
            if self.left.min(self.names_left) < usual {
                return Ok(false);
            }
        }
    }

    /// Adds an entry; returns false if it does not fit.
    fn push(&mut self, entry: Entry) -> bool {
        let names = names_bytes(&entry);
        let entry = (self.to_wire)(entry);
        let bytes = FOLLOWS_BYTES + entry.packed_size();
        if names > self.names_left || bytes > self.left {
            return false;
        }
        self.names_left -= names;
        self.left -= bytes;
        self.entries.push(entry);
        true
    }
}

#[cfg(test)]
mod tests {
    use machine::tree::InodeNo;
    use nfs3_types::nfs3::nfs_fh3;
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let name = prop::collection::vec(1..=255_u8, 1..=255);
        let entry = (name, any::<u64>(), any::<u64>());
        let entry =
            entry.prop_map(|(name, number, cookie)| Entry { name, number: InodeNo(number), cookie, node: None });
        prop::collection::vec(entry, 0..60)
    }

    fn empty() -> READDIR3resok<'static> {
        READDIR3resok { dir_attributes: Nfs3Option::None, cookieverf: NO_VERIFIER, reply: dirlist3::default() }
    }

    fn empty_plus() -> READDIRPLUS3resok<'static> {
        let reply = dirlistplus3 { entries: List::default(), eof: false };
        READDIRPLUS3resok { dir_attributes: Nfs3Option::None, cookieverf: NO_VERIFIER, reply }
    }

    fn plus(entry: Entry) -> entryplus3<'static> {
        entryplus3 {
            fileid: entry.number.0,
            name: entry.name.into(),
            cookie: entry.cookie,
            name_attributes: Nfs3Option::None,
            name_handle: Nfs3Option::Some(nfs_fh3 { data: vec![1; 33].into() }),
        }
    }

    #[test]
    fn a_cookie_of_another_server_is_refused() {
        assert_eq!(check_verifier(0, cookieverf3([1; 8])), Ok(()));
        assert_eq!(check_verifier(5, NO_VERIFIER), Ok(()));
        assert_eq!(check_verifier(5, cookieverf3([1; 8])), Err(nfsstat3::NFS3ERR_BAD_COOKIE));
    }

    #[test]
    fn without_room_for_an_empty_reply_there_is_none() {
        let bytes = empty().packed_size();
        assert!(Listing::new(bytes - 1, bytes - 1, bytes, wire_entry).is_err());
        assert!(Listing::new(bytes, bytes, bytes, wire_entry).is_ok());
    }

    proptest! {
        #[test]
        fn results_of_readdir_fill_count_and_never_exceed_it(all in entries(), count in 20..8000_usize) {
            let mut listing = Listing::new(count, count, empty().packed_size(), wire_entry).expect("room");
            let fitting = all.iter().take_while(|entry| listing.push((*entry).clone())).count();
            let results = |entries: &[Entry]| {
                let entries = List(entries.iter().cloned().map(wire_entry).collect());
                READDIR3resok { reply: dirlist3 { entries, eof: false }, ..empty() }
            };
            prop_assert_eq!(listing.entries.len(), fitting);
            prop_assert!(results(&all[..fitting]).packed_size() <= count);
            if fitting < all.len() {
                prop_assert!(results(&all[..=fitting]).packed_size() > count);
            }
        }

        #[test]
        fn results_of_readdirplus_keep_to_both_counts(all in entries(), dircount in 0..4000_usize, maxcount in 20..8000_usize) {
            let mut listing = Listing::new(dircount, maxcount, empty_plus().packed_size(), plus).expect("room");
            let fitting = all.iter().take_while(|entry| listing.push((*entry).clone())).count();
            let results = |entries: &[Entry]| {
                let entries = List(entries.iter().cloned().map(plus).collect());
                READDIRPLUS3resok { reply: dirlistplus3 { entries, eof: false }, ..empty_plus() }
            };
            // Number, name and cookie are what an entry of READDIR has.
            let names = |entries: &[Entry]| entries.iter().cloned().map(|entry| wire_entry(entry).packed_size()).sum::<usize>();
            prop_assert!(results(&all[..fitting]).packed_size() <= maxcount);
            prop_assert!(names(&all[..fitting]) <= dircount);
            if fitting < all.len() {
                let (more, names) = (results(&all[..=fitting]).packed_size(), names(&all[..=fitting]));
                prop_assert!(more > maxcount || names > dircount);
            }
        }
    }
}
