//! Opening a database: its volume, what is stored there, and its programs.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use kernel::{Kernel, Processor, Volume};
use machine::Errno;
use machine::linux::file::{Made, make_directories};
use policy::unit::ProcessorId;
use transactions::Monitor;
use transactions::program::{BANK, Fault, Programs, replace};
use transactions::store::{self, BEGINNING_BYTES, Database as Store, OpenError, StoreError};

use crate::cluster::Cluster;
use crate::config::{Database, Problem};
use crate::exports::{self, OpenDisk};
use crate::media::{self, Medium};
use crate::predecessor::Deadline;
use crate::processors::{self, Processors};
use crate::stable_writes::Measured;

#[derive(Clone)]
pub struct OpenDatabase {
    pub database: Database,
    pub disk: OpenDisk,
    pub monitor: Arc<Monitor>,
}

impl OpenDatabase {
    /// Makes a checkpoint, and everything durable.
    ///
    /// # Errors
    /// If its volume fails. What was acknowledged is durable all the same.
    pub async fn close(&self, cpu: &Processor) -> Result<(), Errno> {
        let closed = self.monitor.database().close(cpu).await;
        let written = self.disk.volume.close(cpu).await;
        match closed {
            Err(StoreError::Volume(error)) => Err(error),
            Err(_) => Err(Errno(libc::EIO)),
            Ok(()) => written,
        }
    }
}

/// Opens a database that is this server's alone. Returns its file, too, if that was made for it, and what is wrong with
/// programs.
///
/// # Errors
/// If its volume or programs cannot be used; then nothing is left of a file that was made for it.
pub fn open(
    processors: &Processors,
    measured: &mut Measured,
    database: &Database,
    deadline: Deadline,
) -> Result<(OpenDatabase, Option<Made>, Vec<String>), Problem> {
    let mut medium = media::prepare(&database.volume, deadline)?;
    let made = medium.made.take();
    match open_on(processors, measured, database, medium) {
        Ok((open, faults)) => Ok((open, made, faults)),
        Err(problem) => {
            made.into_iter().for_each(Made::remove);
            Err(problem)
        }
    }
}

fn open_on(
    processors: &Processors,
    measured: &mut Measured,
    database: &Database,
    medium: Medium,
) -> Result<(OpenDatabase, Vec<String>), Problem> {
    let disk = exports::open_disk(processors.kernel(), measured, None, &database.volume, medium)?;
    let store = match open_store(processors.kernel(), database, &disk.volume) {
        Ok(store) => store,
        Err(error) => {
            let volume = Arc::clone(&disk.volume);
            // Nothing was changed that would have to be written.
            drop(processors.start_task(ProcessorId(0), move |cpu| async move { volume.close(&cpu).await }));
            return Err(unusable(database, &error));
        }
    };
    let (programs, faults) = programs(database)?;
    let monitor = Monitor::new(database.name.clone(), store, programs);
    Ok((OpenDatabase { database: database.clone(), disk, monitor }, faults))
}

/// What is wrong with its `medium`, as far as its beginning says.
///
/// # Errors
/// If it holds something else. Nothing is said of a medium that is in use, or of one that others have, too.
pub fn inspect(database: &Database, medium: Medium) -> Result<Medium, Problem> {
    let volume = &database.volume;
    if medium.open.is_none() || medium.in_use || volume.is_on_device() || media::is_being_changed(volume) {
        return Ok(medium);
    }
    let mut beginning = [0; BEGINNING_BYTES];
    // A shorter one is too small.
    if medium.size >= BEGINNING_BYTES as u64
        && let Some(path) = volume.path()
    {
        let read = fs::File::open(path).and_then(|file| file.read_exact_at(&mut beginning, 0));
        read.map_err(|error| refused(database, &error.to_string()))?;
    }
    store::inspect(medium.size, &beginning).map_err(|error| unusable(database, &error))?;
    Ok(medium)
}

/// # Errors
/// If the host or the cluster refuses it.
pub fn open_disk(
    processors: &Processors,
    measured: &mut Measured,
    cluster: Option<&Cluster>,
    database: &Database,
    deadline: Deadline,
) -> Result<OpenDisk, Problem> {
    let medium = media::prepare(&database.volume, deadline)?;
    exports::open_disk(processors.kernel(), measured, cluster, &database.volume, medium)
}

/// # Errors
/// If there is no database on the volume and none can be made, or the volume fails.
pub fn open_store(kernel: &Arc<Kernel>, database: &Database, volume: &Arc<Volume>) -> Result<Arc<Store>, OpenError> {
    let volume = Arc::clone(volume);
    let open = move |cpu: Processor| async move { Store::open(&cpu, volume).await };
    let opened = processors::start_task(kernel, exports::home(kernel, &database.volume), open);
    // Without an answer its processor has ended, which aborts the process.
    opened.recv().unwrap_or(Err(Errno::IO.into()))
}

/// Those of its directory, which is made; and what is wrong with some, which keeps nobody from calling the others.
///
/// # Errors
/// If there can be no such directory.
pub fn programs(database: &Database) -> Result<(Programs, Vec<String>), Problem> {
    let directory = &database.programs;
    let made = if database.optional { ship(directory) } else { make_directories(directory) };
    made.map_err(|error| {
        let what = format!("= {directory:?} cannot be made: {error}");
        Problem::new(&database.place, database.key("programs"), what)
    })?;
    let (programs, faults) = Programs::load(directory);
    Ok((programs, reported(&database.name, &faults)))
}

/// What is wrong with programs of a database, as people are told.
pub fn reported(database: &str, faults: &[Fault]) -> Vec<String> {
    faults.iter().map(|fault| format!("database {database:?}: {fault}")).collect()
}

/// The directory of the default database, which begins with one program: it has its name only when that is in it. Who
/// removes the program does not get it again.
fn ship(directory: &Path) -> io::Result<()> {
    const PROGRAM: &str = "bank.wasm";
    if directory.exists() {
        // Where it was not flushed, a power cut has left it empty.
        let is_lost = fs::metadata(directory.join(PROGRAM)).is_ok_and(|found| found.len() == 0);
        return if is_lost { replace(&directory.join(PROGRAM), BANK) } else { Ok(()) };
    }
    let above = directory.parent().unwrap_or(Path::new("."));
    let draft = above.join(".bank.new");
    make_directories(&draft)?;
    replace(&draft.join(PROGRAM), BANK)?;
    fs::rename(&draft, directory)?;
    fs::File::open(above)?.sync_all()
}

pub fn unusable(database: &Database, error: &OpenError) -> Problem {
    let problem = refused(database, &error.to_string());
    match error {
        OpenError::TooSmall(_) => problem.allowed("a larger size"),
        OpenError::TooLarge(_) => problem.allowed("a smaller size"),
        OpenError::NotADatabase => problem.allowed("a new file, or one that holds a database"),
        OpenError::Shrunk { .. } => problem.allowed("the size that it had"),
        _ => problem,
    }
}

pub fn refused(database: &Database, why: &str) -> Problem {
    Problem::new(&database.place, database.key("path"), format!("cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use testkit::failing_disk::{FailingDisk, Faults};
    use testkit::skip;

    use super::*;

    #[test]
    fn the_default_databases_program_survives_a_power_cut_after_the_first_start() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let none = Faults { fsync_permille: 0, write_permille: 0, delay_permille: 0, delay_us_max: 0 };
        let mut disk = match FailingDisk::new(directory.path(), none, 1) {
            Ok(disk) => disk,
            Err(error) => skip!("nothing can be mounted by FUSE: {error}"),
        };
        let programs = directory.path().join("programs/bank");
        ship(&programs).expect("shipped");
        disk.cut(false);
        disk.mount_again().expect("mounted again");
        assert!(fs::read(programs.join("bank.wasm")).expect("there") == BANK);
    }

    #[test]
    fn the_default_databases_program_comes_again_if_it_was_lost_and_not_if_it_was_removed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let programs = directory.path().join("programs/bank");
        let shipped = || {
            ship(&programs).expect("shipped");
            fs::read(programs.join("bank.wasm")).ok()
        };
        // What a start leaves that does not end.
        fs::create_dir_all(directory.path().join("programs/.bank.new")).expect("made");
        assert!(shipped().as_deref() == Some(BANK));
        fs::write(programs.join("bank.wasm"), []).expect("emptied");
        assert!(shipped().as_deref() == Some(BANK));
        fs::remove_file(programs.join("bank.wasm")).expect("removed");
        assert_eq!(shipped(), None);
        assert_eq!(fs::read_dir(directory.path().join("programs")).expect("read").count(), 1, "no draft is left");
    }
}
