//! A disk that is full: who writes is told, what was acknowledged stays, and when there is space again all goes on.

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
use testkit::server::{Place, Server};
use testkit::skip;

use crate::kill::{Directory, Disk, End};

/// The file system: most of it is taken by a file in the way.
const BYTES: u64 = 64 << 20;
/// What is left when a round begins: less than the clients write.
const LEFT: u64 = 6 << 20;
/// Requests that fail before the round goes on.
const FAILURES: u64 = 20;
/// When there is space again, a flush succeeds within this.
const RECOVERY_TIME: Duration = Duration::from_secs(60);

/// A small ext4 on a loop device. Unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn new(place: &Place) -> Result<Small, String> {
        let (image, mounted) = (place.file("small.ext4"), place.file("small"));
        File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
        fs::create_dir(&mounted).expect("directory");
        run("mkfs.ext4", &["-q", "-m", "0"], &[&image])?;
        run("mount", &["-o", "loop"], &[&image, &mounted])?;
        Ok(Small(mounted))
    }

    fn fill(&self, left: u64) {
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

    fn make_space(&self) {
        fs::remove_file(self.0.join("ballast")).expect("removed");
    }

    fn free(&self) -> u64 {
        let path = std::ffi::CString::new(self.0.as_os_str().as_encoded_bytes()).expect("no zero");
        // SAFETY: statvfs is plain numbers, and is filled in by the call; the path is a C string.
        let found = unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            assert_eq!(libc::statvfs(path.as_ptr(), &mut found), 0);
            found
        };
        found.f_bavail * found.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[], &[&self.0]) {
            eprintln!("{} is left mounted: {error}", self.0.display());
        }
    }
}

fn run(program: &str, options: &[&str], paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(options).args(paths).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", errors.trim())) }
}

/// Asks for a flush until one succeeds.
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
    let place = Place::new();
    let small = match Small::new(&place) {
        Ok(small) => small,
        Err(reason) => skip!("no file system of its own: {reason}"),
    };
    let size = Disk::BYTES;
    let export = format!("name=disk,kind=file,path=small/disk.img,size={size},create=true");
    let arguments = ["--memory", "64MiB", "--export", &export];
    let name = "sectors_survive_a_full_disk_which_recovers";
    for seed in Rounds::new(name, 2) {
        let random = &mut Random(seed);
        let mut disk = Disk::new();
        let _ = fs::remove_file(place.file("small/disk.img"));
        let server = place.serve(&arguments);
        small.fill(LEFT);
        let mix = *random.pick(&[Mix::ALL, Mix::DATA]);
        disk.work_until_failures(server.socket(), FAILURES, mix, seed);
        let server = if random.chance(500) {
            server.crash();
            let server = place.serve(&arguments);
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
        assert_eq!(disk.load.progress.failed(), failed, "seed {seed}: requests failed where there is space");
        let server = place.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}, recovered: {what}"));
    }
}

#[test]
fn content_and_names_survive_a_full_disk_which_recovers() {
    let place = Place::new();
    let small = match Small::new(&place) {
        Ok(small) => small,
        Err(reason) => skip!("no file system of its own: {reason}"),
    };
    let export = "name=files,kind=directory,secure=false,path=small/files,squash=no_root_squash";
    let arguments = ["--memory", "64MiB", "--export", export];
    for seed in Rounds::new("content_and_names_survive_a_full_disk_which_recovers", 2) {
        let random = &mut Random(seed);
        let _ = fs::remove_dir_all(place.file("small/files"));
        Directory::make(&place.file("small/files"));
        let (server, port) = place.serve_directories(0, &arguments);
        let mut directory = Directory::new(port, true);
        small.fill(LEFT);
        directory.work_until_failures(port, FAILURES, seed);
        let server = if random.chance(500) {
            server.crash();
            let (server, _) = place.serve_directories(port, &arguments);
            directory.verify(port).unwrap_or_else(|what| panic!("seed {seed}, full: {what}"));
            server
        } else {
            server
        };
        small.make_space();
        await_write(port);
        directory.progress.resume();
        directory.work_until_end(server, port, 200, seed, End::Terminated);
        let (_server, _) = place.serve_directories(port, &arguments);
        directory.verify(port).unwrap_or_else(|what| panic!("seed {seed}, recovered: {what}"));
    }
}

/// Writes to another file until that succeeds.
fn await_write(port: u16) {
    let start = Instant::now();
    let mut client = testkit::nfs::Client::connect(port).expect("connect");
    let root = client.mount("/files").expect("mounted");
    let file = client.lookup(&root, "other").expect("an answer").expect("a file");
    while let Err(error) = client.write(&file, 0, &[1; 65_536], stable_how::FILE_SYNC) {
        assert!(start.elapsed() < RECOVERY_TIME, "there is space again, and writes fail: {error}");
        thread::yield_now();
    }
}
