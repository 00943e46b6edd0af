//! The protocol: its exports, and what all sessions share.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kernel::connection::{self, Sessions};
use parking_lot::Mutex;

use crate::client::ClientAddress;
use crate::export::Export;
use crate::handle::{ExportId, HandleKey};
use crate::mount_list::MountList;
use crate::replay::{Replay, ReplayLimits};

/// A silent client is disconnected after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Limits of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connection: connection::Limits,
    /// The duplicate-request cache.
    pub replay: ReplayLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            // Clients reconnect when necessary.
            connection: connection::Limits { idle_timeout: Some(IDLE_TIMEOUT), ..connection::Limits::default() },
            replay: ReplayLimits::default(),
        }
    }
}

/// NFS and MOUNT, with their exports.
pub struct Nfs {
    key: HandleKey,
    pub(crate) sessions: Arc<Sessions>,
    exports: Mutex<Arc<[Arc<Export>]>>,
    replay: Replay,
    /// For WRITEs only: they are many, and would leave no room for other replies.
    writes: Replay,
    mounts: MountList,
    /// Clients whose refused port was reported.
    unprivileged: Mutex<HashSet<IpAddr>>,
    report: OnceLock<fn(&str)>,
}

/// Size of that set.
const REPORTED_MAX: usize = 1024;

impl Nfs {
    /// `key`: the secret from which handles are made. Handles survive a restart only if it stays the same.
    pub fn new(key: [u8; 32], limits: Limits, exports: Vec<Arc<Export>>) -> Arc<Self> {
        Arc::new(Nfs {
            key: HandleKey::new(key),
            sessions: Arc::new(Sessions::new(limits.connection)),
            replay: Replay::new(limits.replay),
            writes: Replay::new(limits.replay),
            exports: Mutex::new(exports.into()),
            mounts: MountList::default(),
            unprivileged: Mutex::default(),
            report: OnceLock::new(),
        })
    }

    pub fn exports(&self) -> Arc<[Arc<Export>]> {
        Arc::clone(&self.exports.lock())
    }

    /// Replaces the exports. Handles of removed ones become stale.
    pub fn set_exports(&self, exports: Vec<Arc<Export>>) {
        *self.exports.lock() = exports.into();
    }

    /// Sets the function that reports to the operator, a line each. The first call wins.
    pub fn report_to(&self, report: fn(&str)) {
        let _ = self.report.set(report);
    }

    /// A client was refused for its port: reported once per client.
    pub(crate) fn note_unprivileged(&self, client: ClientAddress, export: &Export) {
        let ClientAddress::Ip(address) = client else { return };
        let mut reported = self.unprivileged.lock();
        let is_new = reported.len() < REPORTED_MAX && reported.insert(address.ip().to_canonical());
        drop(reported);
        if let Some(report) = self.report.get().filter(|_| is_new) {
            let (name, port) = (&export.config().name, address.port());
            report(&format!(
                "{} was refused at {name}: port {port} is not below 1024, so any user there may claim to be any other. \
                 Clients in user space (libnfs) need secure = false for this export, those of this host \
                 listen.nfs_unix",
                address.ip().to_canonical()
            ));
        }
    }

    pub(crate) fn find(&self, id: ExportId) -> Option<Arc<Export>> {
        self.exports().iter().find(|export| export.id() == id).cloned()
    }

    pub(crate) fn key(&self) -> &HandleKey {
        &self.key
    }

    pub(crate) fn replay(&self) -> &Replay {
        &self.replay
    }

    pub(crate) fn writes(&self) -> &Replay {
        &self.writes
    }

    pub(crate) fn mounts(&self) -> &MountList {
        &self.mounts
    }
}
