//! Opens image files and block devices, locks them, and finds out their properties.

mod disk;
mod lock;
mod made;
mod tree_disk;

use std::fs::{self, File as StdFile};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file_system::FileSystem;
use super::syscall;
use crate::{Errno, File, FileFacts, OpenFile};
use disk::Disk;
use lock::{Instead, Locked};
pub use made::Made;
pub(super) use tree_disk::TreeDisk;

/// Whether the host's page cache is bypassed (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Where the file system supports it.
    #[default]
    Auto,
    /// Always, or the file is not opened.
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub writable: bool,
    /// Creates a missing file, sparse, with this size in bytes. A file with a size keeps it.
    pub create_size: Option<u64>,
    pub direct: DirectIo,
    /// Others, which agree with this program on who writes what, have it open for writing, too, on this host or another one: it
    /// is locked only against those that do not share it, and not opened if what they write is not seen.
    pub is_common: bool,
    /// Only looked at: it is not locked, and others may have it locked.
    pub is_examined: bool,
}

/// Why a file can't be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// Since it was opened first.
    #[error("{0} is another file by now")]
    Replaced(PathBuf),
    #[error("no permission to open {path} for {purpose}", path = path.display())]
    Permission {
        path: PathBuf,
        /// "reading" or "reading and writing".
        purpose: &'static str,
    },
    #[error("{0} is a directory, not an image file or block device")]
    Directory(PathBuf),
    #[error("{0} is neither a regular file nor a block device")]
    NotRegular(PathBuf),
    /// Its medium cannot be written.
    #[error("{0} can't be written: it is read-only; export it read-only")]
    ReadOnly(PathBuf),
    #[error("{0} is empty: a disk of size 0 can't be served")]
    Empty(PathBuf),
    #[error("{0} is locked: another server or program uses it, or it is mounted")]
    Locked(PathBuf),
    /// It is needed, and impossible.
    #[error("{0} can't be opened for direct I/O: its file system or device refuses")]
    NoDirectIo(PathBuf),
    #[error("can't {what} {path}: {errno}", path = path.display())]
    Host { what: &'static str, path: PathBuf, errno: Errno },
}

/// Alignment where it is unknown: no file system or disk in use needs more.
const ALIGN_MAX: u32 = 4096;
/// Marks the number of a [`File`] that is a block device which the host zeroes by writing. Larger than any descriptor.
const ZEROES_ARE_WRITTEN: u32 = 1 << 31;

pub(super) fn descriptor(file: File) -> RawFd {
    (file.0 & !ZEROES_ARE_WRITTEN) as RawFd
}

/// Whether the host zeroes a range that stays allocated by writing.
pub(super) fn zeroes_are_written(file: File) -> bool {
    file.0 & ZEROES_ARE_WRITTEN != 0
}

/// Opens a regular file or block device, and locks it until the last clone of the result is dropped: exclusively when
/// it may be written, else against writers.
pub fn open(path: &Path, options: OpenOptions) -> Result<OpenFile, OpenError> {
    open_or_make(path, options).map(|(open, _)| open)
}

/// As [`open`]; with the file if it was made just now.
pub fn open_or_make(path: &Path, options: OpenOptions) -> Result<(OpenFile, Option<Made>), OpenError> {
    let at = Target { path, options };
    let before = fs::metadata(path).ok();
    let (file, is_made) = at.open(before.as_ref())?;
    let metadata = file.metadata().map_err(|e| at.host("examine", &e))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(OpenError::Directory(path.to_owned()));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::NotRegular(path.to_owned()));
    }
    let locked = match options.is_examined {
        true => Ok(Locked::not(file)),
        false => Locked::new(file, options.writable && !options.is_common),
    };
    let locked = match locked {
        Ok(locked) => locked,
        Err(Errno(libc::EAGAIN | libc::EACCES)) => return Err(OpenError::Locked(path.to_owned())),
        Err(errno) => return Err(at.errno("lock", errno)),
    };
    let file = locked.file();
    if at.is_removed(file) {
        // By who had made and locked it, and was refused.
        return Err(OpenError::Locked(path.to_owned()));
    }
    let size = at.size(file, (before.is_none(), is_made))?;
    if options.writable {
        settle_opening(file, FileSystem::of(file)).map_err(|errno| at.errno("flush", errno))?;
    }
    let disk = Disk::under(&metadata);
    let align = at.choose_direct(file, &disk)?;
    let facts = FileFacts {
        size,
        align: align.unwrap_or(1),
        direct: align.is_some(),
        writable: options.writable,
        rotational: disk.rotational,
        transfer_bytes_max: disk.transfer_bytes_max,
        disk: disk.number,
    };
    let tail = match align.is_some_and(|align| !size.is_multiple_of(u64::from(align))) {
        true => Some(at.open_again(file)?),
        false => None,
    };
    let mut number = file.as_raw_fd() as u32;
    if kind.is_block_device() && !disk.zeroes {
        number |= ZEROES_ARE_WRITTEN;
    }
    let tail_number = tail.as_ref().map(|tail| File(tail.as_raw_fd() as u32));
    let open = OpenFile { file: File(number), facts, tail: tail_number, owner: Arc::new((tail, locked)) };
    let made = is_made.then(|| Made::new(path.to_owned(), open.clone()));
    Ok((open, made))
}

/// A file that is locked against everybody else while it is changed, though it is open for reading.
pub struct Excluded {
    lock: Instead,
    _shared: OpenFile,
}

impl Excluded {
    /// `shared` is open for reading only, and the file at `path`.
    ///
    /// # Errors
    /// When it may not be written, others have it open, or another file is at `path` by now.
    pub fn new(shared: &OpenFile, path: &Path) -> Result<Excluded, OpenError> {
        let at = Target { path, options: OpenOptions { writable: true, ..OpenOptions::default() } };
        let file = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| at.not_opened(&error))?;
        let is_same = same_file(&file, descriptor(shared.file)).map_err(|error| at.host("examine", &error))?;
        if !is_same {
            return Err(OpenError::Replaced(path.to_owned()));
        }
        match Instead::new(file, descriptor(shared.file)) {
            Ok(lock) => Ok(Excluded { lock, _shared: shared.clone() }),
            Err(Errno(libc::EAGAIN | libc::EACCES)) => Err(OpenError::Locked(path.to_owned())),
            Err(errno) => Err(at.errno("lock", errno)),
        }
    }

    /// Open for reading and writing, through the host's page cache.
    pub fn file(&self) -> &StdFile {
        self.lock.file()
    }
}

fn same_file(file: &StdFile, other: RawFd) -> io::Result<bool> {
    let other = fs::metadata(format!("/proc/self/fd/{other}"))?;
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (other.dev(), other.ino()))
}

/// What is being opened and how; constructs the errors.
struct Target<'a> {
    path: &'a Path,
    options: OpenOptions,
}

impl Target<'_> {
    /// Opens without direct I/O, which is enabled later where it works: one descriptor, one lock. Returns whether this has
    /// made the file.
    fn open(&self, before: Option<&fs::Metadata>) -> Result<(StdFile, bool), OpenError> {
        let writable = self.options.writable;
        let block_device = before.is_some_and(|found| found.file_type().is_block_device());
        let create =
            self.options.create_size.is_some() && before.is_none_or(|found| found.is_file() && found.len() == 0);
        // Non-blocking, since opening a pipe would wait for its other end.
        let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        if block_device && writable && !self.options.is_examined {
            // Fails if it is mounted or used exclusively by another.
            flags |= libc::O_EXCL;
        }
        let mut how = fs::OpenOptions::new();
        how.read(true).write(writable || create).mode(0o600);
        if create {
            flags |= libc::O_CREAT;
            // Not where a link leads to a file that is missing, or somebody was faster.
            if before.is_none()
                && let Ok(made) = how.clone().custom_flags(flags | libc::O_EXCL).open(self.path)
            {
                return Ok((made, true));
            }
        }
        let opened = how.custom_flags(flags).open(self.path);
        opened.map(|file| (file, false)).map_err(|error| self.not_opened(&error))
    }

    /// Opens the file again, without direct I/O.
    fn open_again(&self, file: &StdFile) -> Result<StdFile, OpenError> {
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = fs::OpenOptions::new().read(true).write(self.options.writable).open(place);
        opened.map_err(|error| self.host("open once more", &error))
    }

    fn not_opened(&self, error: &io::Error) -> OpenError {
        let path = self.path.to_owned();
        match syscall::errno(error).0 {
            libc::ENOENT if self.options.create_size.is_some() => match directory_of(self.path) {
                directory if directory.exists() => self.host("make", error),
                directory => OpenError::Missing(directory.to_owned()),
            },
            libc::ENOENT => OpenError::Missing(path),
            libc::EACCES | libc::EPERM => OpenError::Permission {
                path,
                purpose: if self.options.writable { "reading and writing" } else { "reading" },
            },
            libc::EISDIR => OpenError::Directory(path),
            libc::EROFS => OpenError::ReadOnly(path),
            libc::EBUSY => OpenError::Locked(path),
            // Sockets, and pipes without a reader.
            libc::ENXIO if !is_block_device(self.path) => OpenError::NotRegular(path),
            _ => self.host("open", error),
        }
    }

    fn host(&self, what: &'static str, error: &io::Error) -> OpenError {
        self.errno(what, syscall::errno(error))
    }

    fn errno(&self, what: &'static str, errno: Errno) -> OpenError {
        let path = self.path.to_owned();
        OpenError::Host { what, path, errno }
    }

    /// Was the name taken from the file since it was opened? A file in memory, as `/proc/self/fd` names it, never had one.
    fn is_removed(&self, file: &StdFile) -> bool {
        let Ok(own) = file.metadata() else { return false };
        let is_own = |found: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        own.nlink() == 0 && !fs::metadata(self.path).is_ok_and(is_own)
    }

    /// The size in bytes, after a new file got one.
    fn size(&self, file: &StdFile, (new, is_made): (bool, bool)) -> Result<u64, OpenError> {
        let metadata = file.metadata().map_err(|e| self.host("examine", &e))?;
        let mut size = if metadata.is_file() {
            metadata.len()
        } else {
            disk::size(file).map_err(|errno| self.errno("find the size of", errno))?
        };
        if let (0, true, Some(wanted)) = (size, metadata.is_file(), self.options.create_size) {
            file.set_len(wanted).map_err(|error| {
                // Nothing is left of what is refused.
                if is_made {
                    let _ = fs::remove_file(self.path);
                }
                self.host("size", &error)
            })?;
            size = wanted;
            self.make_stable(file, new)?;
        }
        if size == 0 {
            return Err(OpenError::Empty(self.path.to_owned()));
        }
        Ok(size)
    }

    /// Acknowledged data is stable only if the file itself, and its name, survive a crash.
    fn make_stable(&self, file: &StdFile, new: bool) -> Result<(), OpenError> {
        file.sync_all().map_err(|e| self.host("flush", &e))?;
        if !new {
            return Ok(());
        }
        StdFile::open(directory_of(self.path))
            .and_then(|directory| directory.sync_all())
            .map_err(|e| self.host("flush the directory of", &e))
    }

    /// Enables direct I/O where it is wanted and works. Returns the alignment that it needs; `None` when it is off.
    ///
    /// What refuses it is found, not what ignores it (ext4 with inline data before Linux 6.1).
    fn choose_direct(&self, file: &StdFile, disk: &Disk) -> Result<Option<u32>, OpenError> {
        let direct = match self.options.direct {
            DirectIo::Never => None,
            DirectIo::Auto | DirectIo::Always => disk::direct_align(file, disk),
        };
        let tried = direct.ok_or(Errno::INVALID).and_then(|align| {
            set_status(file, libc::O_DIRECT)?;
            disk::try_direct_read(file, align).map(|()| align)
        });
        // What is in memory only one host has.
        let is_needed = || self.options.is_common && !disk::is_in_memory(file);
        match tried {
            Ok(align) => Ok(Some(align)),
            Err(errno) if self.options.direct == DirectIo::Always || is_needed() => Err(self.without_direct(errno)),
            Err(_) => {
                set_status(file, 0).map_err(|errno| self.errno("set up", errno))?;
                Ok(None)
            }
        }
    }

    /// Direct I/O is needed, and to try it out has failed: it is refused, or the medium is in trouble.
    fn without_direct(&self, errno: Errno) -> OpenError {
        match errno {
            Errno::INVALID | Errno::NOT_SUPPORTED => OpenError::NoDirectIo(self.path.to_owned()),
            _ => self.errno("read", errno),
        }
    }
}

/// Makes durable what the host has done to open a file for writing just now.
///
/// An overlay has made a copy of a file of a lower layer, which it has named when it had synced it: without this the layer's
/// file may be back after a power cut, though what was written has been flushed. `fdatasync` commits no name (ext4).
pub(super) fn settle_opening(file: &StdFile, on: FileSystem) -> Result<(), Errno> {
    if on.copies_to_write() { file.sync_all().map_err(|error| syscall::errno(&error)) } else { Ok(()) }
}

/// Sets the status flags of the open file; others, including non-blocking mode, are cleared.
pub(super) fn set_status(file: &StdFile, flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: no pointer is passed.
    syscall::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// Creates the directory, and those above it that are missing. The names of those that it creates are durable.
///
/// # Errors
/// The host's; then some may have been made.
pub fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() || path == Path::new("") {
        return Ok(());
    }
    let above = directory_of(path);
    if above != path {
        make_directories(above)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        // Somebody else may have made it just now.
        _ => StdFile::open(above)?.sync_all(),
    }
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The number of the file's device, or of the device that it is.
fn device_of(metadata: &fs::Metadata) -> u64 {
    if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() }
}
