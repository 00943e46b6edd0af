//! The system calls on trees, on open descriptors. All are retried when a signal interrupts them.

use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{
    self, Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, StatVfsMountFlags, Uid,
};
use rustix::io;
use rustix::process::{Resource, getrlimit};

use crate::Errno;
use crate::linux::file_system::FileSystem;
use crate::linux::syscall::check;
use crate::tree::{LINK_BYTES_MAX, Node};

/// `FS_CASEFOLD_FL` of linux/fs.h.
const CASEFOLD: u32 = 0x4000_0000;

/// Identifies a mount while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId(u64);

/// The mount of an open node with this status.
pub(super) fn mount_of(status: &libc::statx) -> MountId {
    MountId(status.stx_mnt_id)
}

/// `struct file_handle` of linux/fs.h, with room for the longest (`MAX_HANDLE_SZ`).
#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

fn done<T>(call: impl FnMut() -> io::Result<T>) -> Result<T, Errno> {
    io::retry_on_intr(call).map_err(|error| Errno(error.raw_os_error()))
}

/// The same for calls that rustix does not have.
fn retry(mut call: impl FnMut() -> libc::c_int) -> Result<libc::c_int, Errno> {
    loop {
        match check(call()) {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

fn descriptor(call: impl FnMut() -> libc::c_int) -> Result<OwnedFd, Errno> {
    let fd = retry(call)?;
    // SAFETY: the kernel has just made it, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a name in a directory.
pub(super) fn open_at(dir: BorrowedFd, name: &CStr, flags: libc::c_int, mode: u32) -> Result<OwnedFd, Errno> {
    done(|| fs::openat(dir, name, open_flags(flags), Mode::from_raw_mode(mode)))
}

/// Opens the path of a name in a directory if the host has all of it in memory.
///
/// # Errors
/// `EAGAIN`: it would have to look at the disk; `ENOSYS` and others before Linux 5.12.
pub(super) fn open_cached(dir: BorrowedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    // This call refuses flags that have no meaning for a path, as `O_NOCTTY`.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat2(dir, name, flags, Mode::empty(), ResolveFlags::CACHED).map_err(|error| Errno(error.raw_os_error()))
}

fn open_flags(flags: libc::c_int) -> OFlags {
    OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC | OFlags::NOCTTY
}

/// Identifies an open node by its file handle: the type of the handle (one byte), then the handle.
///
/// # Errors
/// `EOVERFLOW`: the file system's handles are longer than a [`Node`]; `EOPNOTSUPP`: it has none.
pub(super) fn node_of(fd: BorrowedFd) -> Result<Node, Errno> {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount: libc::c_int = 0;
    let (number, fd) = (libc::SYS_name_to_handle_at, fd.as_raw_fd());
    // SAFETY: the path is a C string, empty to mean the descriptor itself; the call fills the handle, which has as much
    // room as it says, and the number of the mount.
    retry(|| unsafe {
        let (handle, mount) = (&raw mut handle, &raw mut mount);
        libc::syscall(number, fd, c"".as_ptr(), handle, mount, libc::AT_EMPTY_PATH) as libc::c_int
    })?;
    let too_long = Errno(libc::EOVERFLOW);
    let mut name = [0; 129];
    name[0] = u8::try_from(handle.kind).map_err(|_| too_long)?;
    name[1..].copy_from_slice(&handle.handle);
    let name = name.get(..1 + handle.bytes as usize).ok_or(too_long)?;
    Node::new(name).ok_or(too_long)
}

/// Retries when the host reports no memory: it does so, too, for a handle whose number is being given to a new node
/// (`iget_locked` finds it in creation).
const CREATIONS_MAX: u32 = 100;

/// Opens a node of the file system of `mount`, which is open for reading.
///
/// # Errors
/// `ESTALE`: it is gone, or never was; `EPERM`: that takes the capability `CAP_DAC_READ_SEARCH`.
pub(super) fn open_node(mount: BorrowedFd, node: &Node, flags: libc::c_int) -> Result<OwnedFd, Errno> {
    let stale = Errno(libc::ESTALE);
    let (&kind, bytes) = node.as_bytes().split_first().ok_or(stale)?;
    let mut handle = FileHandle { bytes: bytes.len() as libc::c_uint, kind: kind.into(), handle: [0; 128] };
    handle.handle.get_mut(..bytes.len()).ok_or(stale)?.copy_from_slice(bytes);
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
    let (number, mount) = (libc::SYS_open_by_handle_at, mount.as_raw_fd());
    // SAFETY: the call reads the handle, which is as long as it says.
    let mut open = || descriptor(|| unsafe { libc::syscall(number, mount, &raw mut handle, flags) as libc::c_int });
    let mut opened = open();
    for _ in 0..CREATIONS_MAX {
        if !matches!(opened, Err(Errno::NO_MEMORY)) {
            break;
        }
        std::thread::yield_now();
        opened = open();
    }
    opened.map_err(|errno| match errno.0 {
        // Not a handle of this file system, or one that its directory has lost.
        libc::EINVAL | libc::EOVERFLOW | libc::ENOENT => stale,
        _ => errno,
    })
}

/// The status of an open node: the basic one, its mount, and its birth time where it exists.
pub(super) fn status(fd: BorrowedFd) -> Result<libc::statx, Errno> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_AS_STAT;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    // SAFETY: the path is a C string, empty to mean the descriptor itself; the call fills `found`.
    retry(|| unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr()) })?;
    // SAFETY: the structure has integers only, for which zeroes are valid, too.
    Ok(unsafe { found.assume_init() })
}

/// A path that the kernel resolves to an open descriptor, whatever its names: for calls that take no descriptor, or
/// none opened with `O_PATH`.
struct DescriptorPath([u8; 40]);

impl DescriptorPath {
    fn new(fd: BorrowedFd) -> Self {
        let mut bytes = [0; 40];
        // A descriptor has ten digits at most, and the last byte stays zero. By thread, since the first thread of the
        // process may have ended.
        let _ = write!(&mut bytes[..39], "/proc/thread-self/fd/{}", fd.as_raw_fd());
        DescriptorPath(bytes)
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Adds a watch of the names in an open directory to an inotify group. Returns its number.
pub(super) fn watch_names(group: BorrowedFd, dir: BorrowedFd, kinds: WatchFlags) -> Result<i32, Errno> {
    let path = DescriptorPath::new(dir);
    done(|| inotify::add_watch(group, path.as_c_str(), kinds))
}

/// Fails without `/proc`.
pub(super) fn reach_by_descriptor(fd: BorrowedFd) -> Result<(), Errno> {
    let path = DescriptorPath::new(fd);
    done(|| fs::access(path.as_c_str(), Access::EXISTS))
}

/// Whether the thread, as the user for whom it acts, may do `bit` (`R_OK`, `W_OK` or `X_OK`) with the node.
pub(super) fn may(fd: BorrowedFd, bit: u32) -> Result<bool, Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    let (number, fd) = (libc::SYS_faccessat2, fd.as_raw_fd());
    // SAFETY: the path is a C string, empty to mean the descriptor itself. The C library's function would check the
    // process's user instead.
    let answer = retry(|| unsafe { libc::syscall(number, fd, c"".as_ptr(), bit, flags) as libc::c_int });
    match answer {
        Ok(_) => Ok(true),
        Err(Errno(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens an open node again.
///
/// # Errors
/// `EACCES` and others, as if it were opened by name.
pub(super) fn open_again(fd: BorrowedFd, flags: libc::c_int) -> Result<OwnedFd, Errno> {
    let path = DescriptorPath::new(fd);
    done(|| fs::openat(CWD, path.as_c_str(), open_flags(flags), Mode::empty()))
}

/// Sets the size of a file that the thread, as the user for whom it acts, may write.
pub(super) fn truncate(fd: BorrowedFd, size: u64) -> Result<(), Errno> {
    let size = libc::off_t::try_from(size).map_err(|_| Errno(libc::EFBIG))?;
    let path = DescriptorPath::new(fd);
    // SAFETY: the path is a C string.
    retry(|| unsafe { libc::truncate(path.as_c_str().as_ptr(), size) }).map(drop)
}

/// Sets the size of a file that is open for writing.
pub(super) fn truncate_open(fd: BorrowedFd, size: u64) -> Result<(), Errno> {
    let size = libc::off_t::try_from(size).map_err(|_| Errno(libc::EFBIG))?;
    done(|| fs::ftruncate(fd, size as u64))
}

/// Sets owner and group; `None` leaves one.
pub(super) fn chown(fd: BorrowedFd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    // All ones would mean: unchanged.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVALID);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    done(|| fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH))
}

pub(super) fn chmod(fd: BorrowedFd, mode: u32) -> Result<(), Errno> {
    let path = DescriptorPath::new(fd);
    done(|| fs::chmodat(CWD, path.as_c_str(), Mode::from_raw_mode(mode), AtFlags::empty()))
}

/// Sets the times of the last read and the last change.
pub(super) fn set_times(fd: BorrowedFd, times: &[libc::timespec; 2]) -> Result<(), Errno> {
    let path = DescriptorPath::new(fd);
    // SAFETY: the path is a C string, and there are two times.
    retry(|| unsafe { libc::utimensat(libc::AT_FDCWD, path.as_c_str().as_ptr(), times.as_ptr(), 0) }).map(drop)
}

pub(super) fn make_directory(dir: BorrowedFd, name: &CStr, mode: u32) -> Result<(), Errno> {
    done(|| fs::mkdirat(dir, name, Mode::from_raw_mode(mode)))
}

pub(super) fn make_symbolic_link(dir: BorrowedFd, name: &CStr, target: &CStr) -> Result<(), Errno> {
    done(|| fs::symlinkat(target, dir, name))
}

/// Makes a device, socket or pipe. `mode` includes its kind.
pub(super) fn make_special(dir: BorrowedFd, name: &CStr, mode: u32, device: libc::dev_t) -> Result<(), Errno> {
    done(|| fs::mknodat(dir, name, FileType::from_raw_mode(mode), Mode::from_raw_mode(mode), device))
}

/// Removes a name: of an empty directory, or of anything else.
pub(super) fn unlink(dir: BorrowedFd, name: &CStr, directory: bool) -> Result<(), Errno> {
    let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    done(|| fs::unlinkat(dir, name, flags))
}

pub(super) fn rename(from: (BorrowedFd, &CStr), to: (BorrowedFd, &CStr)) -> Result<(), Errno> {
    done(|| fs::renameat(from.0, from.1, to.0, to.1))
}

pub(super) fn link(node: BorrowedFd, dir: BorrowedFd, name: &CStr) -> Result<(), Errno> {
    let path = DescriptorPath::new(node);
    // The path to the descriptor is followed, not an open link.
    done(|| fs::linkat(CWD, path.as_c_str(), dir, name, AtFlags::SYMLINK_FOLLOW))
}

/// The target of a symbolic link that is open.
pub(super) fn read_link(fd: BorrowedFd) -> Result<Vec<u8>, Errno> {
    let mut target = [0; LINK_BYTES_MAX + 1];
    let len = done(|| fs::readlinkat_raw(fd, c"", &mut target))?;
    Ok(target[..len].to_vec())
}

/// Makes an open node durable.
pub(super) fn sync(fd: BorrowedFd) -> Result<(), Errno> {
    done(|| fs::fsync(fd))
}

/// Makes everything on the file system of the descriptor durable.
pub(super) fn sync_file_system(fd: BorrowedFd) -> Result<(), Errno> {
    done(|| fs::syncfs(fd))
}

/// Sets the position in an open file, or in a directory to the cookie of an entry.
pub(super) fn seek(fd: BorrowedFd, position: u64) -> Result<(), Errno> {
    let position = libc::off_t::try_from(position).map_err(|_| Errno::INVALID)?;
    done(|| fs::seek(fd, SeekFrom::Start(position as u64))).map(drop)
}

/// The largest position in an open file: the size of the largest file. By bisection, unless it is `likely`.
pub(super) fn end_max(fd: BorrowedFd, likely: u64) -> u64 {
    let may_be_at = |position| seek(fd, position).is_ok();
    if may_be_at(likely) && !may_be_at(likely + 1) {
        return likely;
    }
    let (mut may, mut may_not) = (0, 1u64 << 63);
    while may_not - may > 1 {
        let at = may + (may_not - may) / 2;
        if may_be_at(at) {
            may = at;
        } else {
            may_not = at;
        }
    }
    may
}

/// The size that this process may give a file at most (`RLIMIT_FSIZE`).
pub(super) fn file_size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Fills the buffer with the next entries of a directory (`struct linux_dirent64`). Returns their bytes, 0 at the end.
pub(super) fn entries(fd: BorrowedFd, buffer: &mut [u64]) -> Result<usize, Errno> {
    let (number, fd, room) = (libc::SYS_getdents64, fd.as_raw_fd(), size_of_val(buffer));
    // SAFETY: the call writes what the buffer has room for.
    let bytes = retry(|| unsafe { libc::syscall(number, fd, buffer.as_mut_ptr(), room) as libc::c_int })?;
    Ok(bytes as usize)
}

/// What a file system has and uses.
pub(super) struct Usage {
    pub(super) kind: FileSystem,
    /// Its unit of allocation, in bytes.
    pub(super) block: u64,
    pub(super) blocks: u64,
    pub(super) blocks_free: u64,
    pub(super) blocks_available: u64,
    pub(super) nodes: u64,
    pub(super) nodes_free: u64,
    pub(super) name_bytes_max: u64,
}

// The types differ between the C libraries and architectures.
#[allow(clippy::unnecessary_cast)]
pub(super) fn usage(fd: BorrowedFd) -> Result<Usage, Errno> {
    let found = done(|| fs::fstatfs(fd))?;
    Ok(Usage {
        kind: FileSystem::with(&found),
        block: if found.f_frsize > 0 { found.f_frsize as u64 } else { found.f_bsize as u64 },
        blocks: found.f_blocks as u64,
        blocks_free: found.f_bfree as u64,
        blocks_available: found.f_bavail as u64,
        nodes: found.f_files as u64,
        nodes_free: found.f_ffree as u64,
        name_bytes_max: found.f_namelen as u64,
    })
}

/// The clock that file systems take times from. Nanoseconds.
pub(super) fn clock_of_files() -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    nanoseconds(now.tv_sec, now.tv_nsec)
}

pub(super) fn nanoseconds(seconds: impl Into<i128>, rest: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + rest.into()
}

/// Whether the mount of the descriptor is read-only.
pub(super) fn is_mounted_read_only(fd: BorrowedFd) -> Result<bool, Errno> {
    Ok(done(|| fs::fstatvfs(fd))?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Maximum of names of a node.
pub(super) fn links_max(fd: BorrowedFd) -> u32 {
    // SAFETY: no pointer is passed.
    let found = unsafe { libc::fpathconf(fd.as_raw_fd(), libc::_PC_LINK_MAX) };
    u32::try_from(found).unwrap_or(u32::MAX)
}

/// Whether names in the directory, open for reading, are case-insensitive.
pub(super) fn folds_case(fd: BorrowedFd) -> bool {
    fs::ioctl_getflags(fd).is_ok_and(|flags| flags.bits() & CASEFOLD != 0)
}
