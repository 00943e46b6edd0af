//! What is served now: exports with their open volumes, and how they follow a new configuration.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kernel::export::ExportChange;
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Volume};
use policy::unit::ProcessorId;

use crate::cluster::Cluster;
use crate::config::{Disk, Export, Problem, Problems, StableWrites};
use crate::held::{self, Held, Identity};
use crate::media::{self, Medium};
use crate::overlaid::Overlaid;
use crate::predecessor::Deadline;
use crate::stable_writes::{Measured, honours_forced_writes};
use crate::stack::{Bottom, Layers, stack};

/// What is said where forced writes were configured and would not be durable.
const FLUSHED_ALL_THE_SAME: &str = "stable_writes = \"fua\" becomes a write and a flush: the file system under it is not \
                                    known to make forced writes durable";

/// An export with its open volume.
#[derive(Clone)]
pub struct OpenDisk {
    pub export: Export,
    pub volume: Arc<Volume>,
    /// Which stable writes use forced unit access.
    pub forced_unit_access: ForcedUnitAccess,
    /// If changes go beside.
    pub overlaid: Option<Arc<Overlaid>>,
    /// Of its file or device when it was opened.
    pub identity: Option<Identity>,
}

/// The disks of a server, and what it has open.
pub struct Open {
    /// New clients get them.
    pub served: Vec<OpenDisk>,
    /// Old clients have them.
    pub retired: Vec<OpenDisk>,
    pub held: Vec<Held>,
}

impl Open {
    /// The disk that is `export`, open by another name or for old clients only. What is in memory, or goes beside its file,
    /// begins anew instead.
    fn taken_over(&self, export: &Export, taken: &[&OpenDisk]) -> Option<&OpenDisk> {
        let identity = Identity::of(export)?;
        let is_it = |open: &&OpenDisk| {
            open.identity == Some(identity) && export.overlay.is_none() && open.export.has_same_medium(export)
        };
        let mut open = self.served.iter().chain(&self.retired).filter(is_it);
        open.find(|open| !taken.iter().any(|taken| Arc::ptr_eq(&taken.volume, &open.volume)))
    }
}

/// What a new configuration changes.
pub struct Change {
    /// What is served from now on, in the order of the configuration.
    pub served: Vec<OpenDisk>,
    /// What is not served to new clients any more; to be closed when the last client is gone.
    pub retired: Vec<OpenDisk>,
    pub report: Vec<String>,
}

/// Where a wanted export comes from.
enum Planned<'a> {
    /// It is open already.
    Open(&'a OpenDisk),
    /// It is open by another name, or only old clients have it.
    TakenOver(&'a OpenDisk),
    New(Medium),
}

/// Goes over from what is `served` to what is `wanted`. A disk that stays the same stays open, with its cache.
///
/// # Errors
/// Everything that stands in the way; then nothing has changed.
pub fn change(
    kernel: &Arc<Kernel>,
    measured: &mut Measured,
    cluster: Option<&Cluster>,
    open: &Open,
    wanted: &[Export],
) -> Result<Change, Problems> {
    let mut problems = Problems::default();
    let mut plan = Vec::new();
    let deadline = Deadline::for_takeover();
    let by_name: BTreeMap<&str, &OpenDisk> = open.served.iter().map(|open| (open.export.name.as_str(), open)).collect();
    let old = |export: &Export| by_name.get(export.name.as_str()).copied();
    let stays = |export: &Export| old(export).filter(|old| old.export.has_same_medium(export));
    let mut taken: Vec<&OpenDisk> = wanted.iter().filter_map(stays).collect();
    for export in wanted {
        if let Some(same) = stays(export) {
            plan.push((export, Planned::Open(same)));
        } else if let Some(same) = open.taken_over(export, &taken) {
            taken.push(same);
            plan.push((export, Planned::TakenOver(same)));
        } else {
            let opened = problems.note(prepare(export, old(export), &open.held, deadline));
            plan.extend(opened.map(|medium| (export, Planned::New(medium))));
        }
    }
    if !problems.0.is_empty() {
        for (_, how) in plan {
            if let Planned::New(Medium { made: Some(made), .. }) = how {
                made.remove_unused();
            }
        }
        return Err(problems);
    }
    let mut change = Change { served: Vec::new(), retired: Vec::new(), report: Vec::new() };
    let mut taken_over = Vec::new();
    for (export, how) in plan {
        match how {
            Planned::Open(same) => {
                change.report.extend(described(&same.export, export));
                change.served.push(OpenDisk { export: export.clone(), ..same.clone() });
            }
            Planned::TakenOver(same) => {
                let before = match same.export.name == export.name {
                    true => "again".to_owned(),
                    false => format!("before as {:?}", same.export.name),
                };
                change.report.push(format!("export {:?} is served: {}, {before}", export.name, export.medium()));
                change.report.extend(described(&same.export, export));
                taken_over.push((export, &same.volume));
                change.served.push(OpenDisk { export: export.clone(), ..same.clone() });
            }
            Planned::New(medium) => {
                change.report.push(format!("export {:?} is served: {}", export.name, export.medium()));
                kernel.note_export(&export.name, ExportChange::Added);
                if export.stable_writes == StableWrites::ForcedUnitAccess && !honours_forced_writes(export) {
                    change.report.push(format!("export {:?}: {FLUSHED_ALL_THE_SAME}", export.name));
                }
                change.served.push(open_disk(kernel, measured, cluster, export, medium)?);
            }
        }
    }
    // Nothing is refused any more.
    for (export, volume) in taken_over {
        kernel.note_export(&export.name, ExportChange::Added);
        volume.set_export(kernel.number_export(&export.name));
    }
    let volumes: HashSet<_> = change.served.iter().map(|new| Arc::as_ptr(&new.volume)).collect();
    let names: HashSet<_> = change.served.iter().map(|new| new.export.name.as_str()).collect();
    for old in &open.served {
        let is_open = volumes.contains(&Arc::as_ptr(&old.volume));
        let has_name = names.contains(old.export.name.as_str());
        if !has_name {
            change.report.push(format!("export {:?} is not served to new clients any more", old.export.name));
            kernel.note_export(&old.export.name, ExportChange::Removed);
        } else if !is_open {
            let (name, medium) = (&old.export.name, old.export.medium());
            change.report.push(format!("export {name:?} of {medium} is not served to new clients any more"));
        }
        if !is_open {
            change.retired.push(old.clone());
        }
    }
    Ok(change)
}

/// What clients that connect from now on are told otherwise of a disk that stays.
fn described(old: &Export, new: &Export) -> impl Iterator<Item = String> {
    let description = (old.description != new.description).then(|| format!("description = {:?}", new.description));
    let block_size = (old.block_size != new.block_size).then(|| format!("block_size = {}", new.block_size));
    let changes = description.into_iter().chain(block_size);
    changes.map(|change| format!("{} for clients that connect from now on", new.key(&change)))
}

fn prepare(export: &Export, old: Option<&OpenDisk>, held: &[Held], deadline: Deadline) -> Result<Medium, Problem> {
    let Some(old) = old.map(|old| &old.export) else { return prepare_medium(export, held, deadline) };
    let refused = |key, allowed| {
        let what = "stays the same while other keys change how it is served, and clients may be using it";
        Err(Problem::new(&export.place, export.key(key), what).allowed(allowed))
    };
    if old.path().is_some() && old.path() == export.path() {
        // Two caches over one file would not know of each other's changes.
        return refused("path", "a restart of the server, or another file");
    }
    if old.kind == export.kind && old.store == export.store {
        // It would begin anew.
        return refused("kind", "another name or size, with which memory is empty");
    }
    prepare_medium(export, held, deadline)
}

/// As [`media::prepare`], in a server that has the media `held`.
///
/// # Errors
/// As that, or when one of those is the export's.
fn prepare_medium(export: &Export, held: &[Held], deadline: Deadline) -> Result<Medium, Problem> {
    held::refuse(export, held.iter().filter(|held| !held.is_closing()))?;
    // What is being closed mostly ends before the deadline.
    media::prepare(export, deadline).map_err(|problem| held::refuse(export, held).err().unwrap_or(problem))
}

/// Opens the volume on a medium.
///
/// # Errors
/// When the host or the cluster refuses it.
pub fn open_disk(
    kernel: &Arc<Kernel>,
    measured: &mut Measured,
    cluster: Option<&Cluster>,
    export: &Export,
    medium: Medium,
) -> Result<OpenDisk, Problem> {
    let cluster = cluster.filter(|_| export.kind == Disk::Shared);
    let forced_unit_access = match cluster {
        Some(_) => ForcedUnitAccess::Never,
        None => measured.of_medium(export, &medium),
    };
    let (size, file, identity) = (medium.size, medium.open.clone(), Identity::of(export));
    let mut bottom = match medium.open {
        Some(open) => Bottom::File(open),
        None => Bottom::Ram { size },
    };
    let mut overlaid = None;
    if let Some(bytes_max) = export.overlay {
        let beside = media::overlay(export, bottom.device(), size, file, bytes_max)?;
        bottom = Bottom::Overlay(Arc::clone(&beside.overlay));
        overlaid = Some(Arc::new(beside));
    }
    let Export { behaviour, access, delay, faults, .. } = export.clone();
    let layers = Layers { behaviour, access, delay, faults };
    let device = stack(kernel, bottom, &layers);
    let config =
        VolumeConfig { name: export.name.clone(), read_only: export.read_only, forced_unit_access, grows: false };
    let volume = match cluster {
        Some(cluster) => cluster.open(kernel, export, device, home(kernel, export))?,
        None => Volume::open(kernel, device, config, home(kernel, export))
            .map_err(|error| Problem::new(&export.place, export.key("name"), format!("cannot be served: {error}")))?,
    };
    volume.set_export(kernel.number_export(&export.name));
    Ok(OpenDisk { export: export.clone(), volume, forced_unit_access, overlaid, identity })
}

/// The processor that writes back for the export: always the same one for a name, spread over all.
pub fn home(kernel: &Kernel, export: &Export) -> ProcessorId {
    let sum = export.name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    ProcessorId((sum % u32::from(kernel.processors())) as u16)
}
