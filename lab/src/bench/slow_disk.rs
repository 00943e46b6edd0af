//! Disks whose flush takes a given time, the same for every server.
//!
//! Each is a loop device with an ext4 of its own, on the one file of a small FUSE file system. The kernel passes the
//! file's data straight through to an image (FUSE passthrough), and its fsync takes the given time. So the file
//! system's journal costs what it costs on a real disk: `fdatasync` of overwritten data is one flush; a change of
//! metadata is a commit of the journal, which is a flush before its last block and one after (the loop device has no
//! forced unit access; the kernel replaces it by a flush behind the write). Flushes run one at a time; those requested
//! during one share the next (the block layer's flush machinery). The loop device starts no write during a flush, as a
//! SATA disk, on which FLUSH CACHE is not queued. The image itself is never flushed, so that the disk below adds no
//! time; it is removed at the end, and would not survive a crash of the host.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use fuser::{
    BackgroundSession, BackingId, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request,
};
use serde::Deserialize;

use crate::measure::process::Interrupted;

pub const SLOW_FLUSH: Duration = Duration::from_millis(5);

/// As of an SSD with capacitors (judged). Unlike this machine's disk, it takes the same time for every server.
const QUICK_FLUSH: Duration = Duration::from_micros(100);

/// Room for a file that is overwritten, and for one that grows.
const BYTES: u64 = 2 << 30;

/// The disk of a workload.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Disk {
    /// The disk of this machine.
    #[default]
    Local,
    /// A disk whose flush takes [`SLOW_FLUSH`].
    SlowFlush,
    /// A disk whose flush takes [`QUICK_FLUSH`].
    QuickFlush,
}

/// The disks that were used so far.
#[derive(Default)]
pub struct SlowDisks {
    made: Vec<(Disk, SlowDisk)>,
}

impl SlowDisks {
    /// The directory of a disk, which is made below `place` on first use; `local` if it is the one of this machine.
    pub fn directory(&mut self, disk: Disk, place: &Path, local: &Path) -> Result<PathBuf> {
        let flush = match disk {
            Disk::Local => return Ok(local.to_owned()),
            Disk::SlowFlush => SLOW_FLUSH,
            Disk::QuickFlush => QUICK_FLUSH,
        };
        if let Some((_, made)) = self.made.iter().find(|(which, _)| *which == disk) {
            return Ok(made.directory.clone());
        }
        let place = place.join(format!("disk-{}", self.made.len()));
        fs::create_dir(&place)?;
        let made = SlowDisk::new(&place, BYTES, flush)?;
        let directory = made.directory.clone();
        self.made.push((disk, made));
        Ok(directory)
    }
}

const DISK: &str = "disk";

const DISK_INODE: INodeNo = INodeNo(2);

/// Lifetime of the kernel's cached attributes: nothing changes.
const TTL: Duration = Duration::from_secs(3600);

/// Threads that answer the kernel: a flush blocks one.
const THREADS: usize = 2;

/// The disk with its mounted file system. Unmounted and removed when dropped.
struct SlowDisk {
    directory: PathBuf,
    image: PathBuf,
    is_mounted: bool,
    device: Option<String>,
    session: Option<BackgroundSession>,
}

impl SlowDisk {
    /// Makes a disk of `bytes` bytes below `place`, a directory of its own, whose flush takes `flush`. Needs root.
    fn new(place: &Path, bytes: u64, flush: Duration) -> Result<SlowDisk> {
        let (image, front, directory) = (place.join("slow.img"), place.join("front"), place.join("slow"));
        write_zeroes(&image, bytes).with_context(|| format!("cannot make {}", image.display()))?;
        fs::create_dir(&front)?;
        fs::create_dir(&directory)?;
        let session = serve(&image, &front, flush).context("cannot mount a FUSE file system (are you root?)")?;
        let mut disk = SlowDisk { directory, image, is_mounted: false, device: None, session: Some(session) };
        let device = run("losetup", &["--find", "--show", "--direct-io=on", &text(&front.join(DISK))?])?;
        let device = disk.device.insert(device).clone();
        run("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", &device])?;
        run("mount", &["-t", "ext4", &device, &text(&disk.directory)?])?;
        disk.is_mounted = true;
        Ok(disk)
    }

    fn remove(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_mounted) {
            run("umount", &[&text(&self.directory)?])?;
        }
        if let Some(device) = self.device.take() {
            run("losetup", &["--detach", &device])?;
        }
        if let Some(session) = self.session.take() {
            session.umount_and_join().context("cannot unmount the FUSE file system")?;
        }
        fs::remove_file(&self.image)?;
        Ok(())
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("awase-lab: the slow disk at {} is left behind: {error:#}", self.directory.display());
        }
    }
}

/// Writes the whole image, so that the file system below only overwrites later.
fn write_zeroes(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeroes)?;
    }
    file.sync_all()
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?.to_owned())
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let arguments = arguments.join(" ");
        bail!("{program} {arguments}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn serve(image: &Path, mount_point: &Path, flush: Duration) -> Result<BackgroundSession> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let disk =
        OneFile { attributes: attributes(&file)?, file, flush, flushing: Mutex::new(()), backing: OnceLock::new() };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("awase-slow-flush".into())];
    config.n_threads = Some(THREADS);
    Ok(fuser::spawn_mount(disk, mount_point, &config)?)
}

fn attributes(file: &File) -> io::Result<FileAttr> {
    let metadata = file.metadata()?;
    Ok(FileAttr {
        ino: DISK_INODE,
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o600,
        nlink: 1,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

/// A file system of one file, whose data the kernel takes from an image by itself.
struct OneFile {
    file: File,
    attributes: FileAttr,
    flush: Duration,
    flushing: Mutex<()>,
    /// The kernel's id of the image. All openings must share one.
    backing: OnceLock<BackingId>,
}

impl OneFile {
    fn root(&self) -> FileAttr {
        FileAttr { ino: INodeNo::ROOT, size: 0, blocks: 0, kind: FileType::Directory, perm: 0o700, ..self.attributes }
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let unsupported = |_| io::Error::other("this kernel has no FUSE passthrough (Linux 6.9 has)");
        config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).map_err(unsupported)?;
        // The image may lie on a stacked file system, such as overlayfs.
        config.set_max_stack_depth(2).map_err(|_| io::Error::other("stack depth"))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == DISK {
            reply.entry(&TTL, &self.attributes, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match inode {
            INodeNo::ROOT => reply.attr(&TTL, &self.root()),
            DISK_INODE => reply.attr(&TTL, &self.attributes),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if inode != DISK_INODE {
            return reply.error(Errno::ENOENT);
        }
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.backing.get().is_none() {
            match reply.open_backing(&self.file) {
                // Not set before: the lock is held.
                Ok(backing) => drop(self.backing.set(backing)),
                Err(error) => return reply.error(error.into()),
            }
        }
        match self.backing.get() {
            Some(backing) => reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), backing),
            None => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _request: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        thread::sleep(self.flush);
        reply.ok();
    }
}

/// Mount a disk whose flush takes 5 ms, say where, and unmount it when interrupted (as root).
///
/// For trying out what flushes cost: whatever lies in its directory pays for them alike.
#[derive(Debug, Args)]
pub struct SlowDiskCommand {
    /// Where it is made: on a disk, with 3 GiB free.
    #[arg(long, value_name = "DIR", default_value = "target")]
    directory: PathBuf,
    /// How long a flush takes, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = SLOW_FLUSH.as_millis() as u64)]
    flush_ms: u64,
}

impl SlowDiskCommand {
    pub fn run(&self, interrupted: &Interrupted) -> Result<()> {
        fs::create_dir_all(&self.directory)?;
        let directory = fs::canonicalize(&self.directory)?;
        let place = tempfile::Builder::new().prefix("slow-disk-").tempdir_in(directory)?;
        let disk = SlowDisk::new(place.path(), BYTES, Duration::from_millis(self.flush_ms))?;
        println!("{}", disk.directory.display());
        while !interrupted.load(Ordering::Relaxed) {
            thread::park_timeout(Duration::from_millis(100));
        }
        Ok(())
    }
}
