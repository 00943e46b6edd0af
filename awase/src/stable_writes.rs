//! How stable writes are made durable: by forced unit access, or by a write and a flush. Drives differ fourfold either
//! way, so both are measured, on a file of our own beside the image, never on what is served.
//!
//! A forced write is believed only of block devices and of file systems that are known to make it durable. Others take the
//! flag and do nothing: FUSE passes such a write on as a plain one, with no `fsync` behind it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kernel::ForcedUnitAccess;
use machine::FileFacts;

use crate::config::{Behaviour, Export, StableWrites, Store};
use crate::media::Medium;

/// After so long no further pair is measured.
const TIME_MAX: Duration = Duration::from_millis(50);

/// Pairs of one write of each kind: at most, and at least (on a slow disk).
const PAIRS: std::ops::RangeInclusive<usize> = 3..=16;

/// Blocks that are written in turn.
const BLOCKS: u64 = 16;

const BLOCK_BYTES: usize = 4096;

/// Forced unit access that costs less than so many hundredths of a write and a flush is always taken, on a disk that has it:
/// flushes can be shared by writers, so where both cost the same they win. Where the host makes a forced write of a write
/// and a flush, each of several concurrent writes pays for a flush of its own, one after another, whatever one alone cost.
const ALWAYS_PERCENT: u128 = 90;

/// Up to so many hundredths, by a writer who has nobody to share a flush with: it is one request instead of two.
const ALONE_PERCENT: u128 = 125;

/// The `f_type` of file systems whose forced writes end durable: ext2 to ext4, XFS, Btrfs, F2FS.
const FORCING_FILE_SYSTEMS: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// What was found out of each disk.
#[derive(Default)]
pub struct Measured(BTreeMap<u64, ForcedUnitAccess>);

impl Measured {
    /// Which stable writes to `medium` should use forced unit access?
    pub fn of_medium(&mut self, export: &Export, medium: &Medium) -> ForcedUnitAccess {
        match export.stable_writes {
            StableWrites::Flush => ForcedUnitAccess::Never,
            _ if !honours_forced_writes(export) => ForcedUnitAccess::Never,
            StableWrites::ForcedUnitAccess => ForcedUnitAccess::Always,
            StableWrites::Auto => self.cheapest(export, medium),
        }
    }

    /// Which stable writes to files of a directory on this disk should?
    pub fn of_directory(&mut self, path: &Path, disk: u64) -> ForcedUnitAccess {
        if !is_forcing(path) {
            return ForcedUnitAccess::Never;
        }
        *self.0.entry(disk).or_insert_with(|| measure_in(path, true, disk))
    }

    fn cheapest(&mut self, export: &Export, medium: &Medium) -> ForcedUnitAccess {
        if export.read_only {
            return ForcedUnitAccess::Never;
        }
        let Some(open) = medium.open.as_ref().filter(|_| export.behaviour == Behaviour::Plain) else {
            // Memory and models take their time for each operation, and a write with a flush is two.
            return ForcedUnitAccess::Always;
        };
        match &export.store {
            // What lies on a device is somebody's data: its kernel is believed.
            Store::Block { .. } if told_by_sysfs(open.facts.disk) => ForcedUnitAccess::Always,
            Store::Block { .. } => ForcedUnitAccess::Alone,
            Store::File { path, .. } => {
                *self.0.entry(open.facts.disk).or_insert_with(|| measure_beside(path, open.facts))
            }
            Store::Ram { .. } => ForcedUnitAccess::Always,
        }
    }
}

/// Is a forced write to the export's medium durable when it ends, as far as is known?
pub fn honours_forced_writes(export: &Export) -> bool {
    match &export.store {
        Store::File { path, .. } => is_forcing(path),
        Store::Block { .. } | Store::Ram { .. } => true,
    }
}

/// The same of what lies on the file system at `path`.
fn is_forcing(path: &Path) -> bool {
    file_system(path).is_some_and(|kind| FORCING_FILE_SYSTEMS.contains(&kind))
}

/// The `f_type` of the file system at `path`.
fn file_system(path: &Path) -> Option<i64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeroes is a valid value of the structure, which has integers only.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and the call fills `found`.
    let status = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    // Its type differs between the C libraries, and where it has 32 bits it may be negative.
    (status == 0).then_some(found.f_type as i64 & 0xffff_ffff)
}

/// `queue/fua`: does the disk have forced unit access? (Otherwise the host makes it a write and a flush.)
fn told_by_sysfs(disk: u64) -> bool {
    let place = PathBuf::from(format!("/sys/dev/block/{}:{}/queue/fua", libc::major(disk), libc::minor(disk)));
    fs::read_to_string(place).is_ok_and(|text| text.trim() == "1")
}

/// Where nothing can be measured (no space, no unnamed files there), a flush is what every disk has.
fn measure_beside(path: &Path, facts: FileFacts) -> ForcedUnitAccess {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    measure_in(directory, facts.direct, facts.disk)
}

fn measure_in(directory: &Path, direct: bool, disk: u64) -> ForcedUnitAccess {
    measure(directory, direct)
        .map_or_else(|_| ForcedUnitAccess::default(), |percent| choose(percent, told_by_sysfs(disk)))
}

/// `percent`: what a forced write costs of a write and a flush. `is_disks_own`: the disk has forced unit access itself.
fn choose(percent: u128, is_disks_own: bool) -> ForcedUnitAccess {
    match percent {
        ..ALWAYS_PERCENT if is_disks_own => ForcedUnitAccess::Always,
        ..=ALONE_PERCENT => ForcedUnitAccess::Alone,
        _ => ForcedUnitAccess::Never,
    }
}

#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Overwrites blocks of an unnamed file in both ways in turn; the ratio of the medians, in percent.
fn measure(directory: &Path, direct: bool) -> io::Result<u128> {
    let flags = libc::O_TMPFILE | if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(directory)?;
    let block = Box::new(Block([0x5a; BLOCK_BYTES]));
    // Space first: allocating it costs the file system's journal, which is not what is measured.
    (0..BLOCKS).try_for_each(|number| file.write_all_at(&block.0, number * BLOCK_BYTES as u64))?;
    file.sync_all()?;
    let (mut flushed, mut forced) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while flushed.len() < *PAIRS.end() && (flushed.len() < *PAIRS.start() || start.elapsed() < TIME_MAX) {
        let at = (2 * flushed.len() as u64 % BLOCKS) * BLOCK_BYTES as u64;
        flushed.push(time(|| file.write_all_at(&block.0, at).and_then(|()| file.sync_data()))?);
        forced.push(time(|| write_forced(&file, &block, at + BLOCK_BYTES as u64))?);
    }
    Ok(median(forced).as_nanos() * 100 / median(flushed).as_nanos().max(1))
}

fn time(write: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    write()?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn write_forced(file: &File, block: &Block, at: u64) -> io::Result<()> {
    let vector = libc::iovec { iov_base: block.0.as_ptr().cast_mut().cast(), iov_len: BLOCK_BYTES };
    // SAFETY: one vector, over a block that outlives the call, which only reads it.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, at as libc::off_t, libc::RWF_DSYNC) };
    match usize::try_from(written) {
        Ok(BLOCK_BYTES) => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::media;
    use crate::predecessor::Patience;

    fn export(directory: &Path, rest: &str) -> Export {
        let path = directory.join("disk.img");
        let text = format!("[[export]]\nname = \"a\"\npath = {path:?}\nsize = \"1MiB\"\ncreate = true\n{rest}");
        Config::parse("awase.toml", &text).expect("a good configuration").exports.remove(0)
    }

    fn chosen(measured: &mut Measured, export: &Export) -> ForcedUnitAccess {
        let medium = media::prepare(export, Patience::none()).expect("made");
        measured.of_medium(export, &medium)
    }

    #[test]
    fn measuring_leaves_nothing_behind_and_the_image_alone() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "kind = \"file\"");
        let mut measured = Measured::default();
        chosen(&mut measured, &export);
        let expected = if is_forcing(directory.path()) { 1 } else { 0 };
        assert_eq!(measured.0.len(), expected, "one disk was measured, if its file system is one that forces writes");
        let names: Vec<_> =
            fs::read_dir(directory.path()).expect("read").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["disk.img"]);
        assert!(fs::read(directory.path().join("disk.img")).expect("read").iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_disk_is_measured_once_and_then_remembered() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "kind = \"file\"");
        let disk = media::prepare(&export, Patience::none()).expect("made").open.expect("a file").facts.disk;
        for known in [ForcedUnitAccess::Never, ForcedUnitAccess::Alone, ForcedUnitAccess::Always] {
            let mut measured = Measured(BTreeMap::from([(disk, known)]));
            let expected = if is_forcing(directory.path()) { known } else { ForcedUnitAccess::Never };
            assert_eq!(chosen(&mut measured, &export), expected);
        }
    }

    #[test]
    fn nothing_is_forced_on_file_systems_that_are_not_known_to_make_it_durable() {
        // In memory: as of FUSE, a forced write ends there as soon as a plain one.
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { testkit::skip!("no /dev/shm") };
        let mut measured = Measured::default();
        for value in ["auto", "fua"] {
            let export = export(directory.path(), &format!("kind = \"file\"\nstable_writes = {value:?}"));
            assert_eq!(chosen(&mut measured, &export), ForcedUnitAccess::Never, "{value}");
        }
        assert_eq!(measured.of_directory(directory.path(), 7), ForcedUnitAccess::Never);
        assert!(measured.0.is_empty());
        const FUSE: i64 = 0x6573_5546;
        assert!(!FORCING_FILE_SYSTEMS.contains(&FUSE));
        assert_eq!(file_system(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn what_is_configured_is_not_measured() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let fua = if is_forcing(directory.path()) { ForcedUnitAccess::Always } else { ForcedUnitAccess::Never };
        for (value, forced) in [("flush", ForcedUnitAccess::Never), ("fua", fua)] {
            let export = export(directory.path(), &format!("kind = \"file\"\nstable_writes = {value:?}"));
            let mut measured = Measured::default();
            assert_eq!(chosen(&mut measured, &export), forced);
            assert!(measured.0.is_empty());
        }
    }

    #[test]
    fn where_nothing_can_be_measured_a_flush_is_taken() {
        let facts = FileFacts {
            size: 4096,
            align: 512,
            direct: false,
            writable: true,
            rotational: false,
            transfer_bytes_max: 4096,
            disk: 0,
        };
        assert_eq!(measure_beside(Path::new("/nowhere/at/all/disk.img"), facts), ForcedUnitAccess::Never);
        assert_eq!(measure_beside(Path::new("/proc/disk.img"), facts), ForcedUnitAccess::Never);
        assert!(!told_by_sysfs(u64::MAX));
    }

    #[test]
    fn concurrent_writes_are_forced_only_on_a_disk_that_has_forced_unit_access() {
        for percent in [0, 50, 89, 90, 125] {
            assert_eq!(choose(percent, false), ForcedUnitAccess::Alone, "{percent}");
        }
        assert_eq!(choose(89, true), ForcedUnitAccess::Always);
        assert_eq!(choose(90, true), ForcedUnitAccess::Alone);
        for is_disks_own in [false, true] {
            assert_eq!(choose(126, is_disks_own), ForcedUnitAccess::Never);
        }
    }
}
