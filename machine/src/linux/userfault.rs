//! Mappings of other programs through userfaultfd(2): the program maps a memfd of its own, registers it for missing pages
//! and write protection, and hands both descriptors over; everything else is done here, without it.
//!
//! The program may do with its descriptors and memory what it likes, at any moment. So nothing here maps the memfd (it
//! could be truncated) or waits: content is read with `pread`, which a seal keeps from being cut short, and faults are
//! read with `RWF_NOWAIT`. What is done to a range that the program has unmapped or registered otherwise fails, and only
//! its own pages are wrong then.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use linux_raw_sys::general as raw;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::ioctl::{Opcode, Updater, opcode};

use super::syscall::check_long;
use crate::Errno;
use crate::mapping::{Fault, Faults, Mapping, PAGE_BYTES};

/// Attempts at a change while the program is in the middle of one of its own (fork, mremap), before it has failed.
const ATTEMPTS: u32 = 64;

const TYPE: u8 = raw::UFFDIO as u8;
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(TYPE, raw::_UFFDIO_COPY as u8);
const PROTECT: Opcode = opcode::read_write::<raw::uffdio_writeprotect>(TYPE, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(TYPE, raw::_UFFDIO_POISON as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(TYPE, raw::_UFFDIO_WAKE as u8);

/// `UFFDIO_WRITEPROTECT_MODE_WP` and `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`, which `linux-raw-sys` does not have.
const PROTECT_ON: u64 = 1;
const PROTECT_WITHOUT_WAKING: u64 = 2;

const MESSAGE_BYTES: usize = size_of::<raw::uffd_msg>();

/// Why descriptors that a program handed over are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the first descriptor is not a userfaultfd in non-blocking mode")]
    NoUserfaultfd,
    #[error("the second descriptor is not a memfd sealed against changes of its size")]
    NoSealedMemory,
    #[error("the mapping is not {0} bytes long, at whole pages")]
    WrongSize(u64),
}

/// Whether nobody else has emptied the memory.
pub type IsIntact = Box<dyn Fn() -> bool + Send + Sync>;

/// Where the pages that are not in one piece are copied to. At the beginning of a page: some processors copy whole pages ten
/// times more slowly to where a large vector of bytes begins, 16 bytes after it (Zen, with `rep movsb`).
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "only the host reads it")] [u8; PAGE_BYTES]);

/// Pages that are copied from where they are, at least; for fewer, a call of their own costs more than their copy.
const PIECE_MIN: usize = 8;

/// Memory that a program has mapped and handed over.
pub struct Userfault {
    userfault: OwnedFd,
    memory: OwnedFd,
    /// Of the program's mapping.
    base: u64,
    pages: u64,
    /// Adjacent pages are copied from one piece of memory.
    adjacent: Mutex<Vec<Page>>,
    is_intact: Option<IsIntact>,
}

impl Userfault {
    /// Takes over the memory that a program has mapped at `base`, of `len` bytes.
    ///
    /// # Errors
    /// When the descriptors are others than they should be.
    pub fn adopt(userfault: OwnedFd, memory: OwnedFd, base: u64, len: u64) -> Result<Userfault, Refusal> {
        let whole = |number: u64| number.is_multiple_of(PAGE_BYTES as u64);
        if !whole(base) || !whole(len) || len == 0 || base.checked_add(len).is_none() {
            return Err(Refusal::WrongSize(len));
        }
        if !is_userfault(&userfault) || !is_nonblocking(userfault.as_raw_fd()) {
            return Err(Refusal::NoUserfaultfd);
        }
        // Only memory of the host has seals, so this is no file that could block.
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        if !rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(sealed)) {
            return Err(Refusal::NoSealedMemory);
        }
        if !rustix::fs::fstat(&memory).is_ok_and(|facts| facts.st_size as u64 == len) {
            return Err(Refusal::WrongSize(len));
        }
        Ok(Userfault {
            userfault,
            memory,
            base,
            pages: len / PAGE_BYTES as u64,
            adjacent: Mutex::default(),
            is_intact: None,
        })
    }

    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Somebody else may empty the memory. From then on what is read of it is an error, and what is put there is taken away.
    pub fn guarded(self, is_intact: IsIntact) -> Userfault {
        Userfault { is_intact: Some(is_intact), ..self }
    }

    fn check_intact(&self) -> Result<(), Errno> {
        if self.is_intact.as_ref().is_none_or(|is_intact| is_intact()) { Ok(()) } else { Err(Errno::IO) }
    }

    fn range(&self, page: u64) -> raw::uffdio_range {
        raw::uffdio_range { start: self.base + page * PAGE_BYTES as u64, len: PAGE_BYTES as u64 }
    }

    /// Makes a change of the program's memory.
    ///
    /// # Safety
    /// The code must be one of userfaultfd(2) that takes a `T`, all of whose addresses are the program's, but for the
    /// source of a copy.
    unsafe fn change<const CODE: Opcode, T: Copy>(&self, argument: T) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            let mut argument = argument;
            // SAFETY: by the caller.
            let done = unsafe { rustix::ioctl::ioctl(&self.userfault, Updater::<CODE, T>::new(&mut argument)) };
            match done {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => std::thread::yield_now(),
                Err(error) => return Err(Errno(error.raw_os_error())),
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// Takes pages away; no thread has one of them when it returns.
    fn punch(&self, at: u64, len: u64) -> Result<(), Errno> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, how, at, len).map_err(|error| Errno(error.raw_os_error()))
    }

    /// Fills what waits in `adjacent`, from this page on.
    fn fill_adjacent(&self, first: u64, adjacent: &mut Vec<Page>) -> bool {
        if adjacent.is_empty() {
            return true;
        }
        // SAFETY: a `Page` is the bytes of one, and they are borrowed.
        let filled = unsafe { self.copy_from(first, adjacent.as_ptr().cast(), adjacent.len(), false) };
        adjacent.clear();
        filled.is_ok()
    }

    /// Fills pages, from this one on. Only the host reads what is at `from`, so that it may reach over several borrows.
    ///
    /// # Safety
    /// From there on there are so many pages, borrowed until this returns.
    unsafe fn copy_from(&self, first: u64, from: *const u8, pages: usize, is_writable: bool) -> Result<(), Errno> {
        let mode = if is_writable { 0 } else { u64::from(raw::UFFDIO_COPY_MODE_WP) };
        let (dst, len) = (self.range(first).start, (pages * PAGE_BYTES) as u64);
        let argument = raw::uffdio_copy { dst, src: from.expose_provenance() as u64, len, mode, copy: 0 };
        // SAFETY: the source is only read, and it is there by the caller.
        unsafe { self.change::<COPY, _>(argument) }?;
        self.check_intact().inspect_err(|_| _ = self.punch(first * PAGE_BYTES as u64, len))
    }

    fn protect(&self, page: u64, mode: u64) -> Result<(), Errno> {
        let argument = raw::uffdio_writeprotect { range: self.range(page), mode };
        // SAFETY: the code's own argument, with a range of the program's.
        unsafe { self.change::<PROTECT, _>(argument) }
    }
}

impl Mapping for Userfault {
    fn faults(&self) -> Faults {
        Faults(self.userfault.as_raw_fd() as u32)
    }

    fn len(&self) -> u64 {
        self.pages
    }

    fn decode(&self, received: &[u8]) -> Vec<Fault> {
        let (messages, _) = received.as_chunks::<MESSAGE_BYTES>();
        messages.iter().filter_map(|message| self.fault(message)).collect()
    }

    fn fill(&self, page: u64, bytes: &[u8; PAGE_BYTES], is_writable: bool) -> Result<(), Errno> {
        // SAFETY: one page, which is borrowed.
        unsafe { self.copy_from(page, bytes.as_ptr(), 1, is_writable) }
    }

    fn fill_run(&self, first: u64, pages: &[&[u8; PAGE_BYTES]]) -> usize {
        let pieces = pages.chunk_by(|one, next| one.as_ptr_range().end == next.as_ptr());
        let mut adjacent = self.adjacent.lock();
        adjacent.clear();
        // Filled, or waiting in `adjacent`.
        let mut done = 0;
        for piece in pieces {
            let waiting = adjacent.len();
            if piece.len() >= PIECE_MIN || piece.len() == pages.len() {
                if !self.fill_adjacent(first + (done - waiting) as u64, &mut adjacent) {
                    return done - waiting;
                }
                let [page, ..] = piece else { continue };
                // SAFETY: each page of the piece is borrowed, and begins where the one before ends.
                if unsafe { self.copy_from(first + done as u64, page.as_ptr(), piece.len(), false) }.is_err() {
                    return done;
                }
            } else {
                adjacent.extend(piece.iter().map(|page| Page(**page)));
            }
            done += piece.len();
        }
        let waiting = adjacent.len();
        let is_filled = self.fill_adjacent(first + (done - waiting) as u64, &mut adjacent);
        if is_filled { done } else { done - waiting }
    }

    fn allow_writes(&self, page: u64) -> Result<(), Errno> {
        // Emptied before, the page has nothing that could be written on.
        self.check_intact()?;
        self.protect(page, 0)?;
        self.check_intact()
    }

    fn forbid_writes(&self, page: u64) -> Result<(), Errno> {
        self.protect(page, PROTECT_ON)
    }

    fn copy_out(&self, page: u64, into: &mut [u8; PAGE_BYTES]) -> Result<(), Errno> {
        let count = rustix::io::pread(&self.memory, into, page * PAGE_BYTES as u64);
        match count {
            // Asked after it was read: what is emptied later was not.
            Ok(PAGE_BYTES) => self.check_intact(),
            Ok(_) => Err(Errno::IO),
            Err(error) => Err(Errno(error.raw_os_error())),
        }
    }

    fn remove(&self, page: u64) -> Result<(), Errno> {
        self.punch(page * PAGE_BYTES as u64, PAGE_BYTES as u64)
    }

    fn clear(&self) -> Result<(), Errno> {
        self.punch(0, self.pages * PAGE_BYTES as u64)
    }

    fn poison(&self, page: u64) -> Result<(), Errno> {
        // What is not intact could not be filled for that reason alone: its threads wait for what takes the mapping's place.
        self.check_intact()?;
        // What is left of the protection of a page that is absent now is in the way of the poison.
        let _ = self.protect(page, PROTECT_WITHOUT_WAKING);
        let argument = raw::uffdio_poison { range: self.range(page), mode: 0, updated: 0 };
        // SAFETY: the code's own argument, with a range of the program's.
        unsafe { self.change::<POISON, _>(argument) }
    }

    fn wake(&self, page: u64) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { self.change::<WAKE, _>(self.range(page)) }
    }
}

impl Userfault {
    fn fault(&self, message: &[u8; MESSAGE_BYTES]) -> Option<Fault> {
        // SAFETY: a message is plain numbers, valid for all bytes.
        let message: raw::uffd_msg = unsafe { std::ptr::read_unaligned(message.as_ptr().cast()) };
        match u32::from(message.event) {
            raw::UFFD_EVENT_PAGEFAULT => {
                // SAFETY: as above.
                let raw::uffd_msg__bindgen_ty_1__bindgen_ty_1 { flags, address, .. } = unsafe { message.arg.pagefault };
                let page = address.checked_sub(self.base)? / PAGE_BYTES as u64;
                let is_write = flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE | raw::UFFD_PAGEFAULT_FLAG_WP) != 0;
                (page < self.pages).then_some(Fault { page, is_write })
            }
            raw::UFFD_EVENT_FORK => {
                // SAFETY: as above.
                let descriptor = unsafe { message.arg.fork.ufd } as RawFd;
                // Whoever reads such a message owns the descriptor in it. The library never asks for them.
                if is_userfault_number(descriptor) {
                    // SAFETY: the host made it for this reader alone.
                    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                }
                None
            }
            _ => None,
        }
    }
}

fn is_userfault(descriptor: &impl AsFd) -> bool {
    is_userfault_number(descriptor.as_fd().as_raw_fd())
}

fn is_userfault_number(descriptor: RawFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

fn is_nonblocking(descriptor: RawFd) -> bool {
    // SAFETY: no pointer is passed.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Reads what is reported of faults. Never waits: `EAGAIN` if nothing is.
///
/// # Safety
/// The memory of the vectors must be valid, and untouched by others.
pub(super) unsafe fn read(descriptor: RawFd, vectors: &[libc::iovec]) -> Result<u64, Errno> {
    let (at, count) = (vectors.as_ptr(), vectors.len() as libc::c_int);
    // SAFETY: by the caller.
    let result = check_long(unsafe { libc::preadv2(descriptor, at, count, -1, libc::RWF_NOWAIT) } as i64);
    match result {
        // The program has made reads wait: then the host reports no readiness, but an error again and again.
        Err(Errno(libc::EAGAIN)) if !is_nonblocking(descriptor) => Err(Errno::INVALID),
        // Kernels before 6.10 know no read without waiting here but that of the descriptor's own mode.
        Err(Errno::NOT_SUPPORTED) if is_nonblocking(descriptor) => {
            // SAFETY: by the caller.
            check_long(unsafe { libc::readv(descriptor, at, count) } as i64)
        }
        other => other,
    }
}
