//! A directory through FUSE: each call of the host's kernel is one or two system calls on another directory. What a file
//! system in user space can reach at most on a machine, without a network or a cache of its own.
//!
//! As libfuse's `passthrough_hp` it answers with several threads, and lets the host remember names and attributes for a
//! second and content until a file is opened anew.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{self, AtFlags, CWD, Dir, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};

/// Threads that answer the host.
const THREADS: usize = 4;

/// How long names and attributes hold.
const TTL: Duration = Duration::from_secs(1);

/// Longest transfers. Bytes.
const TRANSFER_BYTES: u32 = 1 << 20;

/// A directory through FUSE.
#[derive(Args, Debug)]
pub struct Fuse {
    /// The directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Where it is mounted.
    #[arg(value_name = "MOUNTPOINT")]
    at: PathBuf,
}

impl Fuse {
    pub fn run(&self) -> Result<()> {
        let root = open_path(CWD, self.directory.as_os_str()).with_context(|| self.directory.display().to_string())?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("pass-through".into())];
        config.n_threads = Some(THREADS);
        fuser::mount(Pass::new(root)?, &self.at, &config).with_context(|| self.at.display().to_string())
    }
}

struct Node {
    /// Opened without access (`O_PATH`).
    path: OwnedFd,
    key: Key,
    lookups: u64,
}

/// Device and number.
type Key = (u64, u64);

#[derive(Default)]
struct Nodes {
    by_id: HashMap<u64, Arc<Mutex<Node>>>,
    by_key: HashMap<Key, u64>,
    last: u64,
}

struct Pass {
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Arc<File>>>,
    handles: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_path(directory: impl std::os::fd::AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// The object itself, for calls that need a path.
fn path_of(node: &Arc<Mutex<Node>>) -> PathBuf {
    Path::new("/proc/self/fd").join(locked(node).path.as_raw_fd().to_string())
}

impl Pass {
    fn new(root: OwnedFd) -> io::Result<Pass> {
        let pass = Pass { nodes: Mutex::default(), open: Mutex::default(), handles: AtomicU64::new(1) };
        pass.found(root)?;
        Ok(pass)
    }

    /// The host refers to an object once more.
    fn found(&self, path: OwnedFd) -> io::Result<FileAttr> {
        let stat = fs::fstat(&path)?;
        let key = (stat.st_dev, stat.st_ino);
        let mut nodes = locked(&self.nodes);
        let known = nodes.by_key.get(&key).copied();
        let id = known.unwrap_or(nodes.last + 1);
        if known.is_none() {
            nodes.last = id;
            nodes.by_key.insert(key, id);
            nodes.by_id.insert(id, Arc::new(Mutex::new(Node { path, key, lookups: 0 })));
        }
        if let Some(node) = nodes.by_id.get(&id) {
            locked(node).lookups += 1;
        }
        Ok(attributes(id, &stat))
    }

    fn node(&self, id: INodeNo) -> io::Result<Arc<Mutex<Node>>> {
        let node = locked(&self.nodes).by_id.get(&id.0).cloned();
        node.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Does `work` with the descriptor of an object, opened without access.
    fn with<T>(&self, id: INodeNo, work: impl FnOnce(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        let node = self.node(id)?;
        let path = locked(&node).path.try_clone()?;
        work(&path)
    }

    /// Does `work` with a directory, and finds the object of that name then.
    fn made(
        &self,
        parent: INodeNo,
        name: &OsStr,
        work: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        let path = self.with(parent, |directory| {
            work(directory)?;
            open_path(directory, name)
        })?;
        self.found(path)
    }

    fn attributes(&self, id: INodeNo) -> io::Result<FileAttr> {
        self.with(id, |path| Ok(attributes(id.0, &fs::fstat(path)?)))
    }

    fn note_open(&self, file: File) -> FileHandle {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        locked(&self.open).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, FileHandle(handle): FileHandle) -> io::Result<Arc<File>> {
        let file = locked(&self.open).get(&handle).cloned();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn list(&self, directory: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        let node = self.node(directory)?;
        let file = File::open(path_of(&node))?;
        for (number, entry) in Dir::read_from(&file)?.enumerate().skip(offset as usize) {
            let entry = entry?;
            let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
            if reply.add(INodeNo(entry.ino()), number as u64 + 1, file_type(entry.file_type()), name) {
                break;
            }
        }
        Ok(())
    }

    fn set(&self, id: INodeNo, new: &New) -> io::Result<FileAttr> {
        let node = self.node(id)?;
        let path = path_of(&node);
        if let Some(mode) = new.mode {
            fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777))?;
        }
        if new.owner != (None, None) {
            let (user, group) = (new.owner.0.map(Uid::from_raw), new.owner.1.map(Gid::from_raw));
            fs::chownat(&locked(&node).path, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = new.size {
            File::options().write(true).open(&path)?.set_len(size)?;
        }
        if new.times != (None, None) {
            let [last_access, last_modification] = [new.times.0, new.times.1].map(timespec);
            fs::utimensat(CWD, &path, &Timestamps { last_access, last_modification }, AtFlags::empty())?;
        }
        self.attributes(id)
    }
}

struct New {
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    size: Option<u64>,
    times: (Option<TimeOrNow>, Option<TimeOrNow>),
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
        }
    }
}

fn file_type(kind: fs::FileType) -> FileType {
    match kind {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

fn attributes(id: u64, stat: &Stat) -> FileAttr {
    let time = |seconds: i64, nanoseconds: u64| -> SystemTime {
        UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds as u32)
    };
    FileAttr {
        ino: INodeNo(id),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: file_type(fs::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn entry(reply: ReplyEntry, found: io::Result<FileAttr>) {
    match found {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn empty(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn attr(reply: ReplyAttr, found: io::Result<FileAttr>) {
    match found {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(error) => reply.error(error.into()),
    }
}

/// What an opening means for the file behind: the host has done `O_APPEND` already, and reads parts of pages to write them.
fn flags_behind(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags as u32) - (OFlags::APPEND | OFlags::NOFOLLOW | OFlags::DIRECT);
    flags | OFlags::CLOEXEC
}

impl Filesystem for Pass {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A host that cannot does without; sizes are set to the nearest that is possible.
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(TRANSFER_BYTES);
        if let Err(possible) = config.set_max_readahead(TRANSFER_BYTES) {
            let _ = config.set_max_readahead(possible);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.made(parent, name, |_| Ok(())));
    }

    fn forget(&self, _request: &Request, id: INodeNo, count: u64) {
        let mut nodes = locked(&self.nodes);
        let gone = nodes.by_id.get(&id.0).and_then(|node| {
            let mut node = locked(node);
            node.lookups = node.lookups.saturating_sub(count);
            (node.lookups == 0).then_some(node.key)
        });
        if let Some(key) = gone {
            nodes.by_id.remove(&id.0);
            nodes.by_key.remove(&key);
        }
    }

    fn getattr(&self, _request: &Request, id: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        attr(reply, self.attributes(id));
    }

    fn setattr(
        &self,
        _request: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _checked: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        attr(reply, self.set(id, &New { mode, owner: (uid, gid), size, times: (accessed, modified) }));
    }

    fn readlink(&self, _request: &Request, id: INodeNo, reply: ReplyData) {
        match self.with(id, |path| Ok(fs::readlinkat(path, "", Vec::new())?)) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let make = |directory: &OwnedFd| Ok(fs::mkdirat(directory, name, Mode::from_raw_mode(mode))?);
        entry(reply, self.made(parent, name, make));
    }

    fn symlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        entry(reply, self.made(parent, name, |directory| Ok(fs::symlinkat(target, directory, name)?)));
    }

    fn link(&self, _request: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.node(id).and_then(|node| {
            let path = path_of(&node);
            self.made(parent, name, |directory| Ok(fs::linkat(CWD, &path, directory, name, AtFlags::SYMLINK_FOLLOW)?))
        });
        entry(reply, linked);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.with(parent, |directory| Ok(fs::unlinkat(directory, name, AtFlags::empty())?)));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.with(parent, |directory| Ok(fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self.with(parent, |from| self.with(new_parent, |to| Ok(fs::renameat(from, name, to, new_name)?)));
        empty(reply, renamed);
    }

    fn open(&self, _request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.node(id).and_then(|node| {
            let behind = flags_behind(flags.0) - OFlags::CREATE - OFlags::EXCL;
            Ok(File::from(fs::open(path_of(&node), behind, Mode::empty())?))
        });
        match opened {
            Ok(file) => reply.opened(self.note_open(file), FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut file = None;
        let made = self.made(parent, name, |directory| {
            let flags = flags_behind(flags) | OFlags::CREATE;
            file = Some(File::from(fs::openat(directory, name, flags, Mode::from_raw_mode(mode))?));
            Ok(())
        });
        match (made, file) {
            (Ok(attributes), Some(file)) => {
                reply.created(&TTL, &attributes, Generation(0), self.note_open(file), FopenFlags::empty());
            }
            (Err(error), _) => reply.error(error.into()),
            (Ok(_), None) => reply.error(Errno::EIO),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _id: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        match self.file(handle).and_then(|file| file.read_at(&mut buffer, offset)) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _id: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(handle).and_then(|file| file.write_at(data, offset)) {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _request: &Request, _id: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _id: INodeNo,
        FileHandle(handle): FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        drop(locked(&self.open).remove(&handle));
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _id: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let synced = self.file(handle).and_then(|file| if data_only { file.sync_data() } else { file.sync_all() });
        empty(reply, synced);
    }

    fn readdir(&self, _request: &Request, id: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list(id, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }
}
