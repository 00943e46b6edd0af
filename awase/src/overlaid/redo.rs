//! A redo log beside a disk's file: what is being written to the disk, which a crash may interrupt. Once it has its name
//! it is whole, and is done again until the disk has all of it.
//!
//! In order, numbers little-endian: a mark, the size of the disk in bytes, the number of runs; for each run its first
//! block, its number of blocks, and 1 if they are zero; the content of the others; the BLAKE3 hash of all that.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kernel::device::ChangedRun;
use policy::unit::{BLOCK_BYTES, BlockNo};
use rustix::fs::{FallocateFlags, fallocate};

const MARK: [u8; 8] = *b"awkeep01";

const PIECE_BYTES: usize = 1 << 20;

/// Why a redo log cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum RedoError {
    #[error("{} is damaged", .0.display())]
    Damaged(PathBuf),
    #[error("{} is for a disk of {expected} bytes, but there are {found}", .path.display())]
    OtherSize { path: PathBuf, expected: u64, found: u64 },
    #[error(transparent)]
    Host(#[from] io::Error),
}

/// That of the disk at `path`.
pub fn path_of(path: &Path) -> PathBuf {
    with_ending(path, ".awase-keep")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Writes the redo log of the disk at `path`, in place of another. All but its name is durable then.
///
/// # Errors
/// If the host refuses; then there is none, or the other.
pub fn write(path: &Path, size: u64, runs: &[ChangedRun], content: &File) -> io::Result<()> {
    let draft = with_ending(path, ".awase-keep.new");
    let written = write_draft(&draft, size, runs, content).and_then(|()| fs::rename(&draft, path_of(path)));
    if written.is_err() {
        // The error that led here is the one to tell.
        let _ = fs::remove_file(&draft);
    }
    written
}

fn write_draft(draft: &Path, size: u64, runs: &[ChangedRun], content: &File) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(draft)?;
    let mut file = Hashed { inner: BufWriter::new(file), hash: blake3::Hasher::new() };
    file.write_all(&MARK)?;
    for number in [size, runs.len() as u64] {
        file.write_all(&number.to_le_bytes())?;
    }
    for run in runs {
        for number in [run.blocks.start.0, run.blocks.len(), u64::from(run.is_zero)] {
            file.write_all(&number.to_le_bytes())?;
        }
    }
    let mut piece = vec![0; PIECE_BYTES];
    for run in runs.iter().filter(|run| !run.is_zero) {
        for (at, len) in pieces(run, size) {
            content.read_exact_at(&mut piece[..len], at)?;
            file.write_all(&piece[..len])?;
        }
    }
    let hash = file.hash.finalize();
    file.inner.write_all(hash.as_bytes())?;
    file.inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// The pieces of a run of a disk of `size` bytes: where, and how long.
fn pieces(run: &ChangedRun, size: u64) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (start, end) = (run.blocks.start.start().0, run.blocks.end.start().0.min(size));
    (start..end).step_by(PIECE_BYTES).map(move |at| (at, (end - at).min(PIECE_BYTES as u64) as usize))
}

/// Does what the redo log of the disk at `path` says, if there is one: when this returns, it is durable on the `disk`, and
/// the log is gone. Returns whether there was one. Nobody else may use the disk.
///
/// # Errors
/// When the log is damaged or not for this disk, which is not changed then; or the host refuses, and the log stays.
pub fn finish(path: &Path, disk: &File) -> Result<bool, RedoError> {
    let log_path = path_of(path);
    let mut log = match File::open(&log_path) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Before the disk is changed: a crash must leave a log.
    sync_directory(path)?;
    check(&log_path, &mut log)?;
    let found = disk.metadata()?.len();
    let (size, runs) = read_runs(&log_path, &mut log)?;
    if found != size {
        return Err(RedoError::OtherSize { path: log_path, expected: size, found });
    }
    let mut piece = vec![0; PIECE_BYTES];
    for run in &runs {
        if run.is_zero {
            zero(disk, run, size)?;
            continue;
        }
        for (at, len) in pieces(run, size) {
            log.read_exact(&mut piece[..len])?;
            disk.write_all_at(&piece[..len], at)?;
        }
    }
    disk.sync_all()?;
    fs::remove_file(&log_path)?;
    sync_directory(path)?;
    Ok(true)
}

/// Leaves `log` at its start.
fn check(path: &Path, log: &mut File) -> Result<(), RedoError> {
    let damaged = || RedoError::Damaged(path.to_owned());
    let len = log.metadata()?.len();
    let hashed = len.checked_sub(blake3::OUT_LEN as u64).ok_or_else(damaged)?;
    let mut all = Hashed { inner: io::sink(), hash: blake3::Hasher::new() };
    io::copy(&mut (&*log).take(hashed), &mut all)?;
    let mut expected = [0; blake3::OUT_LEN];
    log.read_exact(&mut expected)?;
    if all.hash.finalize() != expected {
        return Err(damaged());
    }
    log.rewind()?;
    Ok(())
}

/// Leaves `log` at the first content.
fn read_runs(path: &Path, log: &mut File) -> Result<(u64, Vec<ChangedRun>), RedoError> {
    let damaged = || RedoError::Damaged(path.to_owned());
    let mut head = BufReader::new(&*log);
    let mut mark = [0; MARK.len()];
    head.read_exact(&mut mark)?;
    if mark != MARK {
        return Err(damaged());
    }
    let mut number = || -> io::Result<u64> {
        let mut bytes = [0; 8];
        head.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let (size, count) = (number()?, number()?);
    let mut runs = Vec::new();
    for _ in 0..count {
        let (start, blocks, zero) = (number()?, number()?, number()?);
        let fits = start.checked_add(blocks).is_some_and(|end| end <= size.div_ceil(BLOCK_BYTES));
        if !fits {
            return Err(damaged());
        }
        runs.push(ChangedRun { blocks: BlockNo(start).run(blocks), is_zero: zero == 1 });
    }
    log.seek(SeekFrom::Start((MARK.len() + 16) as u64 + 24 * count))?;
    Ok((size, runs))
}

/// Releases the space where the file system can do that.
fn zero(disk: &File, run: &ChangedRun, size: u64) -> io::Result<()> {
    let (start, end) = (run.blocks.start.start().0, run.blocks.end.start().0.min(size));
    if fallocate(disk, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start).is_ok() {
        return Ok(());
    }
    let zeroes = vec![0; PIECE_BYTES];
    pieces(run, size).try_for_each(|(at, len)| disk.write_all_at(&zeroes[..len], at))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Hashes what is written.
struct Hashed<W> {
    inner: W,
    hash: blake3::Hasher,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(bytes)?;
        self.hash.update(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 40 * BLOCK_BYTES + 512;

    /// A disk of ones, and changes: some of twos, some zero, one at the end.
    struct Scene {
        directory: tempfile::TempDir,
        runs: Vec<ChangedRun>,
    }

    impl Scene {
        fn new() -> Scene {
            let directory = tempfile::tempdir().expect("a directory");
            fs::write(directory.path().join("disk"), vec![1; SIZE as usize]).expect("a disk");
            fs::write(directory.path().join("beside"), vec![2; SIZE as usize]).expect("what is beside");
            let run = |start, len, is_zero| ChangedRun { blocks: BlockNo(start).run(len), is_zero };
            Scene { directory, runs: vec![run(0, 3, false), run(7, 2, true), run(20, 1, false), run(40, 1, false)] }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("disk")
        }

        fn write(&self) {
            let content = File::open(self.directory.path().join("beside")).expect("what is beside");
            write(&self.path(), SIZE, &self.runs, &content).expect("a log");
        }

        fn finish(&self) -> Result<bool, RedoError> {
            finish(&self.path(), &OpenOptions::new().read(true).write(true).open(self.path()).expect("a disk"))
        }

        /// The first byte of each block.
        fn bytes(&self) -> Vec<u8> {
            let bytes = fs::read(self.path()).expect("a disk");
            assert_eq!(bytes.len() as u64, SIZE);
            let blocks = bytes.chunks(BLOCK_BYTES as usize);
            blocks.map(|block| if block.iter().all(|byte| *byte == block[0]) { block[0] } else { 9 }).collect()
        }

        fn expected(&self) -> Vec<u8> {
            let mut bytes = vec![1; 41];
            for run in &self.runs {
                run.blocks.iter().for_each(|block| bytes[block.0 as usize] = if run.is_zero { 0 } else { 2 });
            }
            bytes
        }
    }

    #[test]
    fn what_a_log_says_is_done_once() {
        let scene = Scene::new();
        scene.write();
        assert!(scene.finish().expect("done"));
        assert_eq!(scene.bytes(), scene.expected());
        assert!(!scene.finish().expect("nothing is left"));
        assert_eq!(fs::read_dir(scene.directory.path()).expect("list").count(), 2, "no log stays behind");
    }

    #[test]
    fn what_was_done_in_part_is_done_again() {
        let scene = Scene::new();
        scene.write();
        // As a crash leaves it that hit the second run.
        let disk = OpenOptions::new().write(true).open(scene.path()).expect("a disk");
        disk.write_all_at(&vec![2; 3 * BLOCK_BYTES as usize], 0).expect("written");
        disk.write_all_at(&vec![0; BLOCK_BYTES as usize], 7 * BLOCK_BYTES).expect("written");
        assert!(scene.finish().expect("done"));
        assert_eq!(scene.bytes(), scene.expected());
    }

    #[test]
    fn a_draft_is_no_log() {
        let scene = Scene::new();
        scene.write();
        fs::rename(path_of(&scene.path()), with_ending(&scene.path(), ".awase-keep.new")).expect("renamed");
        assert!(!scene.finish().expect("nothing to do"));
        assert_eq!(scene.bytes(), vec![1; 41]);
    }

    #[test]
    fn damage_at_any_place_and_a_lost_end_are_noticed_and_nothing_is_written() {
        let scene = Scene::new();
        scene.write();
        let log = fs::read(path_of(&scene.path())).expect("a log");
        for at in (0..log.len()).step_by(97).chain([0, log.len() - 1]) {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            fs::write(path_of(&scene.path()), damaged).expect("written");
            assert!(matches!(scene.finish(), Err(RedoError::Damaged(_))), "byte {at}");
            fs::write(path_of(&scene.path()), &log[..at]).expect("written");
            assert!(matches!(scene.finish(), Err(RedoError::Damaged(_))), "{at} bytes");
        }
        assert_eq!(scene.bytes(), vec![1; 41]);
    }

    #[test]
    fn a_log_for_another_disk_is_refused() {
        let scene = Scene::new();
        scene.write();
        fs::write(scene.path(), vec![1; 4096]).expect("another disk");
        assert!(matches!(scene.finish(), Err(RedoError::OtherSize { expected: SIZE, found: 4096, .. })));
    }
}
