//! The media of exports on the host: created if configured, checked for kind and size, and locked so that no two
//! servers write to one disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel::device::{DeviceRef, FileDevice, Overlay};
use kernel::volume::VOLUME_BYTES_MAX;
use machine::OpenFile;
use machine::linux::file::{self, Made, OpenError, OpenOptions};
use policy::unit::BLOCK_BYTES;
use rustix::fs::{Access, access};

use crate::config::{Disk, Export, Problem, Problems, SECTOR_BYTES, Store, own_file, show_bytes};
use crate::held::Identity;
use crate::overlaid::{Overlaid, redo};
use crate::predecessor::Deadline;

pub struct Medium {
    /// Bytes.
    pub size: u64,
    /// Open, and locked unless it is in use. `None`: in memory, or not created yet.
    pub open: Option<OpenFile>,
    /// Another has it, and keeps it from being served beside that.
    pub in_use: bool,
    /// If it was made just now, for this.
    pub made: Option<Made>,
}

impl Medium {
    fn without_file(size: u64) -> Medium {
        Medium { size, open: None, in_use: false, made: None }
    }
}

/// Creates the medium if configured, opens, locks and checks it. Retries until `deadline` while the predecessor has it.
///
/// # Errors
/// When it is missing, of another kind or size than configured, not permitted or locked by another server.
pub fn prepare(export: &Export, deadline: Deadline) -> Result<Medium, Problem> {
    if let Store::File { path, create: true, .. } = &export.store
        && let Some(parent) = path.parent()
    {
        file::make_directories(parent)
            .map_err(|error| problem(export, format!("is in a directory that cannot be created: {error}")))?;
    }
    let Store::File { path, .. } = &export.store else { return examine(export, true, deadline) };
    loop {
        finish_keeping(export, &real(path), deadline)?;
        let medium = examine(export, true, deadline)?;
        // Another server may have died meanwhile; from here on, none can write into the file.
        if !redo::path_of(&real(path)).exists() {
            return Ok(medium);
        }
    }
}

/// Like [`prepare`], but creates nothing and does not retry: a file that would be created counts as existing, and one that
/// is in use as free: by the server, mostly, that is to read this configuration.
///
/// # Errors
/// As [`prepare`].
pub fn inspect(export: &Export) -> Result<Medium, Problem> {
    if export.overlay.is_some() {
        let directory = std::env::temp_dir();
        may_be_written(&directory).map_err(|error| no_changes(export, &directory, &error.to_string()))?;
    }
    examine(export, false, Deadline::passed())
}

/// Whether a file with `create` is to be made, or is empty, as one is of which only the name was made.
fn would_be_made(export: &Export, path: &Path) -> Result<bool, Problem> {
    let refused = |error: io::Error| problem(export, format!("cannot be served: {}: {error}", path.display()));
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => {
            access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| refused(error.into()))?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The directories above it are made, too.
            let mut above =
                path.ancestors().skip(1).map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
            let existing = above.find(|above| above.exists());
            existing.map_or(Ok(()), may_be_written).map_err(refused)?;
            Ok(true)
        }
        Err(error) => Err(refused(error)),
    }
}

/// Whether a file may be made in the directory.
fn may_be_written(directory: &Path) -> io::Result<()> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

fn no_changes(export: &Export, directory: &Path, what: &str) -> Problem {
    let what = format!("= true: no temporary file in {}: {what}", directory.display());
    Problem::new(&export.place, export.key("overlay"), what)
}

/// Whether a server that died was writing into the medium: what it holds is not what will be served.
pub fn is_being_changed(export: &Export) -> bool {
    export.path().is_some_and(|path| redo::path_of(&real(path)).exists())
}

fn examine(export: &Export, may_create: bool, deadline: Deadline) -> Result<Medium, Problem> {
    match &export.store {
        Store::Ram { size } => Ok(Medium::without_file(*size)),
        Store::File { path, size: Some(size), create: true } if !may_create && would_be_made(export, path)? => {
            Ok(Medium::without_file(*size))
        }
        Store::File { path, size, create } => {
            refuse_block_device(export, path)?;
            let medium = open(export, path, size.filter(|_| *create), may_create, deadline)?;
            match size.filter(|size| *size != medium.size) {
                None => Ok(medium),
                Some(size) => {
                    let (wanted, found) = (show_bytes(size), show_bytes(medium.size));
                    let what = format!("= {wanted:?}, but {} holds {found:?}", path.display());
                    let problem = Problem::new(&export.place, export.key("size"), what);
                    // All nodes must have been given the size of a shared disk.
                    let is_optional = export.kind != Disk::Shared;
                    Err(problem.allowed(if is_optional { "its size, or no size at all" } else { "its size" }))
                }
            }
        }
        Store::Block { path } => {
            refuse_other_than_block_device(export, path)?;
            open(export, path, None, may_create, deadline)
        }
        Store::Common { path, size } => {
            let medium = open(export, path, None, may_create, deadline)?;
            if medium.size < *size {
                let (wanted, found) = (show_bytes(*size), show_bytes(medium.size));
                let what = format!("= {wanted:?}, but {} holds {found:?}", path.display());
                return Err(Problem::new(&export.place, export.key("size"), what).allowed("its size, or less"));
            }
            Ok(Medium { size: *size, ..medium })
        }
    }
}

fn open(
    export: &Export,
    path: &Path,
    create_size: Option<u64>,
    is_served: bool,
    deadline: Deadline,
) -> Result<Medium, Problem> {
    let writable = !export.read_only && export.overlay.is_none();
    let create_size = create_size.filter(|_| is_served);
    let options = OpenOptions { writable, create_size, is_common: export.is_on_device(), ..OpenOptions::default() };
    let is_locked = |error: &OpenError| matches!(error, OpenError::Locked(_));
    let mut opened = deadline.retry(|| file::open_or_make(path, options), is_locked);
    let in_use = !is_served && opened.as_ref().is_err_and(is_locked);
    if in_use {
        opened = file::open_or_make(path, OpenOptions { is_examined: true, ..options });
    }
    let (open, made) = opened.map_err(|error| refused(export, &error))?;
    let size = open.facts.size;
    if size > VOLUME_BYTES_MAX {
        let what = format!("= {path:?} holds {size} bytes, more than can be served");
        return Err(problem(export, what).allowed(format!("at most {}", show_bytes(VOLUME_BYTES_MAX))));
    }
    let unit = SECTOR_BYTES.max(u64::from(export.block_size));
    if !size.is_multiple_of(unit) {
        let enough = size.next_multiple_of(unit);
        return Err(problem(export, format!("= {path:?} holds {size} bytes, not a multiple of {unit}"))
            .allowed(format!("a multiple (truncate -s {enough} makes it one)")));
    }
    Ok(Medium { size, open: Some(open), in_use, made })
}

/// Lets changes go beside `below`, which has `size` bytes and is `file` if it is one, up to `bytes_max`: into a file
/// without a name.
///
/// # Errors
/// If there is no directory for temporary files, or it refuses.
pub fn overlay(
    export: &Export,
    below: DeviceRef,
    size: u64,
    file: Option<OpenFile>,
    bytes_max: u64,
) -> Result<Overlaid, Problem> {
    let directory = std::env::temp_dir();
    let refused = |what: String| no_changes(export, &directory, &what);
    let named = tempfile::Builder::new().prefix("awase-overlay-").tempfile();
    let (content, path) = named.map_err(|error| refused(error.to_string()))?.into_parts();
    let options = OpenOptions { writable: true, create_size: Some(size), ..OpenOptions::default() };
    // It loses its name here, and its space with the last reference.
    let above = file::open(&path, options).map_err(|error| refused(error.to_string()))?;
    let overlay = Arc::new(Overlay::new(below, Arc::new(FileDevice::new(above)), bytes_max / BLOCK_BYTES));
    let file = match &export.store {
        Store::File { path, .. } => file.map(|open| (open, real(path))),
        _ => None,
    };
    Ok(Overlaid { overlay, content, file })
}

/// Refuses two exports of one file or device by different names, of which one would write to it alone.
pub fn refuse_same_medium(volumes: &[&Export], problems: &mut Problems) {
    let identified: Vec<_> = volumes.iter().filter_map(|export| Some((Identity::of(export)?, *export))).collect();
    problems.refuse_pairs(
        &identified,
        |(identity, _)| *identity,
        |(_, first), (_, export)| {
            if !first.writes_alone() && !export.writes_alone() {
                return None;
            }
            let table = if first.is_database { "database" } else { "export" };
            let problem = problem(export, format!("leads to the medium of {table} {:?}", first.name));
            Some(problem.allowed(own_file(first, export)))
        },
    );
}

/// The file's own path: others may reach it by another one, and must find its redo log.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Finishes what a server that died was writing into the file, if there is anything.
fn finish_keeping(export: &Export, path: &Path, deadline: Deadline) -> Result<(), Problem> {
    let log = redo::path_of(path);
    if !log.exists() {
        return Ok(());
    }
    let unfinished =
        |what: String| problem(export, format!("cannot be served before {} is done: {what}", log.display()));
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let is_locked = |error: &OpenError| matches!(error, OpenError::Locked(_));
    let _locked = deadline.retry(|| file::open(path, options), is_locked).map_err(|e| unfinished(e.to_string()))?;
    let disk = File::options().read(true).write(true).open(path).map_err(|error| unfinished(error.to_string()))?;
    redo::finish(path, &disk).map(drop).map_err(|error| unfinished(error.to_string()))
}

fn refused(export: &Export, error: &OpenError) -> Problem {
    let problem = problem(export, format!("cannot be served: {error}"));
    // No database is read-only.
    let unchanged = if export.is_database { "overlay = true" } else { "read_only = true" };
    match (error, &export.store) {
        (OpenError::Missing(_), Store::Common { .. }) => {
            problem.allowed("an existing device or file (truncate makes one)")
        }
        (OpenError::NoDirectIo(_), _) => {
            problem.allowed("a device or file with direct I/O: else a node reads what its own host has cached")
        }
        (OpenError::Missing(_), Store::File { .. }) => {
            problem.allowed("an existing file, or create = true with the size of a new one")
        }
        (OpenError::Missing(_), _) => problem.allowed("an existing block device"),
        (OpenError::Permission { .. } | OpenError::ReadOnly(_), _) if !export.read_only => {
            problem.allowed(format!("a writable one, or {unchanged}"))
        }
        (OpenError::Locked(_), _) => {
            problem.allowed(format!("one that no other server has open, or {unchanged} in both"))
        }
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
            let problem = problem(export, format!("= {path:?} is not a block device"));
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
        match prepare(export, Deadline::passed()) {
            Ok(medium) => panic!("was accepted with {} bytes", medium.size),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn a_file_is_created_sparse_and_never_overwritten() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let export = export(directory.path(), "size = \"64MiB\"\ncreate = true");
        assert_eq!(inspect(&export).expect("would be made").size, 64 << 20);
        assert!(!directory.path().join("disk.img").exists());
        assert_eq!(prepare(&export, Deadline::passed()).expect("made").size, 64 << 20);
        let path = directory.path().join("disk.img");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 0).expect("write");
        drop(file);
        prepare(&export, Deadline::passed()).expect("not overwritten");
        assert_eq!(&std::fs::read(&path).expect("read")[..4], b"data");
    }

    #[test]
    fn without_create_a_file_must_exist() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("disk.img does not exist; allowed: an existing file, or create = true"), "{message}");
    }

    #[test]
    fn a_medium_has_one_writer_or_several_readers() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let writer = export(directory.path(), "size = \"1MiB\"\ncreate = true");
        let reader = export(directory.path(), "read_only = true");
        let held = prepare(&writer, Deadline::passed()).expect("alone");
        let message = refusal(&writer);
        assert!(message.contains("disk.img is locked"), "{message}");
        refusal(&reader);
        drop(held);
        let _first = prepare(&reader, Deadline::passed()).expect("reads");
        let _second = prepare(&reader, Deadline::passed()).expect("reads too");
        refusal(&writer);
    }

    #[test]
    fn a_database_that_is_open_elsewhere_is_refused_with_a_key_that_it_has() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("disk.img");
        let text = |more: &str| format!("[[database]]\nname = \"a\"\npath = {path:?}\nsize = \"8MiB\"\n{more}");
        let database = |more: &str| {
            let config = Config::parse("awase.toml", &text(more)).expect("a good configuration");
            config.databases[0].volume.clone()
        };
        let held = prepare(&database(""), Deadline::passed()).expect("alone");
        let message = refusal(&database(""));
        assert!(message.contains("one that no other server has open, or overlay = true in both"), "{message}");
        drop(held);
        let _first = prepare(&database("overlay = true"), Deadline::passed()).expect("it is not written to");
        prepare(&database("overlay = true"), Deadline::passed()).expect("nor by the other");
    }

    #[test]
    fn a_file_of_another_size_is_never_resized() {
        let directory = tempfile::tempdir().expect("temporary directory");
        drop(prepare(&export(directory.path(), "size = \"1MiB\"\ncreate = true"), Deadline::passed()).expect("made"));
        let message = refusal(&export(directory.path(), "size = \"2MiB\"\ncreate = true"));
        assert!(message.contains("size = \"2MiB\", but "), "{message}");
        assert_eq!(std::fs::metadata(directory.path().join("disk.img")).expect("found").len(), 1 << 20);
    }

    #[test]
    fn a_file_larger_than_the_largest_volume_is_refused() {
        // A file system that can hold such a file, if only as a hole.
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { testkit::skip!("no /dev/shm") };
        let file = std::fs::File::create(directory.path().join("disk.img")).expect("made");
        if let Err(error) = file.set_len(VOLUME_BYTES_MAX + 4096) {
            testkit::skip!("no file of this size can be created: {error}");
        }
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("more than can be served"), "{message}");
        assert!(message.contains("at most 1EiB"), "{message}");
    }

    #[test]
    fn partial_sectors_empty_files_and_directories_are_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("disk.img");
        std::fs::write(&path, [0; 513]).expect("write");
        let message = refusal(&export(directory.path(), ""));
        assert!(message.contains("holds 513 bytes, not a multiple of 512"), "{message}");
        std::fs::write(&path, []).expect("write");
        refusal(&export(directory.path(), ""));
        std::fs::remove_file(&path).expect("remove");
        std::fs::create_dir(&path).expect("directory");
        refusal(&export(directory.path(), "read_only = true"));
    }
}
