//! The volume of a shared disk.

use std::sync::Arc;

use dsm::Shared;
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Volume};
use policy::unit::ProcessorId;

use crate::config::{Export, Problem};

/// The volume in whose cache a shared disk's blocks are.
pub(super) fn volume_of(
    kernel: &Arc<Kernel>,
    export: &Export,
    shared: &Arc<Shared>,
    home: ProcessorId,
) -> Result<Arc<Volume>, Problem> {
    let config = VolumeConfig {
        name: export.name.clone(),
        read_only: export.read_only,
        forced_unit_access: ForcedUnitAccess::Never,
        grows: false,
    };
    let volume = Volume::open_shared(kernel, shared.clone(), shared.clone(), config, home)
        .map_err(|error| Problem::new(&export.place, export.key("name"), format!("cannot be served: {error}")))?;
    shared.set_volume(&volume);
    Ok(volume)
}
