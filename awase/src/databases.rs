//! The databases of a server: their volumes, programs and monitors.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kernel::{Kernel, Processor};
use machine::Errno;
use policy::unit::ProcessorId;
use transactions::Monitor;
use transactions::program::{BANK, Programs};
use transactions::store::{Database as Store, OpenError, StoreError};

use crate::config::{Database, Problem, Problems};
use crate::exports::{self, OpenDisk};
use crate::media;
use crate::predecessor::Deadline;
use crate::processors::Processors;
use crate::stable_writes::Measured;

#[derive(Clone)]
pub struct OpenDatabase {
    pub database: Database,
    pub disk: OpenDisk,
    pub monitor: Arc<Monitor>,
}

/// What a new configuration adds, and what people should know of the rest.
#[derive(Default)]
pub struct Change {
    added: Vec<OpenDatabase>,
    report: Vec<String>,
    faults: Vec<String>,
}

#[derive(Default)]
pub struct Databases {
    open: Vec<OpenDatabase>,
}

impl Databases {
    pub fn open(&self) -> &[OpenDatabase] {
        &self.open
    }

    pub fn monitors(&self) -> Vec<Arc<Monitor>> {
        self.open.iter().map(|open| Arc::clone(&open.monitor)).collect()
    }

    /// Opens those of the `wanted` that are not open. Others stay as they are until a restart: transactions are under way
    /// in them.
    ///
    /// # Errors
    /// All problems; then none is open that was not before.
    pub fn plan(
        &self,
        processors: &Processors,
        measured: &mut Measured,
        wanted: &[Database],
    ) -> Result<Change, Problems> {
        let (mut problems, mut change) = (Problems::default(), Change::default());
        let deadline = Deadline::for_takeover();
        for database in wanted {
            match self.open.iter().find(|open| open.database.name == database.name) {
                None => {
                    if let Some((open, faults)) = problems.note(open(processors, measured, database, deadline)) {
                        change.added.push(open);
                        change.faults.extend(faults);
                    }
                    change.report.push(format!("database {:?} is there: {}", database.name, database.volume.medium()));
                }
                Some(open) if is_same(&open.database, database) => {}
                Some(_) => change
                    .report
                    .push(format!("database {:?} has changed, which takes effect after a restart", database.name)),
            }
        }
        let gone = self.open.iter().filter(|open| !wanted.iter().any(|database| database.name == open.database.name));
        change.report.extend(gone.map(|open| {
            format!("database {:?} is not configured any more, and closed by a restart", open.database.name)
        }));
        if problems.0.is_empty() {
            return Ok(change);
        }
        change.abandon(processors);
        Err(problems)
    }

    /// Also those that were added by `change`. Returns what has changed, and what is wrong with programs.
    pub fn apply(&mut self, change: Change) -> (Vec<String>, Vec<String>) {
        self.open.extend(change.added);
        (change.report, change.faults)
    }

    /// What is to be closed when the server ends.
    pub fn to_close(&self) -> Vec<OpenDatabase> {
        self.open.clone()
    }
}

impl Change {
    /// Closes what was opened for it.
    pub fn abandon(self, processors: &Processors) {
        for open in self.added {
            drop(processors.start_task(ProcessorId(0), move |cpu| async move { open.close(&cpu).await }));
        }
    }
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

fn is_same(open: &Database, wanted: &Database) -> bool {
    open.volume.has_same_medium(&wanted.volume) && open.programs == wanted.programs
}

fn open(
    processors: &Processors,
    measured: &mut Measured,
    database: &Database,
    deadline: Deadline,
) -> Result<(OpenDatabase, Vec<String>), Problem> {
    let kernel: &Arc<Kernel> = processors.kernel();
    let medium = media::prepare(&database.volume, deadline)?;
    let disk = exports::open_disk(kernel, measured, None, &database.volume, medium)?;
    let volume = Arc::clone(&disk.volume);
    let opened = processors.start_task(exports::home(kernel, &database.volume), move |cpu| async move {
        match Store::open(&cpu, Arc::clone(&volume)).await {
            Ok(store) => Ok(store),
            Err(error) => {
                // Nothing was changed that would have to be written.
                let _ = volume.close(&cpu).await;
                Err(error)
            }
        }
    });
    // Without an answer its processor has ended, which aborts the process.
    let store = opened.recv().map_err(|_| refused(database, "its processor has ended"))?;
    let store = store.map_err(|error| unusable(database, &error))?;
    let (programs, faults) = programs(database)?;
    let monitor = Monitor::new(database.name.clone(), store, programs);
    Ok((OpenDatabase { database: database.clone(), disk, monitor }, faults))
}

/// Those of its directory, which is made; and what is wrong with some, which keeps nobody from calling the others.
fn programs(database: &Database) -> Result<(Programs, Vec<String>), Problem> {
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
    let faults = faults.iter().map(|fault| format!("database {:?}: {fault}", database.name)).collect();
    Ok((programs, faults))
}

/// The program that the default database begins with. Its file has its name only when it is whole.
fn ship(directory: &Path) -> io::Result<()> {
    let draft = directory.join("bank.wasm.new");
    std::fs::write(&draft, BANK)?;
    std::fs::rename(&draft, directory.join("bank.wasm"))
}

fn unusable(database: &Database, error: &OpenError) -> Problem {
    let problem = refused(database, &error.to_string());
    match error {
        OpenError::TooSmall(_) => problem.allowed("a larger size"),
        OpenError::NotADatabase => problem.allowed("a new file, or one that holds a database"),
        OpenError::Shrunk { .. } => problem.allowed("the size that it had"),
        _ => problem,
    }
}

fn refused(database: &Database, why: &str) -> Problem {
    Problem::new(&database.place, database.key("path"), format!("cannot be used: {why}"))
}
