//! The FUSE calls of a [`super::FailingDisk`].

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::MutexGuard;

use super::tree::Tree;
use super::{Faults, Shared};

/// Attributes and names may be cached: they change only by the kernel's own calls.
const TTL: Duration = Duration::from_secs(3600);

/// Reported size of the file system, in blocks of 4 KiB.
const BLOCKS: u64 = 1 << 20;

/// One mount of the disk.
pub struct System {
    pub shared: Arc<Shared>,
    /// Power cuts before it.
    pub cuts: u64,
}

impl System {
    /// The tree, unless the power was cut.
    fn tree(&self) -> Result<MutexGuard<'_, Tree>, Errno> {
        let tree = self.shared.tree.lock();
        if self.shared.cuts.load(Ordering::SeqCst) == self.cuts { Ok(tree) } else { Err(Errno::EIO) }
    }

    /// A random delay, with the probability `permille`.
    fn draw_delay(&self, permille: u64) -> Duration {
        let most = self.shared.faults.lock().delay_us_max;
        let mut random = self.shared.random.lock();
        let delay = if random.chance(permille) { random.below(most + 1) } else { 0 };
        Duration::from_micros(delay)
    }

    fn write_now(&self, inode: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Faults { delay_permille: permille, write_permille, .. } = *self.shared.faults.lock();
        if self.shared.random.lock().chance(write_permille) {
            return Err(Errno::EIO);
        }
        let (before, after) = (self.draw_delay(permille), self.draw_delay(permille));
        thread::sleep(before);
        let mut tree = self.tree()?;
        tree.file(inode)?.write(offset as usize, data);
        tree.touch(inode)?;
        drop(tree);
        thread::sleep(after);
        Ok(())
    }

    fn flush_now(&self, inode: INodeNo) -> Result<(), Errno> {
        let _alone = self.shared.flushing.lock();
        let permille = self.shared.faults.lock().fsync_permille;
        let has_failed = self.shared.random.lock().chance(permille);
        let flush = self.tree()?.file(inode)?.begin_flush();
        thread::sleep(self.draw_delay(1000));
        self.tree()?.file(inode)?.end_flush(flush, has_failed);
        if has_failed { Err(Errno::EIO) } else { Ok(()) }
    }

    fn change(&self, inode: INodeNo, change: impl FnOnce(&mut FileAttr)) -> Result<FileAttr, Errno> {
        let mut tree = self.tree()?;
        change(&mut tree.node(inode.0)?.attributes);
        tree.attributes(inode.0)
    }

    fn allocate(&self, inode: INodeNo, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let mut tree = self.tree()?;
        let content = tree.file(inode)?;
        let range = offset as usize..(offset + len) as usize;
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && range.end > content.size() {
            content.set_size(range.end);
        }
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            content.zero(range);
        } else if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        tree.touch(inode)
    }
}

fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(reply: ReplyEntry, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn attr(reply: ReplyAttr, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(error) => reply.error(error),
    }
}

fn time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

impl Filesystem for System {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO;
        wanted.set(InitFlags::FUSE_EXPORT_SUPPORT, self.shared.has_persistent_handles);
        config.add_capabilities(wanted).map_err(|_| io::Error::other("the kernel's FUSE is too old"))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree().and_then(|mut tree| {
            let number = tree.find(parent, name)?;
            tree.attributes(number)
        });
        entry(reply, found);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        attr(reply, self.tree().and_then(|mut tree| tree.attributes(inode.0)));
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let sized = size.map_or(Ok(()), |size| {
            let mut tree = self.tree()?;
            tree.file(inode)?.set_size(size as usize);
            tree.touch(inode)
        });
        let changed = sized.and_then(|()| {
            self.change(inode, |attributes| {
                attributes.perm = mode.map_or(attributes.perm, |mode| mode as u16 & 0o7777);
                attributes.uid = uid.unwrap_or(attributes.uid);
                attributes.gid = gid.unwrap_or(attributes.gid);
                attributes.atime = atime.map_or(attributes.atime, time);
                attributes.mtime = mtime.map_or(attributes.mtime, time);
                attributes.ctime = SystemTime::now();
            })
        });
        attr(reply, changed);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = match mode & libc::S_IFMT {
            libc::S_IFREG => {
                self.tree().and_then(|mut tree| tree.make(request, parent, name, FileType::RegularFile, mode & !umask))
            }
            _ => Err(Errno::EOPNOTSUPP),
        };
        entry(reply, made);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let make =
            |mut tree: MutexGuard<'_, Tree>| tree.make(request, parent, name, FileType::Directory, mode & !umask);
        entry(reply, self.tree().and_then(make));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree().and_then(|mut tree| tree.remove(parent, name, false)));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree().and_then(|mut tree| tree.remove(parent, name, true)));
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
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.error(Errno::EINVAL);
        }
        let replaces = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        let rename = |mut tree: MutexGuard<'_, Tree>| tree.rename((parent, name), (new_parent, new_name), replaces);
        empty(reply, self.tree().and_then(rename));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let make =
            |mut tree: MutexGuard<'_, Tree>| tree.make(request, parent, name, FileType::RegularFile, mode & !umask);
        match self.tree().and_then(make) {
            Ok(made) => reply.created(&TTL, &made, Generation(0), FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.tree() {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = |mut tree: MutexGuard<'_, Tree>| Ok(tree.file(inode)?.read(offset as usize, size as usize).to_vec());
        match self.tree().and_then(read) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_now(inode, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _request: &Request, _inode: INodeNo, _: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, inode: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(reply, self.flush_now(inode));
    }

    fn fsyncdir(&self, _request: &Request, inode: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let permille = self.shared.faults.lock().fsync_permille;
        let has_failed = self.shared.random.lock().chance(permille);
        let result = self.tree().map(drop);
        if result.is_ok() && !has_failed {
            self.shared.synced.lock().push(inode.0);
        }
        empty(reply, if has_failed { Err(Errno::EIO) } else { result });
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = |mut tree: MutexGuard<'_, Tree>| {
            let entries: Vec<_> = tree.directory(inode)?.iter().map(|(name, number)| (name.clone(), *number)).collect();
            let kind = |(name, number)| Ok((tree.node(number)?.attributes.kind, name, number));
            entries.into_iter().map(kind).collect::<Result<Vec<_>, Errno>>()
        };
        let entries = match self.tree().and_then(list) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (no, (kind, name, number)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(number), no as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS / 2, BLOCKS / 2, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.allocate(inode, offset, length, mode));
    }
}
