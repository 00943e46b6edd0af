//! Memory of other programs whose pages this process fills and takes away.

use crate::Errno;

/// Bytes of a page of a mapping.
pub const PAGE_BYTES: usize = 4096;

/// Where a mapping's faults are reported. Valid as long as its [`Mapping`] lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults(pub u32);

/// A thread of the program waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Counted from the mapping's begin.
    pub page: u64,
    /// It will be written.
    pub is_write: bool,
}

/// A program's mapping. None of its calls waits for the program, whatever that does; one that no longer runs, or has
/// unmapped the memory, makes those fail that give it something, and the content stays readable.
///
/// A page is in one of three states: absent, read-only or writable. Threads that need more wait and are reported
/// ([`Op::Faults`](crate::Op::Faults)) until a call for the page wakes them.
pub trait Mapping: Send + Sync {
    fn faults(&self) -> Faults;

    /// In pages.
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The faults in what [`Op::Faults`](crate::Op::Faults) received.
    fn decode(&self, received: &[u8]) -> Vec<Fault>;

    /// Makes an absent page present, also one that was poisoned.
    ///
    /// # Errors
    /// The host's, as those of all others.
    fn fill(&self, page: u64, bytes: &[u8; PAGE_BYTES], is_writable: bool) -> Result<(), Errno>;

    /// Fills adjacent pages, which may only be read then. Returns how many are certain; others may be there all the same.
    fn fill_run(&self, first: u64, pages: &[&[u8; PAGE_BYTES]]) -> usize {
        (first..).zip(pages).take_while(|(page, bytes)| self.fill(*page, bytes, false).is_ok()).count()
    }

    /// Makes a read-only page writable.
    fn allow_writes(&self, page: u64) -> Result<(), Errno>;

    /// Makes a writable page read-only: when it returns, no thread writes it any more.
    fn forbid_writes(&self, page: u64) -> Result<(), Errno>;

    /// The content of a present page. What a page held that may be written while it is copied is not defined.
    fn copy_out(&self, page: u64, into: &mut [u8; PAGE_BYTES]) -> Result<(), Errno>;

    /// Makes a page absent: when it returns, no thread reads it any more.
    fn remove(&self, page: u64) -> Result<(), Errno>;

    /// Makes all pages absent, as [`remove`](Self::remove) does with one.
    fn clear(&self) -> Result<(), Errno>;

    /// Makes accesses of an absent page fail (`SIGBUS`), until it is filled. Linux takes poison away in no other way.
    fn poison(&self, page: u64) -> Result<(), Errno>;

    /// Makes threads that wait for a page try again.
    fn wake(&self, page: u64) -> Result<(), Errno>;
}
