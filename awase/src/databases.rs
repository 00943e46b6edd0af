//! The databases of a server: their volumes, programs and monitors.

mod open;
mod shared;

pub use open::inspect;

use std::sync::Arc;

use machine::linux::file::Made;
use policy::unit::ProcessorId;
use transactions::Monitor;
use transactions::terminal::Terminals;

use crate::cluster::Cluster;
use crate::config::{Database, Disk, Problem, Problems};
use crate::exports::OpenDisk;
use crate::held::{self, Held};
use crate::predecessor::Deadline;
use crate::processors::Processors;
use crate::stable_writes::Measured;
use open::{OpenDatabase, open, open_disk, refused};
use shared::SharedDatabase;

/// What a new configuration adds, and what people should know of the rest.
#[derive(Default)]
pub struct Change {
    /// With their files, if those were made for them.
    added: Vec<(OpenDatabase, Option<Made>)>,
    shared: Vec<Arc<SharedDatabase>>,
    report: Vec<String>,
    faults: Vec<String>,
}

#[derive(Default)]
pub struct Databases {
    open: Vec<OpenDatabase>,
    /// On shared disks: perhaps open at another node.
    shared: Vec<Arc<SharedDatabase>>,
}

impl Databases {
    /// All that are configured, with their volumes.
    pub fn all(&self) -> impl Iterator<Item = (&Database, &OpenDisk)> {
        let shared = self.shared.iter().map(|shared| shared.described());
        self.open.iter().map(|open| (&open.database, &open.disk)).chain(shared)
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
        cluster: Option<&Cluster>,
        wanted: &[Database],
        held: &[Held],
    ) -> Result<Change, Problems> {
        let (mut problems, mut change) = (Problems::default(), Change::default());
        let deadline = Deadline::for_takeover();
        for database in wanted {
            match self.all().find(|(open, _)| open.name == database.name) {
                None => {
                    let open = held.iter().filter(|held| !held.is_closing());
                    let refused = held::refuse(&database.volume, open);
                    problems.note(refused.and_then(|()| change.add(processors, measured, cluster, database, deadline)));
                    change.report.push(format!("database {:?} is there: {}", database.name, database.volume.medium()));
                }
                Some((open, _)) if is_same(open, database) => {}
                Some(_) => change
                    .report
                    .push(format!("database {:?} has changed, which takes effect after a restart", database.name)),
            }
        }
        let gone = self.all().filter(|(open, _)| !wanted.iter().any(|database| database.name == open.name));
        change.report.extend(
            gone.map(|(open, _)| {
                format!("database {:?} is not configured any more, and closed by a restart", open.name)
            }),
        );
        if problems.0.is_empty() {
            return Ok(change);
        }
        change.abandon(processors);
        Err(problems)
    }

    /// Offers those that were added by `change`, too, and loads the programs of the others again. Returns what has changed,
    /// and what is wrong with programs.
    pub fn apply(&mut self, terminals: &Arc<Terminals>, change: Change) -> (Vec<String>, Vec<String>) {
        let mut faults = change.faults;
        faults.extend(load_programs(terminals));
        change.added.iter().for_each(|(open, _)| terminals.offer(Arc::clone(&open.monitor)));
        change.shared.iter().for_each(|shared| shared.offer_to(terminals));
        self.open.extend(change.added.into_iter().map(|(open, _)| open));
        self.shared.extend(change.shared);
        (change.report, faults)
    }

    /// What is to be closed when the server ends. Nothing is opened after that.
    pub fn to_close(&self) -> Vec<OpenDatabase> {
        let shared = self.shared.iter().filter_map(|shared| shared.stop());
        self.open.iter().cloned().chain(shared).collect()
    }
}

impl Change {
    fn add(
        &mut self,
        processors: &Processors,
        measured: &mut Measured,
        cluster: Option<&Cluster>,
        database: &Database,
        deadline: Deadline,
    ) -> Result<(), Problem> {
        if database.volume.kind == Disk::Shared {
            let joined = cluster.and_then(Cluster::joined).ok_or_else(|| refused(database, "there is no cluster"))?;
            let disk = open_disk(processors, measured, cluster, database, deadline)?;
            self.shared.push(SharedDatabase::begin(processors.kernel(), joined, database, disk)?);
        } else {
            let (open, made, faults) = open(processors, measured, database, deadline)?;
            self.added.push((open, made));
            self.faults.extend(faults);
        }
        Ok(())
    }

    /// Closes what was opened for it, and removes the files that were made for it. Shared ones are added by a start only, which
    /// has failed then: their claims end with this node's lease, before which no other node may open them.
    pub fn abandon(self, processors: &Processors) {
        for (open, made) in self.added {
            made.into_iter().for_each(Made::remove);
            drop(processors.start_task(ProcessorId(0), move |cpu| async move { open.close(&cpu).await }));
        }
    }
}

/// Loads the programs of all that are open again; transactions under way end with what they began with. Returns what is
/// wrong with them, and which are gone.
pub fn load_programs(terminals: &Terminals) -> Vec<String> {
    let load = |monitor: &Arc<Monitor>| {
        let (name, before) = (monitor.name(), monitor.programs().programs());
        let mut report = open::reported(name, &monitor.programs().reload());
        let now = monitor.programs().programs();
        let gone =
            before.iter().map(|program| program.name()).filter(|of| now.iter().all(|program| program.name() != *of));
        report.extend(
            gone.map(|program| format!("database {name:?}: the program {program} is gone, with its functions")),
        );
        report
    };
    terminals.databases().iter().flat_map(load).collect()
}

fn is_same(open: &Database, wanted: &Database) -> bool {
    open.volume.has_same_medium(&wanted.volume) && open.programs == wanted.programs
}
