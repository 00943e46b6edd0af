//! Opening a database: its volume, what is stored there, and its programs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kernel::{Kernel, Processor, Volume};
use machine::Errno;
use policy::unit::ProcessorId;
use transactions::Monitor;
use transactions::program::{BANK, Fault, Programs};
use transactions::store::{Database as Store, OpenError, StoreError};

use crate::cluster::Cluster;
use crate::config::{Database, Problem};
use crate::exports::{self, OpenDisk};
use crate::media;
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

/// Opens a database that is this server's alone. Returns what is wrong with programs, too.
///
/// # Errors
/// If its volume or programs cannot be used.
pub fn open(
    processors: &Processors,
    measured: &mut Measured,
    database: &Database,
    deadline: Deadline,
) -> Result<(OpenDatabase, Vec<String>), Problem> {
    let disk = open_disk(processors, measured, None, database, deadline)?;
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
    let is_new = !directory.exists();
    let made = std::fs::create_dir_all(directory).and_then(|()| match is_new && database.optional {
        true => ship(directory),
        false => Ok(()),
    });
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

/// The program that the default database begins with. Its file has its name only when it is whole.
fn ship(directory: &Path) -> io::Result<()> {
    let draft = directory.join("bank.wasm.new");
    std::fs::write(&draft, BANK)?;
    std::fs::rename(&draft, directory.join("bank.wasm"))
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
