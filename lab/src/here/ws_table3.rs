//! WS table 3 on this host: a new file of 1 MB, with and without priority for synchronous requests.
//!
//! Its data blocks are written asynchronously and its management blocks synchronously, as a Berkeley file system does:
//! directory and inode when it is made, the indirect block when the 13th block is allocated, the inode when it is closed
//! (Leffler et al., The Design and Implementation of the 4.3BSD UNIX Operating System, 1989, chapter 7).

use std::rc::Rc;
use std::time::Duration;

use kernel::Processor;
use kernel::device::DeviceRef;
use kernel::request::Context;
use machine::Errno;

use super::rounds::{Rounds, Spread, interleaved, table};
use super::task::{self, JOB, REQUEST_BYTES, UnderWay, request_at};
use super::{Effort, Here, HereCell, HereError, HereRun, Measured, Medium, Setup, host};

/// Memory of the kernel: all data blocks at once, and room. Bytes.
const MEMORY: u64 = 128 << 20;

/// Blocks whose numbers stand in the inode itself.
const DIRECT_BLOCKS: u64 = 12;

/// Management blocks lie before this byte, data after it: one cylinder group.
const DATA_START: u64 = 1 << 20;

/// Rounds on the modelled disk, and on the host's.
const MODEL: Rounds = Rounds { most: 2, time_max: Duration::from_secs(6) };
const DISK: Rounds = Rounds { most: 9, time_max: Duration::from_secs(2) };

/// The measurement.
pub(super) struct Priority;

impl Here for Priority {
    fn experiment(&self) -> &'static str {
        "ws-table3"
    }

    fn steps(&self, effort: Effort) -> u64 {
        2 * u64::from(effort.pick(MODEL.most + DISK.most, 2))
    }

    fn measure(&self, run: &HereRun<'_>) -> Result<Measured, HereError> {
        let once = Rounds { most: 1, time_max: Duration::ZERO };
        let model = host::model("mo-1990")?;
        let file = run.pick(1 << 20, 32 << 10);
        let optical = on(run, run.pick(MODEL, once), Medium::Mechanical { bytes: 280 << 20, model }, file)?;
        let file = run.pick(32 << 20, 256 << 10);
        let disk = on(run, run.pick(DISK, once), Medium::Disk { bytes: DATA_START + file }, file)?;

        let mut measured = Measured::default();
        for (row, arm) in ["without", "with"].into_iter().zip(&optical) {
            for (column, spread) in ["write", "I/O"].into_iter().zip(arm) {
                let (row, column, value) = (row.to_owned(), column.to_owned(), spread.median);
                measured.cells.push(HereCell { table: None, row, column, value });
            }
        }
        let rows = |arms: &[[Spread; 2]], scale: f64| {
            let mut rows = Vec::new();
            for (how, arm) in ["without priority", "with priority"].into_iter().zip(arms) {
                for (what, s) in ["write ends", "I/O ends"].into_iter().zip(arm) {
                    let spread =
                        Spread { median: s.median * scale, least: s.least * scale, most: s.most * scale, ..*s };
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
             is in virtual time); beside it {name_disk} with a larger file, whose write the \
             same four synchronous requests hold up."
        ));
        Ok(measured)
    }
}

/// Without and with priority: seconds until the program has written, and until the disk has.
fn on(run: &HereRun<'_>, rounds: Rounds, medium: Medium, bytes: u64) -> Result<Vec<[Spread; 2]>, HereError> {
    interleaved(run, rounds, 2, |arm| {
        let setup = Setup::with_memory(MEMORY).switched(|switches| switches.priority = arm == 1);
        let stage = run.host.start(&setup)?;
        let device = stage.device(&medium)?;
        let count = bytes / REQUEST_BYTES;
        let [program, disk] = task::run(stage.kernel(), move |cpu| write_new_file(cpu, device, count))??;
        Ok([program.as_secs_f64(), disk.as_secs_f64()])
    })
}

/// How long the program takes, and the disk.
async fn write_new_file(cpu: Processor, device: DeviceRef, count: u64) -> Result<[Duration; 2], Errno> {
    let start = cpu.now();
    let manage = |number| task::write(&cpu, &device, request_at(0, number), Context::synchronous(JOB));
    let (directory, inode, indirect) = (0, 1, 2);
    manage(directory).await?;
    manage(inode).await?;
    let under_way = Rc::new(UnderWay::default());
    for number in 0..count {
        if number == DIRECT_BLOCKS {
            manage(indirect).await?;
        }
        under_way.begin();
        let (here, device, ended) = (cpu.clone(), DeviceRef::clone(&device), Rc::clone(&under_way));
        cpu.spawn(async move {
            let context = Context::asynchronous(JOB);
            ended.end(task::write(&here, &device, request_at(DATA_START, number), context).await);
        });
        // The block is in the queue before the program goes on.
        cpu.yield_now().await;
    }
    manage(inode).await?;
    let program = cpu.now().since(start);
    under_way.until(0).await?;
    Ok([program, cpu.now().since(start)])
}
