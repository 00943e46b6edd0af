//! A mount as the host's kernel sees it (FUSE): its calls, passed on to the mount's processor, and the replies.
//!
//! The host's page cache has what was read, so that repeated reads and mappings cost no call; the mount's own cache is for
//! what is read ahead and what is on its way to the server, and bounded. With `direct_io` it is the only one.

mod answer;
mod convert;
mod data;
mod listing;
mod read_ahead;
mod waiting;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use kernel::Kernel;
use kernel::processor::Mailbox;
use mount::{Creation, Data, Files, Found, New, NodeId, Opened, Opening, OpeningId, StreamId};
use policy::unit::{ByteOffset, ByteRange, Stability};

use answer::{attributes, entry};
use data::DataReply;
use listing::{Bare, Entries, Names};
pub use read_ahead::allow_read_ahead;
pub use waiting::Waiting;

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
    pub waiting: Arc<Waiting>,
    pub direct_io: bool,
    /// May the host read ahead, too?
    pub reads_ahead: bool,
    /// Does it, as much as it takes to keep several requests on the wire?
    pub host_reads_ahead: Arc<AtomicBool>,
    /// From the begin of the session on.
    pub device: Arc<OnceLock<OwnedFd>>,
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

fn opening(handle: FileHandle) -> OpeningId {
    OpeningId(handle.0)
}

impl Adapter {
    fn bare(&self, request: &Request) -> Bare {
        Bare::new(request.unique().0, Arc::clone(&self.device))
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

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, thread) = (name.as_bytes().to_vec(), request.pid());
        self.answer_or_undo(
            request,
            reply,
            move |files, cpu| async move { files.lookup(&cpu, node(parent), &name, thread).await },
            |reply, found| match found {
                Ok(found) => entry(reply, &found),
                // The host remembers that there is none.
                Err(holds) if !holds.is_zero() => {
                    let none = convert::bare(0, mount::Kind::File);
                    reply.entry(&holds, &none, Generation(0));
                }
                Err(_) => reply.error(fuser::Errno::ENOENT),
            },
            async |files, cpu, found| {
                if let Ok(Found { id, .. }) = found {
                    files.forget(&cpu, id, 1);
                }
            },
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.start(move |files, cpu| async move { files.forget(&cpu, node(ino), count) });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            request,
            reply,
            move |files, cpu| async move { files.attributes(&cpu, node(ino)).await },
            attributes,
        );
    }

    fn setattr(
        &self,
        request: &Request,
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
        self.answer(
            request,
            reply,
            move |files, cpu| async move { files.set_attributes(&cpu, node(ino), new).await },
            attributes,
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(
            request,
            reply,
            move |files, cpu| async move { files.read_link(&cpu, node(ino)).await },
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let (special, mode) = (convert::special(mode, device), mode & 0o7777);
        self.answer_entry(request, reply, move |files, cpu| async move {
            match special {
                Some(special) => files.make_special(&cpu, node(parent), &name, special, mode).await,
                None => {
                    let creation = Creation { mode, is_exclusive: true, truncates: false };
                    let (found, opening) = files.create(&cpu, node(parent), &name, creation).await?;
                    files.close_file(&cpu, opening).await;
                    Ok(found)
                }
            }
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.answer_entry(request, reply, move |files, cpu| async move {
            files.make_directory(&cpu, node(parent), &name, mode & 0o7777).await
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.answer_empty(
            request,
            reply,
            move |files, cpu| async move { files.unlink(&cpu, node(parent), &name).await },
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.answer_empty(request, reply, move |files, cpu| async move {
            files.remove_directory(&cpu, node(parent), &name).await
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target) = (name.as_bytes().to_vec(), target.as_os_str().as_bytes().to_vec());
        self.answer_entry(request, reply, move |files, cpu| async move {
            files.make_symlink(&cpu, node(parent), &name, &target).await
        });
    }

    fn rename(
        &self,
        request: &Request,
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
        self.answer_empty(request, reply, move |files, cpu| async move {
            files.rename(&cpu, (node(parent), &name), (node(new_parent), &new_name)).await
        });
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.answer_entry(request, reply, move |files, cpu| async move {
            files.link(&cpu, node(ino), node(parent), &name).await
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = flags.acc_mode();
        let (reads, writes) = (mode != OpenAccMode::O_WRONLY, mode != OpenAccMode::O_RDONLY);
        let how = Opening { reads, writes, thread: request.pid() };
        let flags = [false, true].map(|keeps_cache| self.open_flags(keeps_cache, writes));
        self.answer_or_undo(
            request,
            reply,
            move |files, cpu| async move { files.open_file(&cpu, node(ino), how).await },
            move |reply, opened| {
                reply.opened(FileHandle(opened.id.0), flags[usize::from(opened.keeps_cache)]);
            },
            async |files, cpu, opened: Opened| files.undo_opening(&cpu, opened).await,
        );
    }

    fn create(
        &self,
        request: &Request,
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
        self.answer_or_undo(
            request,
            reply,
            move |files, cpu| async move { files.create(&cpu, node(parent), &name, creation).await },
            move |reply, (found, OpeningId(opening))| {
                // There is one time for both.
                let holds = found.name_holds.min(found.attributes_hold);
                reply.created(&holds, &convert::referred(&found), Generation(0), FileHandle(opening), open_flags);
            },
            async |files, cpu, (found, opening): (Found, OpeningId)| {
                files.close_file(&cpu, opening).await;
                files.forget(&cpu, found.id, 1);
            },
        );
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
        let goes_past = is_cached_by_host && self.host_reads_ahead.load(Ordering::Relaxed);
        let delivering = Arc::clone(&self.files);
        self.answer(
            request,
            reply,
            move |files, cpu| async move {
                if goes_past {
                    files.read_past(&cpu, node(ino), range).await
                } else {
                    files.read(&cpu, node(ino), range).await
                }
            },
            move |reply, (range, frames)| {
                reply.send(range, &frames);
                if is_cached_by_host {
                    delivering.note_delivered(node(ino), range);
                }
            },
        );
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (len, stability) = (data.len() as u32, stability(flags));
        let (at, opening) = (ByteOffset(offset), opening(handle));
        let mut data = Data::new(&self.kernel, at, data);
        // Past the host's cache, nobody orders the writes of several threads but the answers.
        if !self.direct_io && flags.0 & libc::O_DIRECT == 0 {
            data = match self.files.write_ahead(opening, at, data, stability) {
                Ok(write) => return self.answer_ahead(request, reply, write, len),
                Err(data) => data,
            };
        }
        self.answer_flushed(
            request,
            reply,
            move |files, cpu| async move { files.write(&cpu, opening, at, data, stability).await },
            move |reply| reply.written(len),
        );
    }

    fn flush(&self, request: &Request, _ino: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let work = move |files: Arc<Files>, cpu| async move { files.flush_closing(&cpu, opening(handle)).await };
        self.answer_flushed(request, reply, work, |reply| reply.ok());
    }

    fn release(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.answer_empty(request, reply, move |files, cpu| async move {
            files.close_file(&cpu, opening(handle)).await;
            Ok(())
        });
    }

    fn fsync(&self, request: &Request, _ino: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let work = move |files: Arc<Files>, cpu| async move { files.flush(&cpu, opening(handle)).await };
        self.answer_flushed(request, reply, work, |reply| reply.ok());
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.start(move |files, _cpu| async move {
            match files.open_directory(node(ino)) {
                Ok(StreamId(stream)) => reply.opened(FileHandle(stream), FopenFlags::empty()),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        });
    }

    fn readdir(&self, request: &Request, _ino: INodeNo, handle: FileHandle, cookie: u64, reply: ReplyDirectory) {
        let (call, bare) = ((StreamId(handle.0), cookie, false), self.bare(request));
        self.list(request, call, move || Names { reply, bare });
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let (call, bare) = ((StreamId(handle.0), cookie, true), self.bare(request));
        self.list(request, call, move || Entries::new(reply, bare));
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.start(move |files, _cpu| async move {
            files.close_directory(StreamId(handle.0));
            reply.ok();
        });
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        // Changes of names are durable when the server answers (RFC 1813, section 4.8).
        reply.ok();
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u64 = 4096;
        self.answer(
            request,
            reply,
            move |files, cpu| async move { Ok((files.space(&cpu).await?, files.server().limits().name_max)) },
            |reply, (space, name_max)| {
                let [total, free, available] = [space.total, space.free, space.available].map(|bytes| bytes / UNIT);
                let unit = UNIT as u32;
                reply.statfs(total, free, available, space.files, space.files_free, unit, name_max, unit);
            },
        );
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.answer_empty(request, reply, move |files, cpu| async move {
            files.check_access(&cpu, node(ino), wanted(mask)).await
        });
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
