//! Where nodes were seen last: of each number the directory and the name, in a file that outlasts the server.
//!
//! What is kept here is a hint and never believed: a node that is found by it is compared with the name that was asked for,
//! and one that is not found is searched for. So nothing has to be made durable, a tail that was torn is dropped, and a
//! file that is lost or wrong costs time only. Records are appended; the memory holds where the last one of each number
//! begins (some 30 bytes each).

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::tree::NAME_BYTES_MAX;

/// Nodes at most of which the place is kept. When there are more, all are forgotten and found again one by one.
const PLACES_MAX: usize = 2 << 20;

/// The first bytes of the file.
const HEADER: &[u8; 8] = b"awplace1";

/// A record: its check, the number of the node, that of the directory, the length of the name, the name.
const FIXED_BYTES: usize = 4 + 8 + 8 + 1;

/// Records that count no more may take so many bytes beside those that do, before the file is written anew.
const WASTE_BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its directory.
    pub(super) dir: u64,
    pub(super) name: Vec<u8>,
}

/// The places of nodes by their numbers.
pub(super) struct Places {
    file: File,
    /// Where the file is kept; nowhere when it lives in memory.
    path: Option<PathBuf>,
    /// Where the last record of each number begins.
    last: HashMap<u64, u64>,
    end: u64,
    /// Bytes of the records that count.
    counting: u64,
}

impl Places {
    /// Those kept in the directory for the tree whose root has this path; what other servers use, or what can't be kept,
    /// lives in memory.
    pub(super) fn open(keep_in: Option<&Path>, root: &Path) -> io::Result<Self> {
        if let Some(directory) = keep_in {
            let path = directory.join(format!("places-{:016x}", hash(root.as_os_str().as_bytes())));
            if let Some(kept) = fs::create_dir_all(directory).and_then(|()| Places::kept(&path)).ok().flatten() {
                return Ok(kept);
            }
        }
        Ok(Places { file: in_memory()?, path: None, last: HashMap::new(), end: 0, counting: 0 })
    }

    /// Those in this file; nothing when another server has them.
    fn kept(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if !lock(&file) {
            return Ok(None);
        }
        let mut places = Places { file, path: Some(path.to_owned()), last: HashMap::new(), end: 0, counting: 0 };
        places.load()?;
        Ok(Some(places))
    }

    /// Takes over the records in the file, up to the first that is not whole.
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
            self.took(&record, self.end, bytes);
            self.end += bytes;
        }
        self.file.set_len(self.end)?;
        self.compact_if_worth_it()
    }

    fn took(&mut self, record: &Record, at: u64, bytes: u64) {
        if record.place.name.is_empty() {
            self.last.remove(&record.number);
        } else if self.last.insert(record.number, at).is_none() {
            // As if the former record had been as long: good enough to know when the file is worth writing anew.
            self.counting += bytes;
        }
    }

    /// Where the node was seen last.
    pub(super) fn get(&self, number: u64) -> Option<Place> {
        let &at = self.last.get(&number)?;
        let mut bytes = [0; FIXED_BYTES + NAME_BYTES_MAX];
        // The last record may be shorter than the longest.
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

    /// Is there room for one more without forgetting others?
    pub(super) fn has_room(&self) -> bool {
        self.last.len() < PLACES_MAX
    }

    /// The node was seen here. What can't be written is forgotten.
    pub(super) fn put(&mut self, number: u64, place: Place) {
        if !self.has_room() && !self.last.contains_key(&number) {
            self.clear();
        }
        self.add(number, place);
    }

    /// The same, but others are not forgotten for it.
    pub(super) fn add(&mut self, number: u64, place: Place) {
        if self.get(number).as_ref() != Some(&place) {
            self.append(Record { number, place });
        }
    }

    /// The node is no more at this place.
    pub(super) fn forget(&mut self, number: u64, place: &Place) {
        if self.get(number).as_ref() == Some(place) {
            self.append(Record { number, place: Place { dir: 0, name: Vec::new() } });
        }
    }

    fn append(&mut self, record: Record) {
        let bytes = record.to_bytes();
        if self.file.write_all_at(&bytes, self.end).is_err() {
            // Its disk may be full; what came to lie behind the end is written over.
            self.last.remove(&record.number);
            return;
        }
        self.took(&record, self.end, bytes.len() as u64);
        self.end += bytes.len() as u64;
        if self.compact_if_worth_it().is_err() {
            // Not before as much again has come together.
            self.counting = self.end;
        }
    }

    fn clear(&mut self) {
        self.last.clear();
        self.counting = 0;
        self.end = HEADER.len() as u64;
        // Records that can't be cut off are hints still.
        let _ = self.file.set_len(self.end);
    }

    /// Writes the file anew when most of it counts no more.
    fn compact_if_worth_it(&mut self) -> io::Result<()> {
        if self.end < 2 * self.counting + WASTE_BYTES_MIN {
            return Ok(());
        }
        let draft = self.path.as_ref().map(|path| path.with_extension("new"));
        let file = match &draft {
            Some(draft) => {
                OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(draft)?
            }
            None => in_memory()?,
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
        (self.file, self.last, self.end, self.counting) = (file, last, end, end);
        Ok(())
    }
}

struct Record {
    number: u64,
    /// Without a name: there is no place any more.
    place: Place,
}

impl Record {
    fn bytes(&self) -> u64 {
        (FIXED_BYTES + self.place.name.len()) as u64
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.place.dir.to_le_bytes());
        bytes.push(self.place.name.len() as u8);
        bytes.extend(&self.place.name);
        let check = check_of(&bytes[4..]);
        bytes[..4].copy_from_slice(&check);
        bytes
    }

    /// The next; nothing when there is none, or none that is whole.
    fn read(from: &mut impl Read) -> Option<Self> {
        let mut fixed = [0; FIXED_BYTES];
        from.read_exact(&mut fixed).ok()?;
        let mut name = vec![0; fixed[FIXED_BYTES - 1].into()];
        from.read_exact(&mut name).ok()?;
        let number = u64::from_le_bytes(*fixed[4..].first_chunk()?);
        let dir = u64::from_le_bytes(*fixed[12..].first_chunk()?);
        let whole = check_of(&[&fixed[4..], &name].concat()) == fixed[..4];
        whole.then_some(Record { number, place: Place { dir, name } })
    }
}

fn check_of(bytes: &[u8]) -> [u8; 4] {
    let hash = hash(bytes);
    ((hash >> 32) as u32 ^ hash as u32).to_le_bytes()
}

/// FNV-1a, 64 bits: the same in every version, and good against accidents. There is nobody to guard against: the file is
/// its owner's, and what is in it is not believed.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Makes sure that no other server writes to the file as long as it is open.
fn lock(file: &File) -> bool {
    // SAFETY: no pointer is passed.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn in_memory() -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"places".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: u64, name: &str) -> Place {
        Place { dir, name: name.into() }
    }

    fn open(directory: &Path) -> Places {
        let places = Places::open(Some(directory), Path::new("/files")).expect("opened");
        assert!(places.path.is_some(), "kept");
        places
    }

    fn file_in(directory: &Path) -> PathBuf {
        let mut entries = fs::read_dir(directory).expect("listed");
        entries.next().expect("one").expect("read").path()
    }

    #[test]
    fn the_last_place_of_each_is_there_after_a_restart() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(5, place(2, "a"));
        places.put(6, place(2, &"x".repeat(255)));
        places.put(7, place(5, "gone"));
        places.put(5, place(3, "b"));
        places.forget(7, &place(5, "gone"));
        places.forget(6, &place(2, "another name"));
        for _ in 0..2 {
            assert_eq!(places.get(5), Some(place(3, "b")));
            assert_eq!(places.get(6), Some(place(2, &"x".repeat(255))));
            assert_eq!(places.get(7), None);
            drop(places);
            places = open(directory.path());
        }
    }

    #[test]
    fn of_a_torn_file_what_is_whole_counts_and_it_goes_on_from_there() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(5, place(2, "first"));
        let whole = places.end;
        places.put(6, place(2, "second"));
        let end = places.end;
        drop(places);
        let path = file_in(directory.path());
        let bytes = fs::read(&path).expect("read");
        assert_eq!(bytes.len() as u64, end);
        for len in whole..end {
            fs::write(&path, &bytes[..len as usize]).expect("written");
            let mut places = open(directory.path());
            assert_eq!((places.get(5), places.get(6)), (Some(place(2, "first")), None), "{len} bytes");
            places.put(8, place(5, "third"));
            drop(places);
            assert_eq!(open(directory.path()).get(8), Some(place(5, "third")));
        }
        for at in whole..end {
            let mut damaged = bytes.clone();
            damaged[at as usize] ^= 0x10;
            fs::write(&path, damaged).expect("written");
            let places = open(directory.path());
            assert_eq!((places.get(5), places.get(6)), (Some(place(2, "first")), None), "byte {at} is wrong");
        }
        fs::write(&path, "something else entirely").expect("written");
        assert_eq!(open(directory.path()).get(5), None);
    }

    #[test]
    fn what_counts_no_more_is_dropped_from_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut places = open(directory.path());
        places.put(1, place(9, "stays"));
        for k in 0..100_000u64 {
            places.put(2, place(k, "moves"));
        }
        assert!(places.end < 2 * WASTE_BYTES_MIN, "{} bytes", places.end);
        drop(places);
        let places = open(directory.path());
        assert_eq!((places.get(1), places.get(2)), (Some(place(9, "stays")), Some(place(99_999, "moves"))));
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_file_that_another_server_has_is_left_to_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut first = open(directory.path());
        first.put(1, place(2, "first"));
        let mut second = Places::open(Some(directory.path()), Path::new("/files")).expect("opened");
        assert_eq!((second.path.is_none(), second.get(1)), (true, None));
        second.put(1, place(2, "second"));
        assert_eq!(second.get(1), Some(place(2, "second")));
        drop((first, second));
        assert_eq!(open(directory.path()).get(1), Some(place(2, "first")));
    }
}
