//! The workstation of 1990 as parameters: its disk, its file system, its processor.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::Virtual;
use crate::model::disk::Disk;
use crate::model::ffs::layout::Format;
use crate::model::ffs::{Costs, FileSystem};
use machine::drive::Drive;
use machine::drive::mechanical::{Mechanical, SeekCurve};
use policy::{queue, readahead};

use super::Run;
use crate::parameter::{Origin, Parameter};

const MKFS: &str = "what newfs of 4.3BSD makes it; McKusick et al., A Fast File System for UNIX, ACM TOCS 2(3), 1984";
const INSTRUCTIONS: &str = "some 60,000 instructions, with their cache misses, to find or take a block, copy 8 KB and \
                            queue it, on the 25 MIPS of the paper's table 1: a judgement";
const JUDGED: &str = "a judgement, where data sheet and driver table are silent: disks of 1989 to 1991 take 0.5 to 2 ms from \
                      head to head and 1 to 5 ms for a command, and twice their mean seek for the longest one";
/// As long as no deadline: the paper's system had none.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// One parameter; a shorter way to write a list of them.
pub(super) fn parameter(
    (name, unit): (&'static str, &'static str),
    about: &'static str,
    default: f64,
    range: RangeInclusive<f64>,
    origin: Origin,
) -> Parameter {
    Parameter { name, about, unit, default, range, origin }
}

/// A drive's data sheet as parameters, so that each can be set.
pub(super) fn disk_parameters(drive: &'static str, bus: (f64, Origin)) -> Vec<Parameter> {
    let Some(Drive::Mechanical(drive)) = Drive::named(drive) else { return Vec::new() };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let sheet = Origin::Published(drive.source);
    let judged = Origin::Chosen(JUDGED);
    let p = |named, about, default, range| parameter(named, about, default, range, sheet);
    let seek = drive.seek;
    vec![
        p(("disk.rpm", "rpm"), "rotations a minute", f64::from(drive.rpm), 300.0..=20_000.0),
        p(
            ("disk.sectors_per_track", ""),
            "sectors of 512 bytes on a track",
            drive.sectors_per_track.into(),
            16.0..=4000.0,
        ),
        p(("disk.heads", ""), "tracks in a cylinder", drive.heads.into(), 1.0..=64.0),
        p(("disk.cylinders", ""), "cylinders", drive.cylinders.into(), 256.0..=1e6),
        p(("disk.seek_single", "ms"), "seek to the next cylinder", ms(seek.single), 0.0..=50.0),
        p(("disk.seek_mean", "ms"), "mean of random seeks", ms(seek.mean), 0.0..=500.0),
        parameter(("disk.seek_full", "ms"), "seek across the whole disk", ms(seek.full), 0.0..=1000.0, judged),
        parameter(
            ("disk.head_switch", "ms"),
            "from one track of a cylinder to the next",
            ms(drive.head_switch),
            0.0..=10.0,
            judged,
        ),
        parameter(("disk.overhead", "ms"), "of each command, before data move", ms(drive.overhead), 0.0..=20.0, judged),
        p(("disk.buffer", "KB"), "buffer in the drive", f64::from(drive.buffer_bytes) / 1024.0, 1.0..=65_536.0),
        p(
            ("disk.read_ahead", ""),
            "1: the drive reads on into its buffer",
            f64::from(u8::from(drive.read_ahead)),
            0.0..=1.0,
        ),
        p(
            ("disk.write_passes", ""),
            "how often what is written passes under the head (erase, write, verify)",
            drive.write_passes.into(),
            1.0..=3.0,
        ),
        parameter(("disk.bus", "MB/s"), "data between drive and memory", bus.0, 0.05..=100_000.0, bus.1),
        parameter(
            ("disk.nvme", ""),
            "1: an NVMe device of 2026 in place of the disk",
            0.0,
            0.0..=1.0,
            Origin::Chosen("the paper's machine"),
        ),
        parameter(
            ("queue.depth", ""),
            "commands in the drive at a time",
            1.0,
            1.0..=1024.0,
            Origin::Published(
                "a SCSI-1 drive (ANSI X3.131-1986) takes one command; queues of commands came with SCSI-2",
            ),
        ),
    ]
}

/// The paper's processor and file system as parameters.
pub(super) fn system_parameters() -> Vec<Parameter> {
    let made = Origin::Published(MKFS);
    vec![
        parameter(
            ("cpu.call", "ms"),
            "processor time of a system call",
            0.1,
            0.0..=100.0,
            Origin::Chosen(INSTRUCTIONS),
        ),
        parameter(
            ("cpu.block", "ms"),
            "processor time of a block: finding or taking it, copying it",
            2.5,
            0.0..=100.0,
            Origin::Chosen(INSTRUCTIONS),
        ),
        parameter(("fs.block", "KB"), "bytes in a block", 8.0, 4.0..=64.0, made),
        parameter(("fs.cylinders_per_group", ""), "cylinders in a group", 16.0, 4.0..=512.0, made),
        parameter(("fs.maxcontig", ""), "blocks in a row before a rotational gap", 1.0, 1.0..=1024.0, made),
        parameter(
            ("fs.maxbpg", ""),
            "blocks of a file in one group, before the file goes to another",
            256.0,
            8.0..=100_000.0,
            made,
        ),
    ]
}

/// The drive as the parameters have it.
pub(super) fn drive(run: &Run<'_>) -> Drive {
    if run.get("disk.nvme") >= 0.5
        && let Some(flash @ Drive::Flash(_)) = Drive::named("nvme-2026")
    {
        return flash;
    }
    Drive::Mechanical(mechanical(run))
}

/// Another drive of the time on the same bus.
pub(super) fn drive_on_bus(run: &Run<'_>, name: &str) -> Option<Drive> {
    let Some(Drive::Mechanical(model)) = Drive::named(name) else { return None };
    let bus_bytes_per_second = model.bus_bytes_per_second.min(bus(run));
    Some(Drive::Mechanical(Mechanical { bus_bytes_per_second, ..model }))
}

fn bus(run: &Run<'_>) -> u64 {
    (run.get("disk.bus") * 1e6) as u64
}

fn mechanical(run: &Run<'_>) -> Mechanical {
    let ms = |name| Duration::from_nanos((run.get(name) * 1e6) as u64);
    let model = Mechanical {
        name: "as the parameters have it",
        source: "",
        rpm: run.get("disk.rpm") as u32,
        sector_bytes: 512,
        sectors_per_track: run.get("disk.sectors_per_track") as u32,
        heads: run.get("disk.heads") as u32,
        cylinders: run.get("disk.cylinders") as u32,
        head_switch: ms("disk.head_switch"),
        track_skew: 0,
        cylinder_skew: 0,
        seek: SeekCurve { single: ms("disk.seek_single"), mean: ms("disk.seek_mean"), full: ms("disk.seek_full") },
        overhead: ms("disk.overhead"),
        bus_bytes_per_second: bus(run),
        buffer_bytes: (run.get("disk.buffer") * 1024.0) as u32,
        read_ahead: run.get("disk.read_ahead") >= 0.5,
        write_passes: run.get("disk.write_passes") as u32,
        transfer_bytes_max: u32::MAX,
    };
    model.formatted()
}

/// The file system as the parameters have it, on that disk with that drive.
pub(super) fn file_system(
    run: &Run<'_>,
    time: &Virtual,
    (disk, drive): (&Disk, &Drive),
    rotdelay_ms: f64,
    ahead: readahead::Mode,
) -> FileSystem {
    // A device without mechanics tells the file system the geometry of the disk that it stands for.
    let geometry = if let Drive::Mechanical(model) = drive { *model } else { mechanical(run) };
    let format = Format {
        block_bytes: (run.get("fs.block") * 1024.0) as u64,
        fragment_bytes: 1024,
        sector_bytes: u64::from(geometry.sector_bytes),
        sectors_per_track: u64::from(geometry.sectors_per_track),
        heads: u64::from(geometry.heads),
        cylinders: u64::from(geometry.cylinders),
        rotations_per_second: f64::from(geometry.rpm) / 60.0,
        cylinders_per_group: run.get("fs.cylinders_per_group") as u64,
        bytes_per_inode: 2048,
        rotdelay_ms,
        maxcontig: run.get("fs.maxcontig") as u64,
        maxbpg: run.get("fs.maxbpg") as u64,
    };
    let ms = |name| Duration::from_nanos((run.get(name) * 1e6) as u64);
    let costs = Costs { call: ms("cpu.call"), block: ms("cpu.block") };
    // The dynamic buffer cache (section 2) may take nearly all of the memory of 64 MB.
    let buffers = (56 << 20) / format.block_bytes;
    FileSystem::new(time, disk, format, costs, buffers, readahead::Config { mode: ahead, streams_max: 16 })
}

/// The queue of 4.3BSD's `disksort`, in order of position, with no more of the policy's techniques than are told.
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
