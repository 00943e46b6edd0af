//! The limit of the server's control group is lowered under load: its cache shrinks, it is not killed, and acknowledged
//! writes survive.

use std::fs;
use std::time::{Duration, Instant};

use testkit::group::Group;
use testkit::nbd::Client;
use testkit::nbd_load::Mix;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{AWASE, Sandbox, Server};
use testkit::skip;

use crate::kill::{Disk, End};

const MIB: u64 = 1 << 20;
const LIMIT_MAX: u64 = 240 * MIB;
const LIMIT_MIN: u64 = 160 * MIB;
/// Decrement of the limit.
const STEP: u64 = 16 * MIB;
/// Bytes that are read to grow the cache.
const READ: u64 = 256 * MIB;
/// A step that takes longer has failed.
const STEP_TIME: Duration = Duration::from_secs(60);

/// Lowers the limit step by step while a reader fills the cache, and restores it.
fn squeeze(group: &Group, server: &Server) {
    let mut reader = Client::connect(&server.socket(), "read").expect("connect");
    let mut at = 0;
    let mut read_some = || {
        reader.read(at, MIB as u32).expect("read");
        at = (at + MIB) % READ;
    };
    (0..READ / MIB).for_each(|_| read_some());
    for limit in (LIMIT_MIN..LIMIT_MAX).rev().step_by(STEP as usize) {
        let start = Instant::now();
        while !group.set_limit(limit) || group.used() > limit - STEP / 2 {
            assert!(start.elapsed() < STEP_TIME, "{} MiB are used of {}", group.used() / MIB, limit / MIB);
            read_some();
        }
    }
    assert!(group.set_limit(LIMIT_MAX), "the limit can't be raised");
}

#[test]
fn sectors_survive_when_memory_is_taken_away() {
    let sandbox = Sandbox::new();
    let Some(group) = Group::new("pressure", LIMIT_MAX) else { skip!("no control group can be created") };
    let size = Disk::BYTES;
    let read = fs::File::create(sandbox.file("read.img")).and_then(|file| file.set_len(READ));
    read.expect("an image");
    let exports = [
        format!("name=disk,kind=file,path=disk.img,size={size},create=true"),
        // Of what may be written, holes are not cached.
        "name=read,kind=file,path=read.img,read_only=true".to_owned(),
    ];
    let serve = || {
        let mut command = group.command(&AWASE);
        command.args(["serve", "--nbd", "none", "--nfs", "none", "--metrics", "none"]);
        for export in &exports {
            command.args(["--export", export]);
        }
        sandbox.start(command)
    };
    let mut disk = Disk::new();
    for seed in Rounds::new("sectors_survive_when_memory_is_taken_away", 1) {
        let random = &mut Random(seed);
        let server = serve();
        disk.work_during(&server.socket(), Mix::ALL, seed, || squeeze(&group, &server));
        assert_eq!(group.killed(), 0, "seed {seed}: the server was killed for lack of memory");
        disk.work_until_end(server, 20 + random.below(100), Mix::ALL, seed, End::drawn(random));
        let server = serve();
        disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(disk.load.progress.failed(), 0, "seed {seed}: requests failed on a sound disk");
        server.crash();
    }
}
