//! The media of exports on the host: made if they should be, of the right kind and size, and locked so that no two
//! servers write one disk.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use kernel::volume::VOLUME_BYTES_MAX;
use machine::OpenFile;
use machine::linux::file::{self, OpenError, OpenOptions};

use crate::config::{Export, Problem, SECTOR_BYTES, Store, show_bytes};
use crate::predecessor::Patience;

/// A medium that is there and ours.
pub struct Medium {
    /// Its size in bytes.
    pub size: u64,
    /// Open and locked. `None`: in memory, or not made yet.
    pub open: Option<OpenFile>,
}

/// Makes the medium if it should be made, opens, locks and checks it. Waits with `patience` for a server before this one.
///
/// # Errors
/// When it is missing, of another kind or size than configured, not permitted or locked by another server.
pub fn prepare(export: &Export, patience: Patience) -> Result<Medium, Problem> {
    if let Store::File { path, create: true, .. } = &export.store
        && let Some(parent) = path.parent()
    {
        std::fs::create_dir_all(parent)
            .map_err(|error| problem(export, format!("lies in a directory that cannot be made: {error}")))?;
    }
    examine(export, true, patience)
}

/// Like [`prepare`], but makes nothing and waits for nobody: a file that would be made counts as there.
///
/// # Errors
/// As [`prepare`].
pub fn inspect(export: &Export) -> Result<Medium, Problem> {
    examine(export, false, Patience::none())
}

fn examine(export: &Export, may_create: bool, patience: Patience) -> Result<Medium, Problem> {
    match &export.store {
        Store::Ram { size } => Ok(Medium { size: *size, open: None }),
        Store::File { path, size: Some(size), create: true } if !may_create && !path.exists() => {
            Ok(Medium { size: *size, open: None })
        }
        Store::File { path, size, create } => {
            refuse_block_device(export, path)?;
            let medium = open(export, path, size.filter(|_| *create && may_create), patience)?;
            match size.filter(|size| *size != medium.size) {
                None => Ok(medium),
                Some(size) => {
                    let (wanted, found) = (show_bytes(size), show_bytes(medium.size));
                    let what = format!("= {wanted:?}, but {} holds {found:?}", path.display());
                    let problem = Problem::new(&export.place, export.key("size"), what);
                    Err(problem.allowed("its size, or no size at all"))
                }
            }
        }
        Store::Block { path } => {
            refuse_other_than_block_device(export, path)?;
            open(export, path, None, patience)
        }
    }
}

fn open(export: &Export, path: &Path, create_size: Option<u64>, patience: Patience) -> Result<Medium, Problem> {
    let options = OpenOptions { writable: !export.read_only, create_size, ..OpenOptions::default() };
    let is_locked = |error: &OpenError| matches!(error, OpenError::Locked(_));
    let open = patience.retry(|| file::open(path, options), is_locked).map_err(|error| refused(export, &error))?;
    let size = open.facts.size;
    if size > VOLUME_BYTES_MAX {
        let what = format!("= {path:?} holds {size} bytes, more than can be served");
        return Err(problem(export, what).allowed(format!("at most {}", show_bytes(VOLUME_BYTES_MAX))));
    }
    let unit = SECTOR_BYTES.max(u64::from(export.block_size));
    if !size.is_multiple_of(unit) {
        let enough = size.next_multiple_of(unit);
        return Err(problem(export, format!("= {path:?} holds {size} bytes, no multiple of {unit}"))
            .allowed(format!("a multiple (truncate -s {enough} makes it one)")));
    }
    Ok(Medium { size, open: Some(open) })
}

fn refused(export: &Export, error: &OpenError) -> Problem {
    let problem = problem(export, format!("cannot be served: {error}"));
    match (error, &export.store) {
        (OpenError::Missing(_), Store::File { .. }) => {
            problem.allowed("an existing file, or create = true with the size of a new one")
        }
        (OpenError::Missing(_), _) => problem.allowed("an existing block device"),
        (OpenError::Permission { .. } | OpenError::ReadOnly(_), _) if !export.read_only => {
            problem.allowed("what may be written, or read_only = true")
        }
        (OpenError::Locked(_), _) => problem.allowed("what nobody serves, or read_only = true on both sides"),
        _ => problem,
    }
}

fn refuse_block_device(export: &Export, path: &Path) -> Result<(), Problem> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => {
            Err(problem(export, format!("= {path:?} is a block device")).allowed("a file, or kind = \"block\""))
        }
        _ => Ok(()),
    }
}

fn refuse_other_than_block_device(export: &Export, path: &Path) -> Result<(), Problem> {
    match std::fs::metadata(path) {
        Ok(found) if !found.file_type().is_block_device() => {
            let problem = problem(export, format!("= {path:?} is no block device"));
            Err(problem.allowed("a block device, or kind = \"file\""))
        }
        _ => Ok(()),
    }
}

fn problem(export: &Export, what: impl Into<String>) -> Problem {
    Problem::new(&export.place, export.key("path"), what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn export(directory: &Path, rest: &str) -> Export {
        let path = directory.join("disk.img");
        let text = format!("[[export]]\nname = \"a\"\nkind = \"file\"\npath = {path:?}\n{rest}");
        Config::parse("awase.toml", &text).expect("a good configuration").exports.remove(0)
    }

    fn refusal(export: &Export) -> String {
        match prepare(export, Patience::none()) {
            Ok(medium) => panic!("was accepted with {} bytes", medium.size),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn a_file_is_made_sparse_once_and_then_left_alone() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "size = \"64MiB\"\ncreate = true");
        assert_eq!(inspect(&export).expect("would be made").size, 64 << 20);
        assert!(!directory.path().join("disk.img").exists());
        assert_eq!(prepare(&export, Patience::none()).expect("made").size, 64 << 20);
        let path = directory.path().join("disk.img");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 0).expect("write");
        drop(file);
        prepare(&export, Patience::none()).expect("still there");
        assert_eq!(&std::fs::read(&path).expect("read")[..4], b"data");
    }

    #[test]
    fn a_file_that_should_not_be_made_must_exist() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("disk.img does not exist; allowed: an existing file, or create = true"), "{message}");
    }

    #[test]
    fn only_one_may_write_and_several_may_read() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let writer = export(directory.path(), "size = \"1MiB\"\ncreate = true");
        let reader = export(directory.path(), "read_only = true");
        let held = prepare(&writer, Patience::none()).expect("alone");
        let message = refusal(&writer);
        assert!(message.contains("disk.img is locked"), "{message}");
        refusal(&reader);
        drop(held);
        let _first = prepare(&reader, Patience::none()).expect("reads");
        let _second = prepare(&reader, Patience::none()).expect("reads too");
        refusal(&writer);
    }

    #[test]
    fn a_file_of_another_size_is_never_resized() {
        let directory = tempfile::tempdir().expect("temporary directory");
        drop(prepare(&export(directory.path(), "size = \"1MiB\"\ncreate = true"), Patience::none()).expect("made"));
        let message = refusal(&export(directory.path(), "size = \"2MiB\"\ncreate = true"));
        assert!(message.contains("size = \"2MiB\", but "), "{message}");
        assert_eq!(std::fs::metadata(directory.path().join("disk.img")).expect("there").len(), 1 << 20);
    }

    #[test]
    fn a_file_larger_than_blocks_can_be_numbered_for_is_refused() {
        // A file system that can hold such a file, if only as a hole.
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { testkit::skip!("no /dev/shm") };
        let file = std::fs::File::create(directory.path().join("disk.img")).expect("made");
        if let Err(error) = file.set_len(VOLUME_BYTES_MAX + 4096) {
            testkit::skip!("no file so large can be made: {error}");
        }
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("more than can be served"), "{message}");
        assert!(message.contains("at most 1EiB"), "{message}");
    }

    #[test]
    fn odd_sizes_and_odd_files_are_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("disk.img");
        std::fs::write(&path, [0; 513]).expect("write");
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("holds 513 bytes, no multiple of 512"), "{message}");
        std::fs::write(&path, []).expect("write");
        refusal(&export(directory.path(), ""));
        std::fs::remove_file(&path).expect("remove");
        std::fs::create_dir(&path).expect("directory");
        refusal(&export(directory.path(), "read_only = true"));
    }
}
