//! Disks that are served, with what their clients hold.

use std::sync::{Arc, Weak};

use nbd::Export as Shared;

use crate::exports::OpenDisk;

/// An export that new clients get.
pub struct Current {
    pub served: OpenDisk,
    /// What clients hold while they use it.
    pub shared: Arc<Shared>,
    /// What clients hold who came when it was described otherwise.
    pub earlier: Vec<Weak<Shared>>,
}

/// An export that only old clients have.
pub struct Retired {
    pub served: OpenDisk,
    pub clients: Vec<Weak<Shared>>,
}

impl Current {
    /// What all its clients hold.
    pub fn clients(&self) -> Vec<Weak<Shared>> {
        let earlier = self.earlier.iter().filter(|clients| clients.strong_count() > 0).cloned();
        earlier.chain([Arc::downgrade(&self.shared)]).collect()
    }
}

/// The export as clients hold it while they use it.
pub fn share(served: &OpenDisk) -> Shared {
    Shared {
        name: served.export.name.clone(),
        description: served.export.description.clone(),
        block_size: served.export.block_size,
        volume: Arc::clone(&served.volume),
    }
}
