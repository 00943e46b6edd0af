//! Disks that are served, with what their clients hold.

use std::sync::{Arc, Weak};

use nbd::Export as Shared;

use crate::exports::{Open, OpenDisk};
use crate::held::{Held, Holder};

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

/// The disks of a server, with what databases and disks that are being closed have open.
pub fn open_disks<'a>(
    served: &'a [Current],
    retired: &[Retired],
    closing: impl Iterator<Item = &'a Held>,
    databases: impl Iterator<Item = &'a OpenDisk>,
) -> Open {
    let held = |disk: &OpenDisk, by| Held::new(&disk.export, disk.identity, by);
    let clients = |old: &Retired| old.clients.iter().map(Weak::strong_count).sum();
    let current = served.iter().map(|current| &current.served).chain(databases);
    let old = retired.iter().map(|old| held(&old.served, Holder::Retired { clients: clients(old) }));
    Open {
        held: current.map(|disk| held(disk, Holder::Served)).chain(old).chain(closing.cloned()).collect(),
        served: served.iter().map(|current| current.served.clone()).collect(),
        retired: retired.iter().map(|old| old.served.clone()).collect(),
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
