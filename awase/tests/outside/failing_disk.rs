//! What was acknowledged as durable survives power cuts of a disk whose `fsync` sometimes fails and which loses whatever no
//! successful `fsync` covered. The server must do what ARCHITECTURE.md promises, on a disk no better than it assumes.

use testkit::failing_disk::{FailingDisk, Faults};
use testkit::nbd_load::Mix;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::Sandbox;
use testkit::skip;

use crate::kill::{Directory, Disk, End};

pub const NO_ERRORS: Faults = Faults { fsync_permille: 0, write_permille: 0, delay_permille: 120, delay_us_max: 3000 };

/// The mount point.
pub const MOUNTED: &str = "failing";

/// The faults of a round.
fn faults(random: &mut Random, fails: bool) -> Faults {
    let fsync_permille = if fails { *random.pick(&[10, 50, 200]) } else { 0 };
    let (delay_permille, delay_us_max) = (*random.pick(&[20, 120, 500]), *random.pick(&[300, 3000, 12_000]));
    Faults { fsync_permille, write_permille: 0, delay_permille, delay_us_max }
}

pub fn mount(sandbox: &Sandbox, seed: u64) -> Result<FailingDisk, String> {
    let path = sandbox.file(MOUNTED);
    std::fs::create_dir(&path).expect("directory");
    FailingDisk::new(&path, NO_ERRORS, seed).map_err(|error| format!("nothing can be mounted by FUSE: {error}"))
}

/// Cuts the power and mounts the disk again.
pub fn cut(disk: &mut FailingDisk, random: &mut Random) {
    disk.cut(random.chance(300));
    disk.mount_again().expect("mounted again");
}

fn sectors_survive(name: &'static str, stable_writes: &str, fails: bool) {
    let sandbox = Sandbox::new();
    let mut failing = match mount(&sandbox, 1) {
        Ok(disk) => disk,
        Err(reason) => skip!("{reason}"),
    };
    let size = Disk::BYTES;
    let export = format!("name=disk,kind=file,path={MOUNTED}/disk.img,size={size},create=true,{stable_writes}");
    let arguments = ["--memory", "16MiB", "--export", &export];
    let mut disk = Disk::new();
    for seed in Rounds::new(name, 3) {
        let random = &mut Random(seed);
        let mix = *random.pick(&[Mix::ALL, Mix::DATA, Mix::FEW_ZEROES]);
        let server = sandbox.serve(&arguments);
        failing.set_faults(faults(random, fails));
        disk.work_until_end(server, 10 + random.below(200), mix, seed, End::drawn(random));
        failing.set_faults(NO_ERRORS);
        cut(&mut failing, random);
        let server = sandbox.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("{export} seed {seed}: {what}"));
        server.crash();
        cut(&mut failing, random);
    }
    println!(
        "{name}: {} acknowledged as durable, {} failed",
        disk.load.progress.durable(),
        disk.load.progress.failed()
    );
}

#[test]
fn sectors_survive_a_disk_that_loses_unflushed_writes() {
    sectors_survive("sectors_survive_a_disk_that_loses_unflushed_writes", "stable_writes=auto", false);
}

#[test]
fn sectors_survive_a_disk_whose_flushes_fail() {
    sectors_survive("sectors_survive_a_disk_whose_flushes_fail", "stable_writes=flush", true);
}

#[test]
fn sectors_survive_a_disk_whose_flushes_fail_with_measured_stable_writes() {
    let name = "sectors_survive_a_disk_whose_flushes_fail_with_measured_stable_writes";
    sectors_survive(name, "stable_writes=auto", true);
}

fn a_directory_survives(name: &'static str, fails: bool) {
    let sandbox = Sandbox::new();
    let mut failing = match mount(&sandbox, 1) {
        Ok(disk) => disk,
        Err(reason) => skip!("{reason}"),
    };
    Directory::make(&sandbox.file(MOUNTED));
    let export =
        format!("name=files,kind=directory,secure=false,path={MOUNTED},squash=no_root_squash,persistent_handles=true");
    let arguments = ["--memory", "16MiB", "--export", &export];
    let (mut port, mut directory) = (0, None);
    for seed in Rounds::new(name, 3) {
        let random = &mut Random(seed);
        let server;
        (server, port) = sandbox.serve_directories(port, &arguments);
        let directory = directory.get_or_insert_with(|| Directory::new(port, true));
        failing.set_faults(faults(random, fails));
        directory.work_until_end(server, port, 10 + random.below(400), seed, End::drawn(random));
        failing.set_faults(NO_ERRORS);
        cut(&mut failing, random);
        let (server, _) = sandbox.serve_directories(port, &arguments);
        directory.verify(port).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        server.crash();
        cut(&mut failing, random);
    }
    if let Some(directory) = directory {
        let (durable, failed) = (directory.progress.durable(), directory.progress.failed());
        println!("{name}: {durable} acknowledged as durable, {failed} failed");
    }
}

#[test]
fn a_directory_survives_a_disk_that_loses_unflushed_writes() {
    a_directory_survives("a_directory_survives_a_disk_that_loses_unflushed_writes", false);
}

#[test]
fn a_directory_survives_a_disk_whose_flushes_fail() {
    a_directory_survives("a_directory_survives_a_disk_whose_flushes_fail", true);
}
