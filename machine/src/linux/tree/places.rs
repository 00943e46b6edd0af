//! Where nodes were seen last: for each inode number the directory and the name, in a file that outlives the server.
//!
//! Records are hints and never trusted: a node found by one is compared with the identifier, and one that is not found
//! is searched for. So nothing has to be durable, a torn tail is dropped, and a file that is lost or wrong only costs
//! time. But while the server runs, a place is all that leads to its node: one that cannot be written, as the disk is
//! full, is held in memory. Records are appended; memory holds the offset of the last one of each number (some 30 bytes
//! each).

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::linux::file::make_directories;
use crate::tree::{InodeNo, NAME_BYTES_MAX};

/// Maximum of nodes. Beyond it all are dropped and found again one by one.
const PLACES_MAX: usize = 2 << 20;

const HEADER: &[u8; 8] = b"awplace1";

/// A record: checksum, number of the node, number of the directory, length of the name, name.
const FIXED_BYTES: usize = 4 + 8 + 8 + 1;

/// Obsolete records may take this many bytes more than current ones, before the file is rewritten.
const WASTE_BYTES_MIN: u64 = 1 << 20;

/// Written at once of what could not be written before, while the tree waits.
const WRITTEN_AT_ONCE: usize = 20_000;

/// How often it is tried to write what could not be written. A full disk may take long to refuse.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The end of another user of the file is waited for: a program that was just started holds what the process that starts it has
/// open, until it runs.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_RETRY: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: InodeNo,
    pub(super) name: Vec<u8>,
}

pub(super) struct Places {
    file: File,
    /// `None` for a file in memory.
    path: Option<PathBuf>,
    /// Offset of the last record of each number.
    last: HashMap<InodeNo, u64>,
    end: u64,
    /// Bytes of the current records.
    current_bytes: u64,
    /// Places that could not be written. Their numbers have no record in the file that counts.
    unwritten: HashMap<InodeNo, Place>,
    /// When that was tried last.
    tried: Instant,
}

impl Places {
    /// Opens the file in the directory for the tree whose root has this path; in memory if another server uses it, or
    /// it cannot be used.
    pub(super) fn open(state_dir: Option<&Path>, root: &Path) -> io::Result<Self> {
        if let Some(directory) = state_dir {
            let path = directory.join(format!("places-{:016x}", hash(root.as_os_str().as_bytes())));
            if let Some(places) = make_directories(directory).and_then(|()| Places::in_file(&path)).ok().flatten() {
                return Ok(places);
            }
        }
        Ok(Places::new(memory_file()?, None))
    }

    /// Without records.
    fn new(file: File, path: Option<PathBuf>) -> Self {
        let (last, unwritten) = (HashMap::new(), HashMap::new());
        Places { file, path, last, end: 0, current_bytes: 0, unwritten, tried: Instant::now() }
    }

    /// Opens this file; `None` when another server uses it.
    fn in_file(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut attempts = 1;
        while !lock(&file) {
            if attempts == LOCK_ATTEMPTS {
                return Ok(None);
            }
            std::thread::sleep(LOCK_RETRY);
            attempts += 1;
        }
        let mut places = Places::new(file, Some(path.to_owned()));
        places.load()?;
        Ok(Some(places))
    }

    /// Loads the records of the file, up to the first incomplete one.
    fn load(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(self.file.try_clone()?);
        let mut header = [0; HEADER.len()];
        if reader.read_exact(&mut header).is_err() || header != *HEADER {
            self.file.set_len(0)?;
            self.file.write_all_at(HEADER, 0)?;
            self.end = HEADER.len() as u64;
            return Ok(());
        }
        self.end = HEADER.len() as u64;
        while let Some(record) = Record::read(&mut reader) {
            let bytes = record.bytes();
            self.on_record(&record, self.end, bytes);
            self.end += bytes;
        }
        self.file.set_len(self.end)?;
        self.compact_if_needed()
    }

    fn on_record(&mut self, record: &Record, at: u64, bytes: u64) {
        if record.place.name.is_empty() {
            self.last.remove(&record.number);
        } else if self.last.insert(record.number, at).is_none() {
            // Assumes that the previous record was as long: exact enough to decide when to rewrite the file.
            self.current_bytes += bytes;
        }
    }

    pub(super) fn get(&self, number: InodeNo) -> Option<Place> {
        if let Some(place) = self.unwritten.get(&number) {
            return Some(place.clone());
        }
        let &at = self.last.get(&number)?;
        let mut bytes = [0; FIXED_BYTES + NAME_BYTES_MAX];
        // The last record may be shorter than the maximum.
        let mut len = 0;
        while len < bytes.len() {
            match self.file.read_at(&mut bytes[len..], at + len as u64) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        let record = Record::read(&mut &bytes[..len])?;
        (record.number == number).then_some(record.place)
    }

    /// Whether another one fits without dropping others.
    pub(super) fn has_room(&self) -> bool {
        self.last.len() + self.unwritten.len() < PLACES_MAX
    }

    /// Records a place.
    pub(super) fn put(&mut self, number: InodeNo, place: Place) {
        if !self.has_room() && !self.last.contains_key(&number) && !self.unwritten.contains_key(&number) {
            self.clear();
        }
        self.add(number, place);
    }

    /// The same, without dropping others.
    pub(super) fn add(&mut self, number: InodeNo, place: Place) {
        if self.get(number).as_ref() != Some(&place) {
            self.append(Record { number, place });
        }
    }

    /// The node is no longer at this place.
    pub(super) fn forget(&mut self, number: InodeNo, place: &Place) {
        if self.get(number).as_ref() == Some(place) {
            self.append(Record { number, place: Place { dir: InodeNo(0), name: Vec::new() } });
        }
    }

    fn append(&mut self, record: Record) {
        if self.unwritten.is_empty() {
            if self.write(&record).is_ok() {
                return;
            }
            self.tried = Instant::now();
        }
        let Record { number, place } = record;
        self.last.remove(&number);
        if place.name.is_empty() {
            self.unwritten.remove(&number);
        } else {
            self.unwritten.insert(number, place);
        }
    }

    /// Writes a record. What a failed write has left is overwritten by the next.
    fn write(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.to_bytes();
        self.file.write_all_at(&bytes, self.end)?;
        self.on_record(record, self.end, bytes.len() as u64);
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes what could not be written, as far as that succeeds now.
    fn write_unwritten(&mut self) {
        let (mut unwritten, mut left) = (std::mem::take(&mut self.unwritten), WRITTEN_AT_ONCE);
        unwritten.retain(|&number, place| {
            let is_written = left > 0 && self.write(&Record { number, place: place.clone() }).is_ok();
            left = if is_written { left - 1 } else { 0 };
            !is_written
        });
        self.unwritten = unwritten;
        self.tried = Instant::now();
    }

    /// To be called now and then by a thread that acts as the server: the directory of the file is the server's.
    pub(super) fn tidy(&mut self) {
        if !self.unwritten.is_empty() && self.tried.elapsed() >= RETRY_INTERVAL {
            self.write_unwritten();
        }
        if self.compact_if_needed().is_err() {
            // Retried when the file has doubled.
            self.current_bytes = self.end;
        }
    }

    fn clear(&mut self) {
        self.last.clear();
        self.unwritten.clear();
        self.current_bytes = 0;
        self.end = HEADER.len() as u64;
        // If this fails, the records are still hints.
        let _ = self.file.set_len(self.end);
    }

    /// Rewrites the file when most of it is obsolete.
    fn compact_if_needed(&mut self) -> io::Result<()> {
        if self.end < 2 * self.current_bytes + WASTE_BYTES_MIN {
            return Ok(());
        }
        let draft = self.path.as_ref().map(|path| path.with_extension("new"));
        let file = match &draft {
            Some(draft) => {
                OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(draft)?
            }
            None => memory_file()?,
        };
        let mut to = BufWriter::new(&file);
        to.write_all(HEADER)?;
        let (mut end, mut last) = (HEADER.len() as u64, HashMap::with_capacity(self.last.len()));
        for &number in self.last.keys() {
            let Some(place) = self.get(number) else { continue };
            let bytes = Record { number, place }.to_bytes();
            to.write_all(&bytes)?;
            last.insert(number, end);
            end += bytes.len() as u64;
        }
        to.flush()?;
        drop(to);
        if let (Some(draft), Some(path)) = (&draft, &self.path) {
            if !lock(&file) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            fs::rename(draft, path)?;
        }
        (self.file, self.last, self.end, self.current_bytes) = (file, last, end, end);
        Ok(())
    }
}

struct Record {
    number: InodeNo,
    /// Without a name: the node has no place any more.
    place: Place,
}

impl Record {
    fn bytes(&self) -> u64 {
        (FIXED_BYTES + self.place.name.len()) as u64
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(self.number.0.to_le_bytes());
        bytes.extend(self.place.dir.0.to_le_bytes());
        bytes.push(self.place.name.len() as u8);
        bytes.extend(&self.place.name);
        let check = check_of(&bytes[4..]);
        bytes[..4].copy_from_slice(&check);
        bytes
    }

    /// The next complete record.
    fn read(from: &mut impl Read) -> Option<Self> {
        let mut fixed = [0; FIXED_BYTES];
        from.read_exact(&mut fixed).ok()?;
        let mut name = vec![0; fixed[FIXED_BYTES - 1].into()];
        from.read_exact(&mut name).ok()?;
        let number = InodeNo(u64::from_le_bytes(*fixed[4..].first_chunk()?));
        let dir = InodeNo(u64::from_le_bytes(*fixed[12..].first_chunk()?));
        let whole = check_of(&[&fixed[4..], &name].concat()) == fixed[..4];
        whole.then_some(Record { number, place: Place { dir, name } })
    }
}

fn check_of(bytes: &[u8]) -> [u8; 4] {
    let hash = hash(bytes);
    ((hash >> 32) as u32 ^ hash as u32).to_le_bytes()
}

/// FNV-1a, 64 bits: stable over versions, and sufficient against accidents. No attack is possible: the file belongs to
/// its owner, and its contents are not trusted.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Excludes other servers as long as the file is open.
fn lock(file: &File) -> bool {
    // SAFETY: no pointer is passed.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"places".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the kernel has just made it, and it has no other owner.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: u64, name: &str) -> Place {
        Place { dir: InodeNo(dir), name: name.into() }
    }

    fn open(directory: &Path) -> Places {
        let places = Places::open(Some(directory), Path::new("/files")).expect("opened");
        assert!(places.path.is_some(), "in memory");
        places
    }

    fn file_in(directory: &Path) -> PathBuf {
        let mut entries = fs::read_dir(directory).expect("listed");
        entries.next().expect("one").expect("read").path()
    }

    #[test]
    fn the_last_place_of_each_node_survives_a_restart() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(InodeNo(5), place(2, "a"));
        places.put(InodeNo(6), place(2, &"x".repeat(255)));
        places.put(InodeNo(7), place(5, "gone"));
        places.put(InodeNo(5), place(3, "b"));
        places.forget(InodeNo(7), &place(5, "gone"));
        places.forget(InodeNo(6), &place(2, "another name"));
        for _ in 0..2 {
            assert_eq!(places.get(InodeNo(5)), Some(place(3, "b")));
            assert_eq!(places.get(InodeNo(6)), Some(place(2, &"x".repeat(255))));
            assert_eq!(places.get(InodeNo(7)), None);
            drop(places);
            places = open(directory.path());
        }
    }

    #[test]
    fn of_a_torn_file_the_complete_records_count_and_new_ones_follow_them() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(InodeNo(5), place(2, "first"));
        let whole = places.end;
        places.put(InodeNo(6), place(2, "second"));
        let end = places.end;
        drop(places);
        let path = file_in(directory.path());
        let bytes = fs::read(&path).expect("read");
        assert_eq!(bytes.len() as u64, end);
        for len in whole..end {
            fs::write(&path, &bytes[..len as usize]).expect("written");
            let mut places = open(directory.path());
            assert_eq!(
                (places.get(InodeNo(5)), places.get(InodeNo(6))),
                (Some(place(2, "first")), None),
                "{len} bytes"
            );
            places.put(InodeNo(8), place(5, "third"));
            drop(places);
            assert_eq!(open(directory.path()).get(InodeNo(8)), Some(place(5, "third")));
        }
        for at in whole..end {
            let mut damaged = bytes.clone();
            damaged[at as usize] ^= 0x10;
            fs::write(&path, damaged).expect("written");
            let places = open(directory.path());
            assert_eq!(
                (places.get(InodeNo(5)), places.get(InodeNo(6))),
                (Some(place(2, "first")), None),
                "byte {at} is wrong"
            );
        }
        fs::write(&path, "something else entirely").expect("written");
        assert_eq!(open(directory.path()).get(InodeNo(5)), None);
    }

    #[test]
    fn obsolete_records_are_dropped_from_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(InodeNo(1), place(9, "stays"));
        for k in 0..100_000u64 {
            places.put(InodeNo(2), place(k, "moves"));
            places.tidy();
        }
        assert!(places.end < 2 * WASTE_BYTES_MIN, "{} bytes", places.end);
        drop(places);
        let places = open(directory.path());
        assert_eq!(
            (places.get(InodeNo(1)), places.get(InodeNo(2))),
            (Some(place(9, "stays")), Some(place(99_999, "moves")))
        );
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn places_that_cannot_be_written_are_known_and_written_when_that_succeeds_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(InodeNo(1), place(2, "before"));
        places.put(InodeNo(2), place(2, "forgotten"));
        let refusing = File::open(file_in(directory.path())).expect("opened");
        let file = std::mem::replace(&mut places.file, refusing);
        places.put(InodeNo(1), place(2, "moved"));
        places.forget(InodeNo(2), &place(2, "forgotten"));
        for (number, name) in [(3, "new"), (4, "moves"), (5, "removed"), (4, "moved")] {
            places.put(InodeNo(number), place(2, name));
        }
        places.forget(InodeNo(5), &place(2, "removed"));
        let known = [Some("moved"), None, Some("new"), Some("moved"), None];
        let known = known.map(|name| name.map(|name| place(2, name)));
        let all = |places: &Places| [1, 2, 3, 4, 5].map(|number| places.get(InodeNo(number)));
        assert_eq!(all(&places), known);
        places.write_unwritten();
        assert_eq!((all(&places), places.unwritten.len()), (known.clone(), 3));
        places.file = file;
        places.write_unwritten();
        assert_eq!((all(&places), places.unwritten.len()), (known.clone(), 0));
        drop(places);
        // That one was removed is not written later: its record is a hint.
        let [moved, _, new, moves, removed] = known;
        assert_eq!(all(&open(directory.path())), [moved, Some(place(2, "forgotten")), new, moves, removed]);
    }

    #[test]
    fn a_file_that_its_last_user_is_about_to_close_is_waited_for() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let last = open(directory.path());
        let closes = std::thread::spawn(move || {
            std::thread::sleep(10 * LOCK_RETRY);
            drop(last);
        });
        open(directory.path());
        closes.join().expect("closed");
    }

    #[test]
    fn a_file_that_another_server_uses_is_left_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut first = open(directory.path());
        first.put(InodeNo(1), place(2, "first"));
        let mut second = Places::open(Some(directory.path()), Path::new("/files")).expect("opened");
        assert_eq!((second.path.is_none(), second.get(InodeNo(1))), (true, None));
        second.put(InodeNo(1), place(2, "second"));
        assert_eq!(second.get(InodeNo(1)), Some(place(2, "second")));
        drop((first, second));
        assert_eq!(open(directory.path()).get(InodeNo(1)), Some(place(2, "first")));
    }
}
