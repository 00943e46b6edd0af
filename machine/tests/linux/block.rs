//! Block devices on both engines. Making one takes root and a loop device; without them the test is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::{Memory, Rig, on_both_engines};
use machine::Op;
use machine::linux::file::{OpenError, OpenOptions, open};
use policy::unit::{ByteOffset, Stability};
use testkit::skip;

on_both_engines!(a_block_device_is_read_written_and_zeroed_and_has_no_holes);

const SIZE: u64 = 8 << 20;

/// A loop device on a file.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn on(backing: &Path) -> Option<Self> {
        let args = ["--find", "--show"];
        let output = Command::new("losetup").args(args).arg(backing).output();
        let output = output.ok().filter(|output| output.status.success())?;
        let path = String::from_utf8(output.stdout).ok()?;
        Some(LoopDevice(path.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}

fn a_block_device_is_read_written_and_zeroed_and_has_no_holes(mut rig: Rig) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let backing = directory.path().join("backing");
    std::fs::write(&backing, vec![9u8; SIZE as usize]).expect("written");
    let Some(device) = LoopDevice::on(&backing) else {
        skip!("no loop device can be made here");
    };
    let options = OpenOptions {
        writable: true,
        // Ignored for a device, which has its size.
        create_size: Some(4096),
        ..OpenOptions::default()
    };
    let disk = open(&device.0, options).expect("opened");
    assert_eq!(disk.facts.size, SIZE);
    assert!(disk.facts.direct && disk.facts.align >= 512);
    let locked = open(&device.0, options).err();
    assert_eq!(locked, Some(OpenError::Locked(device.0.clone())));

    let file = disk.file;
    let memory = Memory::filled(8192, 1);
    let written = rig.run(Op::Write {
        file,
        at: ByteOffset(4096),
        from: memory.segments(&[(4096, 4096), (0, 4096)]),
        stability: Stability::Stable,
    });
    assert_eq!(written, Ok(8192));
    let into = Memory::new(8192);
    let read = |rig: &mut Rig, at: u64| {
        let (at, into) = (ByteOffset(at), into.all());
        rig.run(Op::Read { file, at, into })
    };
    assert_eq!(read(&mut rig, 4096), Ok(8192));
    assert_eq!(into.bytes()[..4096], memory.bytes()[4096..]);
    assert_eq!(into.bytes()[4096..], memory.bytes()[..4096]);
    assert_eq!(read(&mut rig, SIZE - 4096), Ok(4096), "up to the end");

    let emptied = rig.run(Op::Discard { file, at: ByteOffset(4096), len: 8192 });
    assert_eq!(emptied, Ok(0));
    assert_eq!(read(&mut rig, 4096), Ok(8192));
    assert!(into.bytes().iter().all(|&byte| byte == 0));

    assert_eq!(rig.find_data(file, 8192..SIZE, 9), (vec![(8192, SIZE)], Ok(SIZE)), "all is data");
    assert_eq!(rig.run(Op::Flush { file }), Ok(0));
    drop(disk);
}
