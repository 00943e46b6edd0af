//! In a process of its own, since it checks what the whole process has pinned.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::Duration;

use machine::linux::{Config, Engine, Error, Processors, machines, tree};
use machine::tree::{TreeCall, TreeOp};
use machine::{Errno, Machine, Op, Park, Region, RegionId, Token};
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

/// The cores of each thread of this process that has this name.
fn cores_of_threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("listed").map(|task| task.expect("read").path());
    let named =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    named.map(|task| cores_in(&std::fs::read_to_string(task.join("status")).expect("a status"))).collect()
}

fn cores_in(status: &str) -> String {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim().into()
}

#[test]
fn a_lone_call_is_made_on_the_processors_core_and_others_by_the_pool() {
    let config = Config { processors: Processors::Count(1), engine: Engine::IoUring, ..Config::default() };
    let mut builders = match machines(&config) {
        Ok((builders, _)) => builders,
        Err(Error::NoIoUring(reason)) => skip!("no io_uring: {reason}"),
        Err(error) => panic!("{error}"),
    };
    let mut machine = builders.remove(0)().expect("a machine");
    let place = tempfile::tempdir().expect("a temporary directory");
    let open = tree::open(place.path(), false, None).expect("a tree");
    let mut next = 0;
    let mut call = |machine: &mut Box<dyn Machine>, requests| {
        let op =
            TreeOp { tree: open.tree, caller: None, call: TreeCall::Space, reply: Default::default(), around: None };
        // SAFETY: the operation has no memory of its own.
        unsafe { machine.start(Token(next), Op::Tree(Box::new(op))) };
        next += 1;
        let mut done = Vec::new();
        while done.is_empty() {
            machine.enter(Park::Until { deadline: None, requests }, &mut done);
        }
        assert_eq!(done.pop().expect("one").result, Ok(0));
    };
    for _ in 0..10 {
        call(&mut machine, 1);
    }
    let own = cores_in(&std::fs::read_to_string("/proc/thread-self/status").expect("a status"));
    assert_eq!((cores_of_threads("awase-near"), cores_of_threads("awase-file")), (vec![own], vec![]));
    // After two requests were waited for; whoever is kept from running for long is alone again.
    let is_in_pool = (0..1000).any(|_| {
        let deadline = Some(machine.now() + Duration::from_micros(50));
        machine.enter(Park::Until { deadline, requests: 2 }, &mut Vec::new());
        call(&mut machine, 2);
        !cores_of_threads("awase-file").is_empty()
    });
    assert!(is_in_pool);
}
