//! A database on other media than files, and a disk's file that changes beside the server.

use std::fs::File;
use std::time::Duration;

use testkit::nbd::Client;
use testkit::server::Sandbox;
use testkit::skip;

use crate::database::{FAILED, Load, configure_on};
use crate::full_disk::run;

const BYTES: u64 = 16 << 20;
const DEPOSITS: u64 = 200;
/// Only a server that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A block device whose content is in a file.
struct LoopDevice(String);

impl LoopDevice {
    fn new(sandbox: &Sandbox) -> Result<LoopDevice, String> {
        let image = sandbox.file("device.img");
        File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
        run("losetup", &["--find", "--show"], &[&image]).map(LoopDevice)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run("losetup", &["--detach", &self.0], &[]) {
            eprintln!("{} is left: {error}", self.0);
        }
    }
}

#[test]
fn a_database_on_a_block_device_survives_kill() {
    let sandbox = Sandbox::new();
    let device = match LoopDevice::new(&sandbox) {
        Ok(device) => device,
        Err(reason) => skip!("there is no loop device: {reason}"),
    };
    let config = configure_on(&sandbox, &format!("kind = \"block\"\npath = {:?}", device.0));
    let mut load = Load::new(&sandbox, FAILED);
    for _ in 0..2 {
        let server = sandbox.serve(&["--config", &config]);
        load.during(|progress| {
            assert!(progress.await_durable(DEPOSITS, TIMEOUT) >= DEPOSITS);
            server.crash();
        });
        let server = sandbox.serve(&["--config", &config]);
        load.verify().unwrap_or_else(|what| panic!("{what}"));
        server.crash();
    }
}

/// Nothing is durable there: each start makes a new one.
#[test]
fn a_database_in_memory_or_on_the_papers_device_is_right_as_long_as_its_server_runs() {
    for kind in ["kind = \"ram\"", "kind = \"testdev\"\nlatency = \"100us\""] {
        let sandbox = Sandbox::new();
        let config = configure_on(&sandbox, &format!("{kind}\nsize = \"16MiB\""));
        for _ in 0..2 {
            let server = sandbox.serve(&["--config", &config]);
            let mut load = Load::new(&sandbox, FAILED);
            load.during(|progress| assert!(progress.await_durable(DEPOSITS, TIMEOUT) >= DEPOSITS));
            load.verify().unwrap_or_else(|what| panic!("{kind}: {what}"));
            server.crash();
        }
    }
}

#[test]
fn a_disk_whose_file_the_host_makes_shorter_reads_as_zeroes_beyond_its_end() {
    let sandbox = Sandbox::new();
    let path = sandbox.file("disk.img");
    std::fs::write(&path, vec![7; 1 << 20]).expect("an image");
    let server = sandbox.serve(&["--export", "name=disk,kind=file,path=disk.img"]);
    let mut client = Client::connect(&server.socket(), "disk").expect("connect");
    // The end lies 576 bytes into a block: no multiple of what direct I/O wants.
    File::options().write(true).open(&path).and_then(|file| file.set_len(1_000_000)).expect("shorter");
    let read = client.read(1_000_000 - 576, 4096).expect("read across the end");
    assert!(read[..576] == [7; 576] && read[576..].iter().all(|byte| *byte == 0), "{read:?}");
    assert_eq!(client.read(1_000_000, 8192).expect("read beyond the end"), vec![0; 8192]);
}
