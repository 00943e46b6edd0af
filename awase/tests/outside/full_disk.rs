//! A full disk: writers get errors, acknowledged writes survive, and once there is space again all requests succeed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::stable_how;
use testkit::nbd_load::Mix;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server};
use testkit::skip;

use crate::kill::{Directory, Disk, End};

/// Size of the file system, most of which is taken by a ballast file.
const BYTES: u64 = 64 << 20;
/// Free at the begin of a round: less than the clients write.
const LEFT: u64 = 6 << 20;
/// Requests that fail before the round goes on.
const FAILURES: u64 = 20;
/// Once there is space again, a flush must succeed within this time.
const RECOVERY_TIME: Duration = Duration::from_secs(60);
/// For so long the host may keep files of a server that was killed.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// A small ext4 on a loop device. Unmounted when dropped.
pub struct Small(PathBuf);

impl Small {
    pub fn new(sandbox: &Sandbox) -> Result<Small, String> {
        let (image, mounted) = (sandbox.file("small.ext4"), sandbox.file("small"));
        File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
        fs::create_dir(&mounted).expect("directory");
        run("mkfs.ext4", &["-q", "-m", "0"], &[&image])?;
        run("mount", &["-o", "loop"], &[&image, &mounted])?;
        Ok(Small(mounted))
    }

    pub fn fill(&self, left: u64) {
        let ballast = File::create(self.0.join("ballast")).expect("a file");
        let piece = vec![0; 1 << 20];
        let mut at = 0;
        while self.free() > left {
            // The last piece may fail.
            if ballast.write_all_at(&piece, at).is_err() {
                break;
            }
            at += piece.len() as u64;
        }
        ballast.sync_all().expect("synced");
    }

    pub fn make_space(&self) {
        fs::remove_file(self.0.join("ballast")).expect("removed");
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.0).expect("mounted");
        found.f_bavail * found.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let begun = Instant::now();
        while let Err(error) = run("umount", &[], &[&self.0]) {
            if begun.elapsed() > BUSY_MAX {
                eprintln!("{} is left mounted: {error}", self.0.display());
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What a program of the administrator's prints.
pub fn run(program: &str, options: &[&str], paths: &[&Path]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(options).args(paths).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", errors.trim())),
    }
}

/// Flushes until one succeeds.
fn await_flush(server: &Server) {
    let start = Instant::now();
    let mut client = testkit::nbd::Client::connect(&server.socket(), "disk").expect("connect");
    while let Err(error) = client.flush() {
        assert!(start.elapsed() < RECOVERY_TIME, "there is space again, and flushes fail: {error}");
        thread::yield_now();
    }
}

#[test]
fn sectors_survive_a_full_disk_which_recovers() {
    let sandbox = Sandbox::new();
    let small = match Small::new(&sandbox) {
        Ok(small) => small,
        Err(reason) => skip!("no file system can be mounted: {reason}"),
    };
    let size = Disk::BYTES;
    let export = format!("name=disk,kind=file,path=small/disk.img,size={size},create=true");
    let arguments = ["--memory", "64MiB", "--export", &export];
    let name = "sectors_survive_a_full_disk_which_recovers";
    for seed in Rounds::new(name, 2) {
        let random = &mut Random(seed);
        let mut disk = Disk::new();
        let _ = fs::remove_file(sandbox.file("small/disk.img"));
        let server = sandbox.serve(&arguments);
        small.fill(LEFT);
        let mix = *random.pick(&[Mix::ALL, Mix::DATA]);
        disk.work_until_failures(server.socket(), FAILURES, mix, seed);
        let server = if random.chance(500) {
            server.crash();
            let server = sandbox.serve(&arguments);
            disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}, full: {what}"));
            server
        } else {
            server
        };
        small.make_space();
        await_flush(&server);
        let failed = disk.load.progress.failed();
        disk.load.progress.resume();
        disk.work_until_end(server, 100, mix, seed, End::Terminated);
        assert_eq!(disk.load.progress.failed(), failed, "seed {seed}: requests failed although there is space");
        let server = sandbox.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}, recovered: {what}"));
    }
}

#[test]
fn content_and_names_survive_a_full_disk_which_recovers() {
    let sandbox = Sandbox::new();
    let small = match Small::new(&sandbox) {
        Ok(small) => small,
        Err(reason) => skip!("no file system can be mounted: {reason}"),
    };
    let export = "name=files,kind=directory,secure=false,path=small/files,squash=no_root_squash";
    let arguments = ["--memory", "64MiB", "--export", export];
    for seed in Rounds::new("content_and_names_survive_a_full_disk_which_recovers", 2) {
        let random = &mut Random(seed);
        let _ = fs::remove_dir_all(sandbox.file("small/files"));
        Directory::make(&sandbox.file("small/files"));
        let (server, port) = sandbox.serve_directories(0, &arguments);
        let mut directory = Directory::new(port, true);
        small.fill(LEFT);
        directory.work_until_failures(port, FAILURES, seed);
        let server = if random.chance(500) {
            server.crash();
            let (server, _) = sandbox.serve_directories(port, &arguments);
            directory.verify(port).unwrap_or_else(|what| panic!("seed {seed}, full: {what}"));
            server
        } else {
            server
        };
        small.make_space();
        await_write(port);
        directory.progress.resume();
        directory.work_until_end(server, port, 200, seed, End::Terminated);
        let (_server, _) = sandbox.serve_directories(port, &arguments);
        directory.verify(port).unwrap_or_else(|what| panic!("seed {seed}, recovered: {what}"));
    }
}

/// Writes to another file until one write succeeds.
fn await_write(port: u16) {
    let start = Instant::now();
    let (mut client, file) = testkit::nfs::Client::open(port, "/files", "other");
    while let Err(error) = client.write(&file, 0, &[1; 65_536], stable_how::FILE_SYNC) {
        assert!(start.elapsed() < RECOVERY_TIME, "there is space again, and writes fail: {error}");
        thread::yield_now();
    }
}
