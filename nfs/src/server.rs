//! What is served, and what all connections share.

use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{Bounds, Service};

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
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests_a_connection: 128,
            bytes_a_connection: 8 << 20,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(600),
        }
    }
}

/// What all connections share.
pub struct Server {
    limits: Limits,
    service: Arc<Service>,
}

impl Server {
    /// A server without exports.
    pub fn new(limits: Limits) -> Arc<Self> {
        let bounds = Bounds {
            requests: limits.requests_a_connection,
            bytes: limits.bytes_a_connection,
            stall_timeout: limits.stall_timeout,
        };
        Arc::new(Server { limits, service: Arc::new(Service::new(bounds)) })
    }

    /// How much a client may have.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its connections, and how they end: [`Service::stop`], [`Service::give_up`], [`Service::changed`].
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }
}
