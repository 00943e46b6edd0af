//! Exports and their limits.

use std::sync::Arc;

use kernel::Volume;
use kernel::connection::{Limits, Sessions};
use parking_lot::Mutex;

use crate::proto::flag;

/// Longest name of an export, in bytes ("Values", string length).
pub const NAME_BYTES_MAX: usize = 4096;

/// Largest request, in bytes: advertised as the maximum block size.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// An exported volume. Connections hold it for their life.
pub struct Export {
    pub name: String,
    pub description: String,
    /// Minimum block size, in bytes: a power of two up to 4096.
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

/// The NBD protocol and its exports.
pub struct Nbd {
    exports: Mutex<Arc<[Arc<Export>]>>,
    pub(crate) sessions: Arc<Sessions>,
}

impl Nbd {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Nbd { exports: Mutex::new(Arc::from([])), sessions: Arc::new(Sessions::new(limits)) })
    }

    /// The exports for new clients. The first one is also the default (empty name).
    pub fn exports(&self) -> Arc<[Arc<Export>]> {
        Arc::clone(&self.exports.lock())
    }

    /// Replaces the exports; connected clients keep theirs.
    pub fn set_exports(&self, exports: Vec<Arc<Export>>) {
        *self.exports.lock() = exports.into();
    }

    /// New clients of an export get another volume; connected ones have theirs.
    pub fn replace_volume(&self, name: &str, volume: &Arc<Volume>) {
        let mut exports = self.exports.lock();
        let replaced = |export: &Arc<Export>| {
            if export.name != name {
                return Arc::clone(export);
            }
            let Export { name, description, block_size, .. } = &**export;
            let (name, description, block_size) = (name.clone(), description.clone(), *block_size);
            Arc::new(Export { name, description, block_size, volume: Arc::clone(volume) })
        };
        *exports = exports.iter().map(replaced).collect();
    }

    /// The export of that name.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let all = self.exports();
        let named = all.iter().find(|export| export.name == name);
        named.or(all.first().filter(|_| name.is_empty())).cloned()
    }
}
