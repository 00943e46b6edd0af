//! How stable writes are made durable: by forced unit access, or by a write and a flush. Which is cheaper differs between
//! drives, fourfold either way, so both are measured, on an unnamed file near the image and never on what is served.
//!
//! Forced writes are trusted only on block devices and on file systems that are known to make them durable
//! ([`FileSystem::honours_forced_writes`]).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kernel::ForcedUnitAccess;
use machine::FileFacts;
use machine::linux::file_system::FileSystem;
use policy::unit::DiskNo;
use rustix::io::ReadWriteFlags;

use crate::config::{Behaviour, Export, StableWrites, Store};
use crate::media::Medium;

/// Limits the time of the measurement.
const TIME_MAX: Duration = Duration::from_millis(50);

/// Fewest (on a slow disk) and most pairs of one write of each kind.
const PAIRS: std::ops::RangeInclusive<usize> = 3..=16;

/// Size of the measured file, in blocks.
const BLOCKS: u64 = 16;

const BLOCK_BYTES: usize = 4096;

/// Forced unit access is always used where the disk has it and it costs less than this percentage of a write and a flush.
/// Not 100: writers can share a flush, so at equal cost flushes win. Where the host implements it by a write and a flush,
/// each of several concurrent writes pays for a flush of its own, one after another, however cheap one alone was.
const ALWAYS_PERCENT: u128 = 90;

/// Up to this percentage it is used by a writer that has no other to share a flush with: it is one request instead of
/// two.
const ALONE_PERCENT: u128 = 125;

/// The result for each disk, by its number.
#[derive(Default)]
pub struct Measured(BTreeMap<DiskNo, ForcedUnitAccess>);

impl Measured {
    pub fn of_medium(&mut self, export: &Export, medium: &Medium) -> ForcedUnitAccess {
        match export.stable_writes {
            StableWrites::Flush => ForcedUnitAccess::Never,
            _ if !honours_forced_writes(export) => ForcedUnitAccess::Never,
            StableWrites::ForcedUnitAccess => ForcedUnitAccess::Always,
            StableWrites::Auto => self.cheapest(export, medium),
        }
    }

    pub fn of_directory(&mut self, path: &Path, disk: DiskNo) -> ForcedUnitAccess {
        if !honours_forced_writes_at(path) {
            return ForcedUnitAccess::Never;
        }
        *self.0.entry(disk).or_insert_with(|| measure_in(path, true, disk))
    }

    fn cheapest(&mut self, export: &Export, medium: &Medium) -> ForcedUnitAccess {
        if export.read_only {
            return ForcedUnitAccess::Never;
        }
        let Some(open) = medium.open.as_ref().filter(|_| export.behaviour == Behaviour::Plain) else {
            // In memory and models, a write and a flush are two operations, a forced write is one.
            return ForcedUnitAccess::Always;
        };
        match &export.store {
            // A device holds data, so it is not measured: sysfs is trusted.
            Store::Block { .. } if reported_by_sysfs(open.facts.disk) => ForcedUnitAccess::Always,
            Store::Block { .. } => ForcedUnitAccess::Alone,
            Store::File { path, .. } => {
                *self.0.entry(open.facts.disk).or_insert_with(|| measure_near(path, open.facts))
            }
            Store::Ram { .. } => ForcedUnitAccess::Always,
            // Of shared disks, which have none.
            Store::Common { .. } => ForcedUnitAccess::Never,
        }
    }
}

/// True if a forced write to the export's medium is known to be durable when it completes.
pub fn honours_forced_writes(export: &Export) -> bool {
    match &export.store {
        Store::File { path, .. } => honours_forced_writes_at(path),
        Store::Block { .. } | Store::Ram { .. } | Store::Common { .. } => true,
    }
}

fn honours_forced_writes_at(path: &Path) -> bool {
    FileSystem::at(path).honours_forced_writes()
}

/// True if the disk has forced unit access (`queue/fua`). Otherwise the host implements it by a write and a flush.
fn reported_by_sysfs(disk: DiskNo) -> bool {
    let place = PathBuf::from(format!("/sys/dev/block/{}:{}/queue/fua", libc::major(disk.0), libc::minor(disk.0)));
    fs::read_to_string(place).is_ok_and(|text| text.trim() == "1")
}

/// Where nothing can be measured (no space, no unnamed files), a flush, which every disk supports.
fn measure_near(path: &Path, facts: FileFacts) -> ForcedUnitAccess {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    measure_in(directory, facts.direct, facts.disk)
}

fn measure_in(directory: &Path, direct: bool, disk: DiskNo) -> ForcedUnitAccess {
    measure(directory, direct).map_or(ForcedUnitAccess::default(), |percent| cheapest(percent, reported_by_sysfs(disk)))
}

/// `percent`: what a forced write costs, of a write and a flush. `has_forced`: the disk has forced unit access.
fn cheapest(percent: u128, has_forced: bool) -> ForcedUnitAccess {
    match percent {
        ..ALWAYS_PERCENT if has_forced => ForcedUnitAccess::Always,
        ..=ALONE_PERCENT => ForcedUnitAccess::Alone,
        _ => ForcedUnitAccess::Never,
    }
}

#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Overwrites blocks of an unnamed file, alternating between both ways; returns the ratio of the medians in percent.
fn measure(directory: &Path, direct: bool) -> io::Result<u128> {
    let flags = libc::O_TMPFILE | if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(directory)?;
    let block = Box::new(Block([0x5a; BLOCK_BYTES]));
    // Allocated first: allocation costs journal writes, which are not to be measured.
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
    let written = rustix::io::pwritev2(file, &[IoSlice::new(&block.0)], at, ReadWriteFlags::DSYNC)?;
    if written == BLOCK_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::media;
    use crate::predecessor::Deadline;

    #[test]
    fn a_disk_without_forced_unit_access_is_never_trusted_with_concurrent_forced_writes() {
        for percent in [0, 50, 89, 90, 125] {
            assert_eq!(cheapest(percent, false), ForcedUnitAccess::Alone, "{percent}");
        }
        assert_eq!(cheapest(89, true), ForcedUnitAccess::Always);
        assert_eq!(cheapest(90, true), ForcedUnitAccess::Alone);
        assert_eq!(cheapest(126, true), ForcedUnitAccess::Never);
    }

    fn export(directory: &Path, rest: &str) -> Export {
        let path = directory.join("disk.img");
        let text = format!("[[export]]\nname = \"a\"\npath = {path:?}\nsize = \"1MiB\"\ncreate = true\n{rest}");
        Config::parse("awase.toml", &text).expect("a good configuration").exports.remove(0)
    }

    fn choose(measured: &mut Measured, export: &Export) -> ForcedUnitAccess {
        let medium = media::prepare(export, Deadline::passed()).expect("made");
        measured.of_medium(export, &medium)
    }

    #[test]
    fn measuring_leaves_no_file_and_does_not_touch_the_image() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "kind = \"file\"");
        let mut measured = Measured::default();
        choose(&mut measured, &export);
        let expected = if honours_forced_writes_at(directory.path()) { 1 } else { 0 };
        assert_eq!(measured.0.len(), expected, "one disk is measured, if its file system honours forced writes");
        let names: Vec<_> =
            fs::read_dir(directory.path()).expect("read").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["disk.img"]);
        assert!(fs::read(directory.path().join("disk.img")).expect("read").iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_disk_is_measured_once() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "kind = \"file\"");
        let disk = media::prepare(&export, Deadline::passed()).expect("made").open.expect("a file").facts.disk;
        for known in [ForcedUnitAccess::Never, ForcedUnitAccess::Alone, ForcedUnitAccess::Always] {
            let mut measured = Measured(BTreeMap::from([(disk, known)]));
            let expected = if honours_forced_writes_at(directory.path()) { known } else { ForcedUnitAccess::Never };
            assert_eq!(choose(&mut measured, &export), expected);
        }
    }

    #[test]
    fn writes_are_not_forced_on_file_systems_that_are_not_known_to_honour_it() {
        // A file system in memory, where a forced write ends as soon as a plain one, as on FUSE.
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { testkit::skip!("no /dev/shm") };
        let mut measured = Measured::default();
        for value in ["auto", "fua"] {
            let export = export(directory.path(), &format!("kind = \"file\"\nstable_writes = {value:?}"));
            assert_eq!(choose(&mut measured, &export), ForcedUnitAccess::Never, "{value}");
        }
        assert_eq!(measured.of_directory(directory.path(), DiskNo(7)), ForcedUnitAccess::Never);
        assert!(measured.0.is_empty());
        assert!(!FileSystem::Fuse.honours_forced_writes() && !honours_forced_writes_at(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn a_configured_way_is_not_measured() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let fua =
            if honours_forced_writes_at(directory.path()) { ForcedUnitAccess::Always } else { ForcedUnitAccess::Never };
        for (value, forced) in [("flush", ForcedUnitAccess::Never), ("fua", fua)] {
            let export = export(directory.path(), &format!("kind = \"file\"\nstable_writes = {value:?}"));
            let mut measured = Measured::default();
            assert_eq!(choose(&mut measured, &export), forced);
            assert!(measured.0.is_empty());
        }
    }

    #[test]
    fn without_a_measurement_stable_writes_are_flushed() {
        let facts = FileFacts {
            size: 4096,
            align: 512,
            direct: false,
            writable: true,
            rotational: false,
            transfer_bytes_max: 4096,
            disk: DiskNo(0),
        };
        assert_eq!(measure_near(Path::new("/nowhere/at/all/disk.img"), facts), ForcedUnitAccess::Never);
        assert_eq!(measure_near(Path::new("/proc/disk.img"), facts), ForcedUnitAccess::Never);
        assert!(!reported_by_sysfs(DiskNo(u64::MAX)));
    }
}
