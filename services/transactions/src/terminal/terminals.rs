//! All terminals of a server: what they may connect to, and as whom.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::connection::{Limits, Sessions};
use parking_lot::RwLock;

use super::budget::Budgets;
use super::cancel::Cancels;
use super::scram::{Verifier, derive};
use crate::Monitor;
use crate::counters::{Counted, Counters};

/// A client's name, and what is known of its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub verifier: Verifier,
}

/// The protocol: clients call functions of databases.
pub struct Terminals {
    pub(super) sessions: Arc<Sessions>,
    pub(super) cancels: Arc<Cancels>,
    pub(super) budgets: Budgets,
    databases: RwLock<Arc<[Arc<Monitor>]>>,
    /// Of all databases that were ever open, by their names: what was counted is not forgotten when one is open elsewhere.
    counters: RwLock<BTreeMap<String, Arc<Counters>>>,
    /// Why others that are configured are not open here, by their names.
    absent: RwLock<BTreeMap<String, String>>,
    /// Without any, everybody may connect under any name.
    users: RwLock<Arc<[User]>>,
    /// From which keys and nonces are derived.
    pub(super) secret: [u8; 32],
    derived: AtomicU64,
}

impl Terminals {
    /// `secret`: random, and of this server's run alone.
    pub fn new(limits: Limits, secret: [u8; 32]) -> Arc<Terminals> {
        Arc::new(Terminals {
            sessions: Arc::new(Sessions::new(limits)),
            cancels: Arc::default(),
            budgets: Budgets::default(),
            databases: RwLock::new(Arc::new([])),
            counters: RwLock::default(),
            absent: RwLock::default(),
            users: RwLock::new(Arc::new([])),
            secret,
            derived: AtomicU64::new(0),
        })
    }

    /// New sessions may connect to it.
    pub fn offer(&self, monitor: Arc<Monitor>) {
        self.absent.write().remove(monitor.name());
        self.counters.write().insert(monitor.name().to_owned(), Arc::clone(monitor.counters()));
        let mut databases = self.databases.write();
        *databases = databases.iter().cloned().chain([monitor]).collect();
    }

    /// New sessions may not connect to it, and are told why (`is …`). Those that there are keep it.
    pub fn withdraw(&self, database: &str, why: String) {
        let mut databases = self.databases.write();
        *databases = databases.iter().filter(|monitor| monitor.name() != database).cloned().collect();
        self.absent.write().insert(database.to_owned(), why);
    }

    pub fn databases(&self) -> Arc<[Arc<Monitor>]> {
        Arc::clone(&self.databases.read())
    }

    /// What was counted of each database since the start, also of those that are not open here any more.
    pub fn counted(&self) -> Vec<(String, Counted)> {
        self.counters.read().iter().map(|(name, counters)| (name.clone(), counters.read())).collect()
    }

    /// Those who may begin new sessions; none: everybody, without a password.
    pub fn set_users(&self, users: Vec<User>) {
        *self.users.write() = users.into();
    }

    pub(super) fn users(&self) -> Arc<[User]> {
        Arc::clone(&self.users.read())
    }

    pub(super) fn find(&self, database: &str) -> Option<Arc<Monitor>> {
        self.databases.read().iter().find(|monitor| monitor.name() == database).cloned()
    }

    pub(super) fn absence(&self, database: &str) -> Option<String> {
        self.absent.read().get(database).cloned()
    }

    /// Never returned before.
    pub(super) fn fresh(&self) -> [u8; 8] {
        self.derived.fetch_add(1, Ordering::Relaxed).to_be_bytes()
    }

    /// A key for cancel requests.
    pub(super) fn cancel_key(&self) -> i32 {
        let bytes = derive(&self.secret, b"cancel", &self.fresh());
        i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}
