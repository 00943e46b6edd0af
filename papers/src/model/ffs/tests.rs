use policy::queue;
use policy::readahead::Mode;

use super::super::Simulation;
use super::*;
use crate::drive::Drive;
use crate::drive::mechanical::Mechanical;

fn format() -> Format {
    Format { sectors_per_track: 54, heads: 15, cylinders: 1632, rotdelay_ms: 0.0, ..Format::NEWFS }
}

/// Runs a task with a file system of `format` on a disk of 1990; returns its result.
fn run<T: 'static, F: Future<Output = T> + 'static>(
    format: Format,
    (buffers, mode): (u64, Mode),
    work: impl FnOnce(FileSystem, Disk, Virtual) -> F,
) -> T {
    let simulation = Simulation::new(1);
    let queue = queue::Config { elevator: true, depth: 1, priority: false, ..queue::Config::default() };
    let disk = Disk::new(&simulation, Drive::Mechanical(Mechanical::named("scsi-1990")), queue);
    let costs = Costs { call: Duration::from_micros(100), block: Duration::from_millis(4) };
    let readahead = readahead::Config { mode, streams_max: 4 };
    let fs = FileSystem::new(&simulation, &disk, format, costs, buffers, readahead);
    simulation.complete(work(fs, disk, simulation.clone())).expect("the task came to its end")
}

#[test]
fn a_program_goes_on_while_its_data_are_on_their_way_unless_buffers_run_out() {
    let returned = |buffers| {
        run(format(), (buffers, Mode::Off), |fs, _, time| async move {
            let mut file = fs.create(0).await;
            let started = time.now();
            fs.write(&mut file, 10).await;
            let returned = time.now() - started;
            let under_way = fs.writing();
            fs.settle().await;
            (returned, under_way)
        })
    };
    let (many, few) = (returned(100), returned(2));
    assert_eq!(many.0, Duration::from_micros(10 * 4100));
    assert!(many.1 > 2 && few.1 <= 2 && few.0 > many.0, "{many:?} {few:?}");
}

#[test]
fn a_name_is_looked_up_on_the_disk_once_and_a_removed_file_waits_for_directory_and_inode() {
    let [looked, again, removed] = run(format(), (100, Mode::Off), |fs, _, _| async move {
        fs.look_up(3).await;
        let looked = fs.waits().count;
        fs.look_up(3).await;
        let again = fs.waits().count - looked;
        let file = fs.create(3).await;
        let before = fs.waits().count;
        fs.remove(file).await;
        [looked, again, fs.waits().count - before]
    });
    assert_eq!([looked, again, removed], [2, 0, 2]);
}

#[test]
fn a_new_file_waits_for_bitmaps_inode_and_directory_and_a_long_one_for_its_indirect_block() {
    let waits = |blocks| {
        run(format(), (100, Mode::Off), move |fs, _, _| async move {
            let mut file = fs.create(0).await;
            fs.write(&mut file, blocks).await;
            fs.waits().count
        })
    };
    assert_eq!(waits(DIRECT), 3);
    // The indirect block, and the bitmaps of the group to which the file moves with it.
    assert_eq!(waits(DIRECT + 1), 5);
}

#[test]
fn reading_ahead_keeps_the_disk_busy_while_the_program_computes() {
    let took = |mode| {
        run(format(), (1000, mode), |fs, _, time| async move {
            let mut file = fs.create(0).await;
            fs.write(&mut file, 200).await;
            fs.settle().await;
            fs.forget();
            let started = time.now();
            fs.read(&mut file).await;
            time.now() - started
        })
    };
    assert!(took(Mode::Fixed { blocks: 1 }) < took(Mode::Off) - Duration::from_millis(150));
}

#[test]
fn what_is_in_the_cache_is_read_without_the_disk() {
    let batches = run(format(), (1000, Mode::Fixed { blocks: 1 }), |fs, disk, _| async move {
        let mut file = fs.create(0).await;
        fs.write(&mut file, 50).await;
        fs.settle().await;
        let before = disk.counters().batches;
        fs.read(&mut file).await;
        disk.counters().batches - before
    });
    assert_eq!(batches, 0);
}

#[test]
fn a_full_disk_ends_a_write_early() {
    let blocks = run(Format { cylinders: 16, ..format() }, (1000, Mode::Off), |fs, _, _| async move {
        let mut file = fs.create(0).await;
        fs.write(&mut file, 5000).await;
        file.blocks()
    });
    assert!((700..810).contains(&blocks), "{blocks}");
}
