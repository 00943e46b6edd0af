//! A mount as the host's kernel sees it (FUSE): its calls, passed on to the mount's processor, and the replies.
//!
//! The host's page cache has what was read, so that repeated reads and mappings cost no call; the mount's own cache is for
//! what is read ahead and what is on its way to the server, and bounded. With `direct_io` it is the only one.

mod convert;
mod data;
mod listing;
mod read_ahead;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use kernel::processor::Mailbox;
use kernel::{Kernel, Processor};
use machine::Errno;
use mount::{Creation, Data, Files, Found, New, NodeId, Opening, StreamId};
use policy::unit::{ByteOffset, ByteRange, Stability};

use data::DataReply;
use listing::{Entries, Names};
pub use read_ahead::allow_read_ahead;

/// Longest read and write that the host asks for, in bytes.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Requests of the host for which nobody waits (its own read-ahead), at a time.
const BACKGROUND_MAX: u16 = 64;

/// What the host is asked to do, where it can.
const WANTED: &[InitFlags] = &[
    // Concurrent calls in one directory.
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Listing with attributes, where the program seems to want them.
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    // Its cached pages are stale when it is told so, not whenever a time has changed: our own writes change times, too.
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_ASYNC_DIO,
];

/// Fills the replies of one mount.
pub struct Adapter {
    pub files: Arc<Files>,
    pub kernel: Arc<Kernel>,
    pub mailbox: Arc<Mailbox>,
    pub direct_io: bool,
    /// May the host read ahead, too?
    pub reads_ahead: bool,
    /// From the begin of the session on.
    pub device: Arc<OnceLock<OwnedFd>>,
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

impl Adapter {
    /// Does `task` on the mount's processor.
    fn start<F: Future<Output = ()> + 'static>(&self, task: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static) {
        let files = Arc::clone(&self.files);
        self.mailbox.start(move |cpu| {
            let future = task(files, cpu.clone());
            cpu.spawn(future);
        });
    }

    fn reply_entry<F>(&self, reply: ReplyEntry, task: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static)
    where
        F: Future<Output = Result<Found, Errno>> + 'static,
    {
        self.start(|files, cpu| {
            let found = task(files, cpu);
            async move {
                match found.await {
                    Ok(found) => entry(reply, &found),
                    Err(errno) => reply.error(convert::errno(errno)),
                }
            }
        });
    }

    fn reply_empty<F>(&self, reply: ReplyEmpty, task: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Errno>> + 'static,
    {
        self.start(|files, cpu| {
            let done = task(files, cpu);
            async move {
                match done.await {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(convert::errno(errno)),
                }
            }
        });
    }

    fn open_flags(&self, keeps_cache: bool, writes: bool) -> FopenFlags {
        let flags = match (self.direct_io, keeps_cache) {
            (true, _) => FopenFlags::FOPEN_DIRECT_IO,
            (false, true) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, false) => FopenFlags::empty(),
        };
        // Nothing was written that its closing could send.
        if writes { flags } else { flags | FopenFlags::FOPEN_NOFLUSH }
    }
}

fn entry(reply: ReplyEntry, found: &Found) {
    let attributes = convert::attributes(found.id, &found.attributes);
    reply.entry_with_ttls(&found.attributes_hold, &found.name_holds, &attributes, Generation(0));
}

/// Does every write to a file that was opened so have to be durable?
fn stability(flags: OpenFlags) -> Stability {
    if flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0 { Stability::Stable } else { Stability::Unstable }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = WANTED.to_vec();
        if self.direct_io {
            wanted.push(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        for flags in wanted {
            // A host that cannot does without.
            let _ = config.add_capabilities(flags & config.capabilities());
        }
        // Each sets the nearest that is possible.
        let _ = config.set_max_write(TRANSFER_BYTES_MAX);
        let read_ahead = if self.reads_ahead { TRANSFER_BYTES_MAX } else { 0 };
        if let Err(possible) = config.set_max_readahead(read_ahead) {
            let _ = config.set_max_readahead(possible);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.start(move |files, cpu| async move {
            match files.lookup(&cpu, node(parent), &name).await {
                Ok(Ok(found)) => entry(reply, &found),
                // The host remembers that there is none.
                Ok(Err(holds)) if !holds.is_zero() => {
                    let none = convert::bare(0, mount::Kind::File);
                    reply.entry(&holds, &none, Generation(0));
                }
                Ok(Err(_)) => reply.error(fuser::Errno::ENOENT),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.start(move |files, cpu| async move { files.forget(&cpu, node(ino), count) });
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.start(move |files, cpu| async move {
            match files.attributes(&cpu, node(ino)).await {
                Ok((attributes, holds)) => reply.attr(&holds, &convert::attributes(node(ino), &attributes)),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
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
        let (accessed, modified) = (accessed.map(convert::new_time), modified.map(convert::new_time));
        let new = New { mode: mode.map(|mode| mode & 0o7777), uid, gid, size, accessed, modified };
        self.start(move |files, cpu| async move {
            match files.set_attributes(&cpu, node(ino), new).await {
                Ok((attributes, holds)) => reply.attr(&holds, &convert::attributes(node(ino), &attributes)),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.start(move |files, cpu| async move {
            match files.read_link(&cpu, node(ino)).await {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let (special, mode) = (convert::special(mode, device), mode & 0o7777);
        self.reply_entry(reply, move |files, cpu| async move {
            match special {
                Some(special) => files.make_special(&cpu, node(parent), &name, special, mode).await,
                None => {
                    let creation = Creation { mode, is_exclusive: true, truncates: false };
                    let found = files.create(&cpu, node(parent), &name, creation).await?;
                    files.close_file(&cpu, found.id).await;
                    Ok(found)
                }
            }
        });
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.reply_entry(reply, move |files, cpu| async move {
            files.make_directory(&cpu, node(parent), &name, mode & 0o7777).await
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.reply_empty(reply, move |files, cpu| async move { files.unlink(&cpu, node(parent), &name).await });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.reply_empty(
            reply,
            move |files, cpu| async move { files.remove_directory(&cpu, node(parent), &name).await },
        );
    }

    fn symlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target) = (name.as_bytes().to_vec(), target.as_os_str().as_bytes().to_vec());
        self.reply_entry(reply, move |files, cpu| async move {
            files.make_symlink(&cpu, node(parent), &name, &target).await
        });
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
            // NFSv3 can neither exchange two names nor refuse to replace one.
            return reply.error(fuser::Errno::EINVAL);
        }
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        self.reply_empty(reply, move |files, cpu| async move {
            files.rename(&cpu, (node(parent), &name), (node(new_parent), &new_name)).await
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.reply_entry(
            reply,
            move |files, cpu| async move { files.link(&cpu, node(ino), node(parent), &name).await },
        );
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = flags.acc_mode();
        let (reads, writes) = (mode != OpenAccMode::O_WRONLY, mode != OpenAccMode::O_RDONLY);
        let flags = [false, true].map(|keeps_cache| self.open_flags(keeps_cache, writes));
        self.start(move |files, cpu| async move {
            match files.open_file(&cpu, node(ino), Opening { reads, writes }).await {
                Ok(keeps_cache) => reply.opened(FileHandle(0), flags[usize::from(keeps_cache)]),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
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
        let name = name.as_bytes().to_vec();
        let (is_exclusive, truncates) = (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0);
        let creation = Creation { mode: mode & 0o7777, is_exclusive, truncates };
        let open_flags = self.open_flags(false, true);
        self.start(move |files, cpu| async move {
            match files.create(&cpu, node(parent), &name, creation).await {
                Ok(found) => {
                    // There is one time for both.
                    let holds = found.name_holds.min(found.attributes_hold);
                    let attributes = convert::attributes(found.id, &found.attributes);
                    reply.created(&holds, &attributes, Generation(0), FileHandle(0), open_flags);
                }
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = ByteRange::new(offset, size.into());
        let reply = DataReply::new(request, reply, &self.device);
        // A program that goes past the host's cache may read the same again.
        let is_cached_by_host = !self.direct_io && flags.0 & libc::O_DIRECT == 0;
        self.start(move |files, cpu| async move {
            match files.read(&cpu, node(ino), range).await {
                Ok((range, frames)) => {
                    reply.send(range, &frames);
                    if is_cached_by_host {
                        files.note_delivered(node(ino), range);
                    }
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (len, stability) = (data.len() as u32, stability(flags));
        let data = Data::new(&self.kernel, ByteOffset(offset), data);
        self.start(move |files, cpu| async move {
            match files.write(&cpu, node(ino), ByteOffset(offset), data, stability).await {
                Ok(()) => reply.written(len),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn flush(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.reply_empty(reply, move |files, cpu| async move { files.write_out(&cpu, node(ino)).await });
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.reply_empty(reply, move |files, cpu| async move {
            files.close_file(&cpu, node(ino)).await;
            Ok(())
        });
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.reply_empty(reply, move |files, cpu| async move { files.flush(&cpu, node(ino)).await });
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.start(move |files, _cpu| async move {
            match files.open_directory(node(ino)) {
                Ok(StreamId(stream)) => reply.opened(FileHandle(stream), FopenFlags::empty()),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn readdir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, cookie: u64, reply: ReplyDirectory) {
        self.start(move |files, cpu| async move {
            let mut names = Names(reply);
            match files.list(&cpu, StreamId(handle.0), cookie, false, &mut names).await {
                Ok(()) => names.0.ok(),
                Err(errno) => names.0.error(convert::errno(errno)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.start(move |files, cpu| async move {
            let mut entries = Entries(reply);
            match files.list(&cpu, StreamId(handle.0), cookie, true, &mut entries).await {
                Ok(()) => entries.0.ok(),
                Err(errno) => entries.0.error(convert::errno(errno)),
            }
        });
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.reply_empty(reply, move |files, _cpu| async move {
            files.close_directory(StreamId(handle.0));
            Ok(())
        });
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        // Changes of names are durable when the server answers (RFC 1813, section 4.8).
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u64 = 4096;
        self.start(move |files, cpu| async move {
            match files.space(&cpu).await {
                Ok(space) => {
                    let [total, free, available] = [space.total, space.free, space.available].map(|bytes| bytes / UNIT);
                    let name_max = files.server().limits().name_max;
                    let unit = UNIT as u32;
                    reply.statfs(total, free, available, space.files, space.files_free, unit, name_max, unit);
                }
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn access(&self, _request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.reply_empty(
            reply,
            move |files, cpu| async move { files.check_access(&cpu, node(ino), wanted(mask)).await },
        );
    }
}

/// Rights that access(2) asks for, as the wire has them. Which of them mean something depends on the object.
fn wanted(mask: AccessFlags) -> mount::Wanted {
    mount::Wanted {
        reads: mask.contains(AccessFlags::R_OK),
        writes: mask.contains(AccessFlags::W_OK),
        executes: mask.contains(AccessFlags::X_OK),
    }
}
