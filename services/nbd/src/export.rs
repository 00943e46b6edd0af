//! What is served, to whom at most, and how much at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernel::Volume;
use kernel::connection::{Bounds, Service};

use crate::proto::flag;

/// Longest name of an export, in bytes ("Values", string length).
pub const NAME_BYTES_MAX: usize = 4096;

/// Largest request, in bytes: what is advertised as the maximum block size.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// A volume with a name. A connection holds it for its whole life.
pub struct Export {
    /// The name that clients ask for.
    pub name: String,
    pub description: String,
    /// Smallest unit of a request, in bytes: a power of two up to 4096.
    pub block_size: u32,
    pub volume: Arc<Volume>,
}

impl Export {
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.volume.read_only() {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.volume.facts().rotational {
            flags |= flag::ROTATIONAL;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// How much a client may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests under way on one connection.
    pub requests_a_connection: usize,
    /// Payload of the requests under way on one connection, in bytes. One request always passes.
    pub bytes_a_connection: u64,
    /// A client that takes so long for a request's header, or for a piece (1 MiB at most) of its payload, is disconnected.
    pub stall_timeout: Duration,
    /// A client that has not chosen an export after so long is disconnected.
    pub negotiation_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests_a_connection: 128,
            bytes_a_connection: 8 << 20,
            stall_timeout: Duration::from_secs(60),
            negotiation_timeout: Duration::from_secs(30),
        }
    }
}

pub struct Server {
    limits: Limits,
    exports: Mutex<Arc<[Arc<Export>]>>,
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
        Arc::new(Server { limits, exports: Mutex::new(Arc::from([])), service: Arc::new(Service::new(bounds)) })
    }

    /// Its connections, and how they end: [`Service::stop`], [`Service::give_up`], [`Service::changed`].
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// How much a client may have.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What clients that come now may have. The first also answers to the empty name.
    pub fn exports(&self) -> Arc<[Arc<Export>]> {
        Arc::clone(&self.exports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Goes over to other exports; clients keep what they have.
    pub fn set_exports(&self, exports: Vec<Arc<Export>>) {
        *self.exports.lock().unwrap_or_else(PoisonError::into_inner) = exports.into();
    }

    /// The export of that name.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let all = self.exports();
        let named = all.iter().find(|export| export.name == name);
        named.or(all.first().filter(|_| name.is_empty())).cloned()
    }
}
