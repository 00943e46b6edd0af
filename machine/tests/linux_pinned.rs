//! In a process of its own, since it checks what the whole process has pinned.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use machine::linux::{Config, Engine, Error, Processors, machines};
use machine::{Errno, Region, RegionId};
use testkit::skip;

const LEN: usize = 1 << 20;

/// Memory that the kernel has pinned for this process, in KiB.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.expect("a number")
}

#[test]
fn registered_memory_is_pinned_and_withdrawn_memory_is_not() {
    let config = Config { processors: Processors::Count(1), engine: Engine::IoUring, pin: false, ..Config::default() };
    let mut builders = match machines(&config) {
        Ok((builders, _)) => builders,
        Err(Error::NoIoUring(reason)) => skip!("no io_uring: {reason}"),
        Err(error) => panic!("{error}"),
    };
    let mut machine = builders.remove(0)().expect("a machine");
    if machine.describe().contains("registered memory") {
        skip!("memory is registered since Linux 6.15");
    }
    let layout = Layout::from_size_align(LEN, 4096).expect("a layout");
    // SAFETY: the layout has a size.
    let base = unsafe { alloc_zeroed(layout) };
    assert!(!base.is_null());
    let id = RegionId(3);
    let before = pinned_kib();
    match machine.offer_region(Region { id, base, len: LEN }) {
        Ok(()) => assert_eq!(pinned_kib() - before, LEN as u64 / 1024),
        // Beyond the limit of locked memory.
        Err(errno) => assert_eq!(errno, Errno::NO_MEMORY),
    }
    machine.withdraw_region(id);
    assert_eq!(pinned_kib(), before);
    // What cannot be registered is declined.
    let id = RegionId(u16::MAX);
    assert_eq!(machine.offer_region(Region { id, base, len: LEN }), Err(Errno::INVALID));
    machine.withdraw_region(id);
    assert_eq!(pinned_kib(), before);
    drop(machine);
    // SAFETY: allocated above with this layout.
    unsafe { dealloc(base, layout) };
}
