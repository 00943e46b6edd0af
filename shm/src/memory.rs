//! Memory of this program whose pages another process fills: a memfd, mapped and registered with a userfaultfd.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use linux_raw_sys::general as raw;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::{Advice, MapFlags, ProtFlags, UserfaultfdFlags};

use crate::Error;

const TYPE: u8 = raw::UFFDIO as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(TYPE, raw::_UFFDIO_API as u8);
const REGISTER: Opcode = opcode::read_write::<raw::uffdio_register>(TYPE, raw::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(TYPE, raw::_UFFDIO_WAKE as u8);
/// `USERFAULTFD_IOC_NEW` of /dev/userfaultfd.
const NEW: Opcode = opcode::none(TYPE, 0);

const FEATURES: u32 = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | raw::UFFD_FEATURE_MISSING_SHMEM
    | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | raw::UFFD_FEATURE_POISON;

/// Mapped memory. All its pages are absent at first, and threads that touch them wait until whoever has the descriptors
/// fills them.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    memory: OwnedFd,
    userfault: OwnedFd,
    is_user_mode_only: bool,
}

// SAFETY: it is memory that any thread may access; what the accesses do to each other is the user's, as with any other
// shared memory, and no reference is made here but to atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes, whole pages.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn new(len: usize) -> Result<Memory, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("awase-shm", flags).map_err(Error::host("a memfd"))?;
        rustix::fs::ftruncate(&memory, len as u64).map_err(Error::host("as much memory"))?;
        // The server reads what was written through the memfd: nothing may be cut off.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(Error::host("seals"))?;
        let (userfault, is_user_mode_only) = userfaultfd()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the host chooses.
        let base = unsafe { rustix::mm::mmap(null_mut(), len, protection, flags, &memory, 0) };
        let base = base.map_err(Error::host("a mapping"))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::Misunderstood("a mapping at address 0"))?;
        let made = Memory { base, len, memory, userfault, is_user_mode_only };
        // A child would see zeroes, and a dump of a crash would wait for a server.
        made.advise(Advice::LinuxDontFork)?;
        made.advise(Advice::LinuxDontDump)?;
        // Hosts without huge pages refuse what they do anyway.
        let _ = made.advise(Advice::LinuxNoHugepage);
        made.register()?;
        Ok(made)
    }

    fn advise(&self, advice: Advice) -> Result<(), Error> {
        // SAFETY: the range is this mapping, and none of these pieces of advice changes what is in it.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }.map_err(Error::host("advice"))
    }

    fn register(&self) -> Result<(), Error> {
        let mode = raw::UFFDIO_REGISTER_MODE_MISSING | raw::UFFDIO_REGISTER_MODE_WP;
        let mut argument = raw::uffdio_register { range: self.range(), mode: mode.into(), ioctls: 0 };
        // SAFETY: the code's own argument, with the range of this mapping.
        unsafe { rustix::ioctl::ioctl(&self.userfault, Updater::<REGISTER, _>::new(&mut argument)) }
            .map_err(Error::host("faults of a mapping"))
    }

    fn range(&self) -> raw::uffdio_range {
        raw::uffdio_range { start: self.base.as_ptr().expose_provenance() as u64, len: self.len as u64 }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// In bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the host reports only faults of the program itself, so that a system call into an absent page fails.
    pub fn is_user_mode_only(&self) -> bool {
        self.is_user_mode_only
    }

    /// The userfaultfd and the memfd.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.userfault.as_fd(), self.memory.as_fd()]
    }

    /// Makes all pages absent, also those whose accesses fail: no thread reads or writes them any more when it returns.
    ///
    /// # Errors
    /// The host's.
    pub fn clear(&self) -> Result<(), Error> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, how, 0, self.len as u64).map_err(Error::host("to give memory back"))?;
        // That leaves poison in the mapping, of which whoever fills it next does not know.
        self.advise(Advice::LinuxDontneedLocked)
    }

    /// Makes all threads that wait for a page try again, so that their faults are reported once more.
    pub fn wake(&self) {
        let mut range = self.range();
        // SAFETY: the code's own argument. It fails only for a range that makes no sense.
        let _ = unsafe { rustix::ioctl::ioctl(&self.userfault, Updater::<WAKE, _>::new(&mut range)) };
    }

    /// From now on every access is SIGBUS.
    ///
    /// # Errors
    /// The host's.
    pub fn fail(&self) -> Result<(), Error> {
        let nothing =
            rustix::fs::memfd_create("awase-shm lost", MemfdFlags::CLOEXEC).map_err(Error::host("a memfd"))?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let (base, protection) = (self.base.as_ptr().cast::<c_void>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: it replaces this mapping, which stays mapped, by one of a file without a byte, in one step. Threads that
        // access it get the signal that was promised.
        unsafe { rustix::mm::mmap(base, self.len, protection, flags, &nothing, 0) }
            .map_err(Error::host("a mapping"))?;
        self.wake();
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A descriptor that reports faults, and whether only those of the program itself.
fn userfaultfd() -> Result<(OwnedFd, bool), Error> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: it is used for memory of this library alone.
    let from_call = |more| unsafe { rustix::mm::userfaultfd(flags | UserfaultfdFlags::from_bits_retain(more)) };
    let mut refused = Errno::PERM;
    let ways: [(&dyn Fn() -> rustix::io::Result<OwnedFd>, bool); 3] =
        [(&|| from_call(0), false), (&from_device, false), (&|| from_call(raw::UFFD_USER_MODE_ONLY), true)];
    for (make, is_user_mode_only) in ways {
        match make() {
            Ok(made) => return agree(&made).map(|()| (made, is_user_mode_only)),
            Err(Errno::NOSYS) => return Err(Error::HostTooOld),
            Err(errno) => refused = errno,
        }
    }
    Err(Error::host("userfaultfd")(refused))
}

/// From /dev/userfaultfd, whose permissions say who may.
fn from_device() -> rustix::io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: the device's own code, with flags as its argument; its result is a new descriptor.
    unsafe { rustix::ioctl::ioctl(&device, MakeUserfault(flags.bits())) }
}

struct MakeUserfault(u32);

// SAFETY: the code takes flags in place of a pointer, and returns a descriptor that nobody else owns.
unsafe impl rustix::ioctl::Ioctl for MakeUserfault {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    unsafe fn output_from_ptr(out: rustix::ioctl::IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

fn agree(userfault: &OwnedFd) -> Result<(), Error> {
    let mut argument = raw::uffdio_api { api: raw::UFFD_API.into(), features: FEATURES.into(), ioctls: 0 };
    // SAFETY: the code's own argument.
    let agreed = unsafe { rustix::ioctl::ioctl(userfault, Updater::<API, _>::new(&mut argument)) };
    agreed.map_err(|_| Error::HostTooOld)
}
