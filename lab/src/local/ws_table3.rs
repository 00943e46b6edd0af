//! WS table 3 on this host: a new file of 1 MB, with and without priority for synchronous requests.
//!
//! Its data blocks are written asynchronously. The program waits for what a Berkeley file system needs for safety and
//! progress: directory and inode of the new file, the indirect block when the 13th block is allocated, and the bitmaps
//! of each cylinder group that it reaches (Leffler et al., The Design and Implementation of the 4.3BSD UNIX Operating
//! System, 1989, chapter 7).

use std::rc::Rc;
use std::time::Duration;

use kernel::Processor;
use kernel::device::DeviceRef;
use kernel::request::Context;
use machine::Errno;
use papers::drive::mechanical::Mechanical;
use papers::parameter::Parameters;

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::task::{self, InFlight, JOB, REQUEST_BYTES, request_at};
use super::{Effort, LocalError, LocalRun, Measured, Medium, Setup};

/// Memory of the kernel: more than all data blocks. Bytes.
const MEMORY: u64 = 128 << 20;

/// Blocks whose numbers are in the inode itself.
const DIRECT_BLOCKS: u64 = 12;

/// Bytes of a group of the optical disk: 16 cylinders (newfs's default) of a track of 31 sectors, in whole requests.
const GROUP_OPTICAL: u64 = 248 << 10;

/// A group of the larger file: enough that the queue becomes long. Bytes.
const GROUP_DISK: u64 = 4 << 20;

/// Repetitions on the modelled disk, and on the host's.
const MODEL: Repetitions = Repetitions { most: 2, time_max: Duration::from_secs(6) };
const DISK: Repetitions = Repetitions { most: 9, time_max: Duration::from_secs(2) };

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    2 * u64::from(effort.pick(MODEL.most + DISK.most, 2))
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    // As in the simulated table: a synchronous request waits for it.
    let transfer_kb = papers::named("ws-table3").ok_or(LocalError::NoResult)?.parameters().get("queue.transfer") as u32;
    let model = Mechanical { transfer_bytes_max: transfer_kb << 10, ..Mechanical::named("mo-1990") };
    let file = run.pick(1 << 20, 32 << 10);
    let optical =
        on(run, MODEL, Medium::Mechanical { bytes: 280 << 20, model }, Layout { file, group: GROUP_OPTICAL })?;
    let file = run.pick(32 << 20, 256 << 10);
    let layout = Layout { file, group: GROUP_DISK };
    let disk = on(run, DISK, Medium::Disk { bytes: layout.bytes() }, layout)?;

    let mut measured = Measured::default();
    for (row, arm) in ["without", "with"].into_iter().zip(&optical) {
        for (column, spread) in ["write", "I/O"].into_iter().zip(arm) {
            measured.cell("times", row, column, spread.median);
        }
    }
    let rows = |arms: &[[Spread; 2]], scale: f64| {
        let mut rows = Vec::new();
        for (how, arm) in ["without priority", "with priority"].into_iter().zip(arms) {
            for (what, s) in ["write ends", "I/O ends"].into_iter().zip(arm) {
                let spread = s.scaled(scale);
                rows.push((format!("{how}: {what}"), spread));
            }
        }
        rows
    };
    let name_disk = run.host.disk();
    let title = "1 MB to mo-1990 in real time";
    measured.tables.push(table("here-optical", title, "s", 2, rows(&optical, 1.0)));
    let title = format!("{} MB to {name_disk}", file >> 20);
    measured.tables.push(table("here-disk", &title, "ms", 2, rows(&disk, 1e3)));
    measured.notes.push(format!(
        "Here: Awase's queue in front of a magneto-optical disk of 1990 that is modelled in real time (nothing of it \
         is in virtual time), with transfers of {transfer_kb} KB at most; beside it {name_disk} with a larger file, for \
         which the program waits once every {} MB.",
        GROUP_DISK >> 20
    ));
    Ok(measured)
}

/// Where the blocks of the file lie.
#[derive(Clone, Copy)]
struct Layout {
    /// Data. Bytes.
    file: u64,
    /// A group; its first request holds the bitmaps. Bytes.
    group: u64,
}

/// Requests of the first group, after the bitmaps.
const DIRECTORY: u64 = 1;
const INODE: u64 = 2;
const INDIRECT: u64 = 3;

impl Layout {
    fn data(self) -> u64 {
        (self.group / REQUEST_BYTES).saturating_sub(1).max(1)
    }

    /// Where a group of data begins. The file's metadata lie in a group before them.
    fn group_at(self, group: u64) -> u64 {
        (1 + group) * self.group
    }

    fn bytes(self) -> u64 {
        self.group_at((self.file / REQUEST_BYTES).div_ceil(self.data()))
    }
}

/// Without and with priority: seconds until the program has finished, and until the disk has.
fn on(
    run: &LocalRun<'_>,
    repetitions: Repetitions,
    medium: Medium,
    layout: Layout,
) -> Result<Vec<[Spread; 2]>, LocalError> {
    interleaved(run, repetitions, 2, |arm| {
        let setup = Setup::with_memory(MEMORY).switched(|switches| switches.priority = arm == 1);
        let stage = run.host.start(&setup)?;
        let device = stage.device(&medium)?;
        let [program, disk] = task::run(stage.kernel(), move |cpu| write_new_file(cpu, device, layout))??;
        Ok([program.as_secs_f64(), disk.as_secs_f64()])
    })
}

/// How long the program takes, and how long the disk.
async fn write_new_file(cpu: Processor, device: DeviceRef, layout: Layout) -> Result<[Duration; 2], Errno> {
    let start = cpu.now();
    let awaited = Context::synchronous(JOB);
    task::write(&cpu, &device, request_at(0, INODE), awaited).await?;
    task::write(&cpu, &device, request_at(0, DIRECTORY), awaited).await?;
    let in_flight = Rc::new(InFlight::default());
    for number in 0..layout.file / REQUEST_BYTES {
        let (group, place) = (number / layout.data(), number % layout.data());
        if place == 0 {
            task::read(&cpu, &device, request_at(layout.group_at(group), 0), awaited).await?;
        }
        if number == DIRECT_BLOCKS {
            task::write(&cpu, &device, request_at(0, INDIRECT), awaited).await?;
        }
        let range = request_at(layout.group_at(group), 1 + place);
        in_flight.begin();
        let (own, device, ended) = (cpu.clone(), DeviceRef::clone(&device), Rc::clone(&in_flight));
        cpu.spawn(async move {
            ended.end(task::write(&own, &device, range, Context::asynchronous(JOB)).await);
        });
        // The block is in the queue before the program continues.
        cpu.yield_now().await;
    }
    let program = cpu.now().since(start);
    in_flight.until(0).await?;
    Ok([program, cpu.now().since(start)])
}
