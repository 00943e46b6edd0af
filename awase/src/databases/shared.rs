//! A database on a shared disk: open at one node at a time. At the others terminals are told where, and when that node is
//! no member of the cluster any more, another one opens it.
//!
//! A thread of its own asks etcd whose it is ([`Claims`]), opens it, and closes it when this node has lost its lease and
//! begun anew, with another volume; what the old one would still write is refused by the other nodes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kernel::Kernel;
use parking_lot::Mutex;
use policy::coherence::Address;
use transactions::Monitor;
use transactions::counters::Counters;
use transactions::store::{OpenError, StoreError};
use transactions::terminal::Terminals;

use super::open::{OpenDatabase, open_store, programs, unusable};
use crate::cluster::joined::Node;
use crate::config::{Database, Problem};
use crate::exports::{self, OpenDisk};
use crate::membership::{Claim, Claims};
use crate::processors;
use crate::tell::tell;

/// The longest time between two questions whose it is; a change of the membership is a reason to ask, too.
const RETRY: Duration = Duration::from_secs(1);

/// The same after this node alone could not open it: others should have it meanwhile.
const PROBLEM_RETRY: Duration = Duration::from_secs(30);

pub struct SharedDatabase {
    database: Database,
    /// As it was opened first: later incarnations of this node have other volumes.
    disk: OpenDisk,
    kernel: Arc<Kernel>,
    node: Arc<Node>,
    claims: Mutex<Claims>,
    terminals: OnceLock<Arc<Terminals>>,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<OpenDatabase>,
    /// As which node it was opened first.
    opened_as: Option<Address>,
    /// Why it is not.
    absence: String,
    is_stopped: bool,
}

/// Why it is not open here.
enum Absence {
    /// It may be later.
    For(String),
    Problem(Problem),
}

impl SharedDatabase {
    /// Opens it if no other node has it.
    ///
    /// # Errors
    /// If it can never be opened.
    pub fn begin(
        kernel: &Arc<Kernel>,
        (node, claims): (&Arc<Node>, Claims),
        database: &Database,
        disk: OpenDisk,
    ) -> Result<Arc<SharedDatabase>, Problem> {
        let shared = Arc::new(SharedDatabase {
            database: database.clone(),
            disk,
            kernel: Arc::clone(kernel),
            node: Arc::clone(node),
            claims: Mutex::new(claims),
            terminals: OnceLock::new(),
            counters: Arc::default(),
            state: Mutex::default(),
        });
        match shared.attempt() {
            Err(Absence::Problem(problem)) => Err(problem),
            Err(Absence::For(why)) => {
                shared.note_absence(why);
                Ok(shared)
            }
            Ok(address) => {
                shared.state.lock().opened_as = Some(address);
                Ok(shared)
            }
        }
    }

    pub fn described(&self) -> (&Database, &OpenDisk) {
        (&self.database, &self.disk)
    }

    /// Offers it from now on, whenever it is open here.
    pub fn offer_to(self: &Arc<Self>, terminals: &Arc<Terminals>) {
        let state = self.state.lock();
        match &state.open {
            Some(open) => terminals.offer(Arc::clone(&open.monitor)),
            None => terminals.withdraw(&self.database.name, state.absence.clone()),
        }
        let _ = self.terminals.set(Arc::clone(terminals));
        drop(state);
        let own = Arc::clone(self);
        if let Err(error) = std::thread::Builder::new().name("database".into()).spawn(move || own.follow()) {
            self.print(&format!("is not followed: cannot start a thread: {error}"));
        }
    }

    /// Opens it no more. Returns what is to be closed.
    pub fn stop(&self) -> Option<OpenDatabase> {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.open.take()
    }

    /// Opens it whenever no other node has it.
    fn follow(&self) {
        let mut held = self.state.lock().opened_as;
        while !self.state.lock().is_stopped {
            if held.is_some() && held == self.node.address() {
                self.node.until_changed(RETRY);
                continue;
            }
            if held.take().is_some() {
                self.close();
            }
            held = match self.attempt() {
                Ok(address) => Some(address),
                Err(absence) => {
                    self.note_absence(absence.to_string());
                    self.node.until_changed(absence.retry());
                    None
                }
            };
        }
    }

    fn attempt(&self) -> Result<Address, Absence> {
        let absent = |why: &str| Err(Absence::For(why.to_owned()));
        let Some(address) = self.node.serves_as() else { return absent("is not open: this node has no lease now") };
        match self.claims.lock().claim(&self.database.name, address.incarnation) {
            Ok(Claim::Own) => {}
            Ok(Claim::Other(node)) => return absent(&format!("is open at node {node:?}")),
            Err(problem) => return absent(&format!("is not open: {problem}")),
        }
        let opened = self.open_as(address);
        if opened.is_err() {
            self.release(address);
        }
        opened.map(|()| address)
    }

    /// Opens it, which no other node does meanwhile.
    fn open_as(&self, address: Address) -> Result<(), Absence> {
        let absent = |why: &str| Err(Absence::For(why.to_owned()));
        let Some(volume) = self.node.volume_as(address, &self.database.name) else {
            return absent("is not open: this node's lease was over");
        };
        let store = match open_store(&self.kernel, &self.database, &volume) {
            Ok(store) => store,
            // Other nodes may have to come first.
            Err(OpenError::Store(error @ (StoreError::Volume(_) | StoreError::LeaseOver))) => {
                return absent(&format!("cannot be opened: {error}"));
            }
            Err(error) => return Err(Absence::Problem(unusable(&self.database, &error))),
        };
        let (programs, faults) = programs(&self.database).map_err(Absence::Problem)?;
        faults.iter().for_each(tell);
        let monitor = Monitor::counting(self.database.name.clone(), store, programs, Arc::clone(&self.counters));
        let disk = OpenDisk { volume, ..self.disk.clone() };
        self.publish(OpenDatabase { database: self.database.clone(), disk, monitor });
        Ok(())
    }

    /// Other nodes may open it.
    fn release(&self, address: Address) {
        if let Err(problem) = self.claims.lock().release(&self.database.name, address.incarnation) {
            self.print(&format!("may stay claimed by this node: {problem}"));
        }
    }

    fn publish(&self, open: OpenDatabase) {
        let mut state = self.state.lock();
        if state.is_stopped {
            return;
        }
        if let Some(terminals) = self.terminals.get() {
            terminals.offer(Arc::clone(&open.monitor));
            self.print("is open at this node now");
        }
        state.open = Some(open);
        state.absence.clear();
    }

    /// Its volume has ended: sessions get errors.
    fn close(&self) {
        let Some(open) = self.state.lock().open.take() else { return };
        self.note_absence("is not open: this node's lease was over".to_owned());
        let home = exports::home(&self.kernel, &self.database.volume);
        drop(processors::start_task(&self.kernel, home, move |cpu| async move { open.close(&cpu).await }));
    }

    fn note_absence(&self, why: String) {
        let mut state = self.state.lock();
        if state.absence != why {
            self.print(&why);
            if let Some(terminals) = self.terminals.get() {
                terminals.withdraw(&self.database.name, why.clone());
            }
            state.absence = why;
        }
    }

    fn print(&self, what: &str) {
        tell(format_args!("database {:?} {what}", self.database.name));
    }
}

impl Absence {
    /// The longest time until it is tried again.
    fn retry(&self) -> Duration {
        match self {
            Absence::For(_) => RETRY,
            Absence::Problem(_) => PROBLEM_RETRY,
        }
    }
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absence::For(why) => f.write_str(why),
            Absence::Problem(problem) => {
                write!(f, "cannot be opened: {problem}; tried again every {} s", PROBLEM_RETRY.as_secs())
            }
        }
    }
}
