//! What is served, and what all connections share.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use kernel::connection::{Bounds, Service};

use crate::call::ClientAddress;
use crate::export::Export;
use crate::handle::{ExportId, HandleKey};
use crate::mount::MountList;
use crate::replay::{Replay, ReplayLimits};

/// How much a client may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls under way on one connection.
    pub requests_a_connection: usize,
    /// Payload of the calls under way on one connection, in bytes. One call always passes.
    pub bytes_a_connection: u64,
    /// A client that takes so long over one record, or to take its replies, is disconnected.
    pub stall_timeout: Duration,
    /// A client that has said nothing for so long is disconnected; clients connect again when they have something to say.
    pub idle_timeout: Duration,
    /// Replies kept for calls that are sent again.
    pub replay: ReplayLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests_a_connection: 128,
            bytes_a_connection: 8 << 20,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(600),
            replay: ReplayLimits::default(),
        }
    }
}

pub struct Server {
    key: HandleKey,
    limits: Limits,
    service: Arc<Service>,
    exports: Mutex<Arc<[Arc<Export>]>>,
    replay: Replay,
    /// Of WRITEs alone: they are many, and would leave no room for the others.
    writes: Replay,
    mounts: MountList,
    /// Of which was reported that their port is refused.
    unprivileged: Mutex<HashSet<IpAddr>>,
    report: OnceLock<fn(&str)>,
}

/// Clients of which is reported that their port is refused, at most.
const REPORTED_MAX: usize = 1024;

impl Server {
    /// A server of these exports. `key`: the secret with which handles are made; clients can go on after a restart only
    /// if it is still the same.
    pub fn new(key: [u8; 32], limits: Limits, exports: Vec<Arc<Export>>) -> Arc<Self> {
        let bounds = Bounds {
            requests: limits.requests_a_connection,
            bytes: limits.bytes_a_connection,
            stall_timeout: limits.stall_timeout,
        };
        Arc::new(Server {
            key: HandleKey::new(key),
            service: Arc::new(Service::new(bounds)),
            replay: Replay::new(limits.replay),
            writes: Replay::new(limits.replay),
            limits,
            exports: Mutex::new(exports.into()),
            mounts: MountList::default(),
            unprivileged: Mutex::default(),
            report: OnceLock::new(),
        })
    }

    /// How much a client may have.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its connections, and how they end: [`Service::stop`], [`Service::give_up`], [`Service::changed`].
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    pub fn exports(&self) -> Arc<[Arc<Export>]> {
        Arc::clone(&self.exports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Goes over to other exports. Handles of those that are gone are stale from now on.
    pub fn set_exports(&self, exports: Vec<Arc<Export>>) {
        *self.exports.lock().unwrap_or_else(PoisonError::into_inner) = exports.into();
    }

    /// Has `report` say to people what they should know, a line each.
    pub fn report_to(&self, report: fn(&str)) {
        // Whoever was first stays.
        let _ = self.report.set(report);
    }

    /// A client was refused for its port: said once of each.
    pub(crate) fn note_unprivileged(&self, client: ClientAddress, export: &Export) {
        let ClientAddress::Ip(address) = client else { return };
        let mut reported = self.unprivileged.lock().unwrap_or_else(PoisonError::into_inner);
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
