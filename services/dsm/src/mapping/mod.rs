//! A shared volume mapped into programs of this node.
//!
//! A mapping is one more user of the node's pages. Between nodes a page is read by many or written by one, and so it is
//! within a node: the cache and any number of mappings may have it to read, or **one** mapping alone to write; then the
//! cache does not have the block, and the page's bytes are those of the mapping. What a mapping has only to read is never
//! taken for the page's content, since the program can change it behind the host's back.
//!
//! Who waits for a page is noted beside the readers and writers of the volume ([`Page`](crate::waiting::Page)), and served
//! by the same steps ([`serve`]). When the policy takes a page away, it is first protected, then copied out, then removed,
//! then the answer leaves ([`withdraw`]). When the lease of this node is over, all pages are taken away at once ([`stop`]).
//! All changes are made with the volume's state locked, and none of them waits.

mod expected;
mod fill;
mod program;
mod serve;
mod stop;
mod table;
mod withdraw;

pub(crate) use program::Written;
pub(crate) use table::{Fault, Place, Table};

/// A mapping of a program. Numbers are not used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappingNo(pub(crate) u32);

/// Mappings of one volume at a time.
pub const MAPPINGS_MAX: usize = 256;

/// Pages that one mapping has at a time: 4 GiB. For more, those granted least recently are taken away.
pub const PAGES_MAX: usize = 1 << 20;

/// Pages written by programs that are copied into the cache at the end of a lease, at most, beside those that clients have
/// written, too. A page takes a few microseconds, and all of them a small part of the time between the two ends of a lease.
const RETAINED_MAX: usize = 8192;
