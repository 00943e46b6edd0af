//! Limits of space apply to clients even though the server is root.
//!
//! Linux decides by one capability whether a thread may exceed quotas and use reserved blocks: where the kernel has no
//! quotas, testing the reserve of ext4 suffices.

use std::ffi::CString;
use std::fs::File;
use std::process::Command;

use machine::tree::{OpenNode, SetAttributes};
use machine::{Errno, Op};
use policy::unit::{ByteOffset, Stability};

use crate::rig::{Memory, Rig, on_both_engines};
use crate::tree_file_systems::{Kind, Mounted};
use crate::tree_rig::*;

on_both_engines!(clients_get_none_of_the_blocks_reserved_for_root, the_quota_of_its_owner_bounds_a_file,);

/// The owner of the files.
const OWNER: u32 = 5001;

const MIB: u64 = 1 << 20;

/// A file of the owner, open for writing.
fn opened(served: &mut ServedTree, name: &str) -> OpenNode {
    let node = served.file(name);
    let owned = SetAttributes { uid: Some(OWNER), gid: Some(OWNER), ..SetAttributes::default() };
    assert!(served.ask(None, set(node, owned)).is_ok());
    served.opened(node, true)
}

/// Writes until the host refuses, `most` bytes at most. Returns the number of bytes written, and the refusal.
fn fill(served: &mut ServedTree, open: &OpenNode, stability: Stability, most: u64) -> (u64, Option<Errno>) {
    let memory = Memory::filled(MIB as usize / 4, 1);
    let mut at = 0;
    while at < most {
        let op = Op::Write { file: open.direct.file, at: ByteOffset(at), from: memory.all(), stability };
        match served.rig.run(op) {
            Ok(written) => at += written,
            Err(errno) => return (at, Some(errno)),
        }
    }
    (at, None)
}

fn clients_get_none_of_the_blocks_reserved_for_root(rig: Rig) {
    let Some(mounted) = Mounted::new(Kind::Image("mkfs.ext4", &["-q", "-F", "-m", "20"])) else { return };
    let Some(mut served) = ServedTree::at(rig, &mounted.path()) else { return };
    let open = opened(&mut served, "file");
    // All but a little of what is available to users is taken.
    let taken = File::create(served.path("taken")).expect("made");
    let size = served.space().bytes_available - 8 * MIB;
    rustix::fs::fallocate(&taken, rustix::fs::FallocateFlags::empty(), 0, size).expect("there is room");
    for stability in [Stability::Unstable, Stability::Stable] {
        let (written, refusal) = fill(&mut served, &open, stability, 40 * MIB);
        assert_eq!(refusal, Some(Errno::NO_SPACE), "{written} bytes were written");
        assert!(written <= 8 * MIB, "{written} bytes were written");
    }
    let left = served.space();
    assert!(left.bytes_free > 40 * MIB, "{left:?}");
    // Root on the host can still use it.
    std::fs::write(served.path("of root"), vec![1; 10 * MIB as usize]).expect("written");
    drop((taken, open, served));
}

/// Sets the quota of users on this file system.
fn set_quota(mounted: &Mounted, bytes: u64) -> Result<(), String> {
    let found = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(mounted.path()).output();
    let found = found.map_err(|error| format!("findmnt: {error}"))?;
    let device = CString::new(String::from_utf8_lossy(&found.stdout).trim()).expect("a path");
    const QFMT_VFS_V1: libc::c_int = 4;
    // SAFETY: all zeroes is a valid limit, which has integers only.
    let mut limit: libc::dqblk = unsafe { std::mem::zeroed() };
    (limit.dqb_bhardlimit, limit.dqb_bsoftlimit) = (bytes / 1024, bytes / 1024);
    limit.dqb_valid = libc::QIF_BLIMITS;
    let command = |command: libc::c_int| command << 8 | libc::USRQUOTA;
    // SAFETY: the device is a C string; the first call reads nothing else, the second reads the limit.
    let results = unsafe {
        let on = libc::quotactl(command(libc::Q_QUOTAON), device.as_ptr(), QFMT_VFS_V1, c"".as_ptr().cast_mut().cast());
        let on = if on == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        let set = command(libc::Q_SETQUOTA);
        let set = libc::quotactl(set, device.as_ptr(), OWNER as libc::c_int, (&raw mut limit).cast());
        (on, if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) })
    };
    match results {
        (Ok(()), Ok(())) => Ok(()),
        (on, set) => Err(format!("no quota on {device:?}: {on:?}, {set:?}")),
    }
}

fn the_quota_of_its_owner_bounds_a_file(rig: Rig) {
    const WITH_QUOTA: &[&str] = &["-q", "-F", "-O", "quota", "-E", "quotatype=usrquota"];
    // Needs the quota format of ext4 (CONFIG_QFMT_V2).
    let Some(mounted) = Mounted::if_kernel_can(Kind::Image("mkfs.ext4", WITH_QUOTA)) else { return };
    if let Err(why) = set_quota(&mounted, 4 * MIB) {
        testkit::skip!("{why}");
    }
    let Some(mut served) = ServedTree::at(rig, &mounted.path()) else { return };
    for (name, stability) in [("first", Stability::Unstable), ("second", Stability::Stable)] {
        let open = opened(&mut served, name);
        let (written, refusal) = fill(&mut served, &open, stability, 20 * MIB);
        assert_eq!(refusal, Some(Errno(libc::EDQUOT)), "{written} bytes were written");
        assert!(written <= 4 * MIB, "{written} bytes were written");
    }
    drop(served);
}
