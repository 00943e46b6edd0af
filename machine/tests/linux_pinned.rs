//! In a process of its own, since it checks what the whole process has pinned and locked, and finds threads by their names.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::linux::{Config, Engine, Error, Processors, file, machines, tree};
use machine::tree::{Around, BeforeAndAfter, OpenTree, SetAttributes, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Machine, Op, Park, Region, RegionId, Token};
use parking_lot::{Mutex, MutexGuard};
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
    let _only = ONE_AT_A_TIME.lock();
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

/// The cores of each thread of this process whose name begins so.
fn cores_of_threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("listed").map(|task| task.expect("read").path());
    let named =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)));
    // One that has ended meanwhile has none.
    named.filter_map(|task| std::fs::read_to_string(task.join("status")).ok().map(|status| cores_in(&status))).collect()
}

fn cores_in(status: &str) -> String {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim().into()
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Alone on its core, and in this process.
struct Alone {
    machine: Box<dyn Machine>,
    next: u64,
    _only: MutexGuard<'static, ()>,
}

impl Alone {
    /// `None` where io_uring is forbidden.
    fn new() -> Option<Alone> {
        let only = ONE_AT_A_TIME.lock();
        while ["awase-near", "awase-file", "iou-wrk"].iter().any(|name| !cores_of_threads(name).is_empty()) {
            std::thread::yield_now();
        }
        let config = Config { processors: Processors::Count(1), engine: Engine::IoUring, ..Config::default() };
        let mut builders = match machines(&config) {
            Ok((builders, _)) => builders,
            Err(Error::NoIoUring(reason)) => {
                skip::note(&format!("no io_uring: {reason}"));
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut alone = Alone { machine: builders.remove(0)().expect("a machine"), next: 0, _only: only };
        // Who was there before the first wait is forgotten after 10 ms.
        alone.idle(1);
        std::thread::sleep(Duration::from_millis(11));
        Some(alone)
    }

    fn start(&mut self, op: Op) {
        // SAFETY: the operations have no memory of their own.
        unsafe { self.machine.start(Token(self.next), op) };
        self.next += 1;
    }

    /// Waits as if for so many requests that are in progress.
    fn idle(&mut self, requests: usize) {
        let deadline = Some(self.machine.now() + Duration::from_millis(2));
        self.machine.enter(Park::Until { deadline, requests }, &mut Vec::new());
    }

    fn finish(&mut self, count: usize) {
        let mut done = Vec::new();
        while done.len() < count {
            self.machine.enter(Park::Until { deadline: None, requests: 1 }, &mut done);
        }
        assert!(done.iter().all(|done| done.result == Ok(0)), "{done:?}");
    }
}

fn op(open: &OpenTree, call: TreeCall, around: Option<Around>) -> Op {
    Op::Tree(Box::new(TreeOp { tree: open.tree, caller: None, call, reply: Default::default(), around }))
}

#[test]
fn a_lone_call_is_made_on_the_processors_core_and_others_by_the_pool() {
    let Some(mut alone) = Alone::new() else { return };
    let place = tempfile::tempdir().expect("a temporary directory");
    let open = tree::open(place.path(), false, None, tree::Handles::Known).expect("a tree");
    if !tree::finds_by_handle(&open) {
        skip!("a tree may be searched for long");
    }
    let options = file::OpenOptions { writable: true, create_size: Some(4096), ..file::OpenOptions::default() };
    let file = file::open(&place.path().join("file"), options).expect("a file");
    for _ in 0..10 {
        for of in [op(&open, TreeCall::Space, None), Op::Flush { file: file.file }] {
            alone.idle(1);
            alone.start(of);
            alone.finish(1);
        }
    }
    let own = cores_in(&std::fs::read_to_string("/proc/thread-self/status").expect("a status"));
    let threads = ["awase-near", "awase-file", "iou-wrk"].map(cores_of_threads);
    assert_eq!(threads, [vec![own], vec![], vec![]]);
    let is_in_pool = (0..1000).any(|_| {
        alone.idle(2);
        alone.start(op(&open, TreeCall::Space, None));
        alone.finish(1);
        !cores_of_threads("awase-file").is_empty()
    });
    // Whoever is kept from running for long is alone again.
    assert!(is_in_pool, "one of two requests");
    alone.idle(1);
    alone.start(op(&open, TreeCall::Space, None));
    drop(alone);

    let Some(mut alone) = Alone::new() else { return };
    alone.idle(1);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2) {}
    alone.start(op(&open, TreeCall::Space, None));
    alone.finish(1);
    assert_eq!(cores_of_threads("awase-near"), Vec::<String>::new(), "busy with something else");
}

#[test]
fn changes_in_one_directory_are_made_by_one_thread_at_a_time_also_if_the_first_was_alone() {
    const MANY: usize = 100;
    let Some(mut alone) = Alone::new() else { return };
    let place = tempfile::tempdir().expect("a temporary directory");
    let open = tree::open(place.path(), false, None, tree::Handles::Known).expect("a tree");
    if !tree::finds_by_handle(&open) {
        skip!("the host's changes are not told from ours");
    }
    let root = Arc::new(Mutex::new(None));
    let reply = Arc::clone(&root);
    alone.start(Op::Tree(Box::new(TreeOp {
        tree: open.tree,
        caller: None,
        call: TreeCall::Root,
        reply,
        around: None,
    })));
    alone.finish(1);
    let Some(TreeReply::Node(dir, _)) = root.lock().take() else { panic!("no root") };
    for round in 0..20 {
        alone.idle(1);
        let asked: Vec<_> = (0..MANY)
            .map(|k| {
                let attributes: Arc<Mutex<Vec<BeforeAndAfter>>> = Arc::default();
                let around = Some(Around { nodes: vec![dir], attributes: Arc::clone(&attributes) });
                let name = format!("{round}-{k}").into_bytes();
                let attributes_of_new = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
                alone.start(op(&open, TreeCall::MakeDirectory { dir, name, attributes: attributes_of_new }, around));
                attributes
            })
            .collect();
        alone.finish(MANY);
        assert!(asked.iter().all(|around| around.lock()[0].0.is_some()), "round {round}: another thread was seen");
    }
}

/// Do rings of this process have the directory open? `None`: the host does not tell.
fn is_kept(path: &Path) -> Option<bool> {
    let links = fs::read_dir("/proc/self/fd").expect("a list").flatten();
    let mut rings =
        links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[io_uring]")));
    let told = Path::new("/proc/self/fdinfo").join(rings.next()?.file_name());
    let told = fs::read_to_string(told).ok().filter(|told| told.contains("UserFiles"))?;
    // Older hosts tell the last part of the path only.
    let name = path.file_name()?.to_str()?;
    Some(told.lines().any(|line| line.ends_with(name)))
}

#[test]
fn a_directory_is_kept_by_a_ring_while_it_is_locked() {
    let Some(mut alone) = Alone::new() else { return };
    let (directory, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let open = match tree::open_locked(directory.path(), false, Some(state.path()), tree::Handles::Known) {
        Err(error @ tree::OpenTreeError::NoHandles(_)) => return skip::note(&error.to_string()),
        opened => opened.expect("opens"),
    };
    alone.idle(1);
    let Some(is_kept_now) = is_kept(directory.path()) else { return skip::note("rings do not tell of their files") };
    assert!(is_kept_now);
    drop(open);
    alone.idle(1);
    assert_eq!(is_kept(directory.path()), Some(false), "it can be unmounted");
}
