//! The workstation of 1990 as parameters: its disk, its file system, its processor.

use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::NVME_2026;
use crate::drive::mechanical::Mechanical;
use crate::model::Virtual;
use crate::model::disk::Disk;
use crate::model::ffs::layout::Format;
use crate::model::ffs::{Costs, FileSystem};
use policy::{queue, readahead};

use super::Run;

/// Stands for no deadline: the paper's system had none.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// Without a device of 2026.
pub(super) fn is_of_1991(run: &Run<'_>) -> bool {
    run.get("disk.nvme") < 0.5
}

pub(super) fn drive(run: &Run<'_>) -> Drive {
    if is_of_1991(run) { Drive::Mechanical(Mechanical::of(run.parameters)) } else { Drive::Flash(NVME_2026) }
}

pub(super) fn drive_on_bus(run: &Run<'_>, name: &'static str) -> Drive {
    let model = Mechanical::named(name);
    let bus = Mechanical::of(run.parameters).bus_bytes_per_second;
    Drive::Mechanical(Mechanical { bus_bytes_per_second: model.bus_bytes_per_second.min(bus), ..model })
}

/// The file system of the parameters, on that disk with that drive.
pub(super) fn file_system(
    run: &Run<'_>,
    time: &Virtual,
    (disk, drive): (&Disk, &Drive),
    rotdelay_ms: f64,
    ahead: readahead::Mode,
) -> FileSystem {
    // Without mechanics, the file system gets the geometry of the disk that the device stands for.
    let geometry = if let Drive::Mechanical(model) = drive { *model } else { Mechanical::of(run.parameters) };
    let format = Format {
        block_bytes: (run.get("fs.block") * 1024.0) as u64,
        sector_bytes: u64::from(geometry.sector_bytes),
        sectors_per_track: u64::from(geometry.sectors_per_track),
        heads: u64::from(geometry.heads),
        cylinders: u64::from(geometry.cylinders),
        rotations_per_second: f64::from(geometry.rpm) / 60.0,
        cylinders_per_group: run.get("fs.cylinders_per_group") as u64,
        rotdelay_ms,
        maxcontig: run.get("fs.maxcontig") as u64,
        maxbpg: run.get("fs.maxbpg") as u64,
        ..Format::NEWFS
    };
    let costs = Costs { call: run.ms("cpu.call"), block: run.ms("cpu.block") };
    // The dynamic buffer cache (section 2) may take nearly all of the memory of 64 MB.
    let buffers = (56 << 20) / format.block_bytes;
    FileSystem::new(time, disk, format, costs, buffers, readahead::Config { mode: ahead, streams_max: 16 })
}

/// The queue of 4.3BSD's `disksort`, in order of position, with only the given techniques of the policy.
pub(super) fn queue(run: &Run<'_>, merge_bytes_max: Option<u32>, priority: bool) -> queue::Config {
    queue::Config {
        merge: merge_bytes_max.is_some(),
        priority,
        elevator: true,
        transfer_bytes_max: merge_bytes_max.unwrap_or(0),
        depth: run.get("queue.depth") as u16,
        asynchronous_deadline: NEVER,
        synchronous_deadline: NEVER,
        ..queue::Config::default()
    }
}
