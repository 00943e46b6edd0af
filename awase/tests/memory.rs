//! The cache grows into free memory and shrinks when another process needs it, measured in a control group with a real
//! neighbour. Where no group can be created (no root, no memory controller), only configured sizes are tested.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use testkit::group::Group;
use testkit::nbd::Client;
use testkit::process::resident;
use testkit::server::{AWASE, Sandbox, Server};
use testkit::skip;

const MIB: u64 = 1 << 20;

/// Size of the disk: more than the cache may ever hold.
const DISK: u64 = 512 * MIB;

/// Limit of the group of server and neighbour.
const LIMIT: u64 = 400 * MIB;

const NEIGHBOUR: u64 = 200 * MIB;

/// What the neighbour takes as fast as a core writes it: less than the reserve, a quarter of the limit, so that it does not
/// matter how long the server waits for a processor.
const BURST: u64 = 50 * MIB;

/// Of a burst, what the pipe and the neighbour take besides.
const BURST_WITHOUT_DATA: u64 = 8 * MIB;

/// Code, stacks, metadata, rings.
const SERVER_WITHOUT_CACHE: u64 = 32 * MIB;

/// The promise is one second; a machine that is busy with other tests gets more.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);

const READ_BYTES: u32 = 1 << 20;

/// A neighbour takes memory as fast as a core writes it: two at once would starve everything else.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A sparse image in which each MiB begins with its number. Served to be read only: of what may be written, holes are not
/// cached.
fn image(sandbox: &Sandbox) {
    let file = fs::File::create(sandbox.file("disk.img")).expect("create");
    file.set_len(DISK).expect("size");
    for at in (0..DISK).step_by(MIB as usize) {
        file.write_all_at(&at.to_le_bytes(), at).expect("write");
    }
    file.sync_all().expect("sync");
}

/// Reads a MiB and asserts its content.
fn check(client: &mut Client, at: u64) {
    let bytes = client.read(at, READ_BYTES).expect("read");
    assert_eq!(bytes[..8], at.to_le_bytes(), "the number at {at}");
    assert!(bytes[8..].iter().all(|byte| *byte == 0), "what follows the number at {at}");
}

fn check_all(client: &mut Client) {
    (0..DISK).step_by(MIB as usize).for_each(|at| check(client, at));
}

/// A process that holds memory: `tail` buffers the end of its input until that ends. Killed when dropped.
struct Neighbour {
    process: Child,
    input: ChildStdin,
}

impl Neighbour {
    fn new(group: &Group, bytes: u64) -> Neighbour {
        let mut command = group.command("tail");
        command.args(["-c", &bytes.to_string()]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = command.spawn().expect("tail");
        let input = process.stdin.take().expect("a pipe");
        Neighbour { process, input }
    }

    fn take(&mut self, bytes: u64) {
        let some = vec![1; MIB as usize];
        for _ in 0..bytes / MIB {
            self.input.write_all(&some).expect("the neighbour lives");
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn serve_in(group: &Group, sandbox: &Sandbox, engine: &str) -> Server {
    let mut command = group.command(&AWASE);
    command.args([
        "serve",
        "--nbd",
        "none",
        "--engine",
        engine,
        "--export",
        "name=d,kind=file,path=disk.img,read_only=true",
    ]);
    sandbox.start(command)
}

/// Reads until the cache has grown into half of what is free: in the background, so slower on a busy machine.
fn read_until_large(client: &mut Client, server: &Server) {
    let start = Instant::now();
    while resident(server.id()) < LIMIT / 2 {
        check_all(client);
        let found = resident(server.id()) / MIB;
        assert!(start.elapsed() < 10 * GIVEN_BACK_WITHIN, "the cache does not grow into free memory: {found} MiB");
    }
}

/// Reads until the server leaves `bytes` of the group's limit.
fn read_until_fits(client: &mut Client, group: &Group, bytes: u64) {
    let start = Instant::now();
    for at in (0..DISK).step_by(MIB as usize).cycle() {
        if group.used() + bytes <= LIMIT {
            return;
        }
        assert!(start.elapsed() < GIVEN_BACK_WITHIN, "{} MiB are used, and stay so", group.used() / MIB);
        check(client, at);
    }
}

fn shrinks(engine: &str) {
    let _guard = ONE_AT_A_TIME.lock();
    let Some(group) = Group::new(engine, LIMIT) else { skip!("no control group can be created") };
    let sandbox = Sandbox::new();
    image(&sandbox);
    let server = serve_in(&group, &sandbox, engine);
    let mut client = Client::connect(&server.socket(), "d").expect("connect");

    // More is read than it may hold; it grows within the group's limit.
    read_until_large(&mut client, &server);
    check_all(&mut client);
    let full = resident(server.id());
    assert!(full < LIMIT, "{} MiB", full / MIB);
    assert_eq!(group.killed(), 0, "the cache grew until the kernel killed");

    let start = Instant::now();
    let mut neighbour = Neighbour::new(&group, NEIGHBOUR);
    for _ in 0..NEIGHBOUR / BURST {
        read_until_fits(&mut client, &group, BURST + BURST_WITHOUT_DATA);
        neighbour.take(BURST);
    }
    println!(
        "{engine}: {} MiB cached; a neighbour took {} MiB in {:.0?}, and left the server {} MiB",
        full / MIB,
        NEIGHBOUR / MIB,
        start.elapsed(),
        resident(server.id()) / MIB
    );
    assert_eq!(group.killed(), 0, "the server took what it had left");
    check_all(&mut client);
    assert!(neighbour.process.try_wait().expect("wait").is_none(), "the neighbour is gone");
    assert!(group.used() <= LIMIT);

    // It grows again into the memory that the neighbour has freed.
    drop(neighbour);
    read_until_large(&mut client, &server);
    assert_eq!(group.killed(), 0);
}

#[test]
fn the_cache_shrinks_before_a_neighbour_is_killed_with_io_uring() {
    shrinks("auto");
}

#[test]
fn the_cache_shrinks_before_a_neighbour_is_killed_with_threads() {
    shrinks("threads");
}

#[test]
fn the_cache_never_exceeds_its_configured_size() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let size = 64 * MIB;
    let server = sandbox.serve(&["--memory", "64MiB", "--export", "name=d,kind=file,path=disk.img,read_only=true"]);
    let mut client = Client::connect(&server.socket(), "d").expect("connect");
    for at in (0..DISK).step_by(MIB as usize) {
        check(&mut client, at);
        let found = resident(server.id());
        assert!(found < size + SERVER_WITHOUT_CACHE, "{} MiB after {} MiB were read", found / MIB, at / MIB);
    }
    assert!(resident(server.id()) > size / 2, "the cache is not used");
}

#[test]
fn an_idle_server_is_small() {
    let server = Sandbox::new().serve(&["--export", "name=d,kind=ram,size=1GiB"]);
    Client::connect(&server.socket(), "d").expect("connect").read(0, 4096).expect("read");
    let found = resident(server.id());
    assert!(found <= SERVER_WITHOUT_CACHE, "{} KiB", found >> 10);
}

/// See capabilities(7).
const CAP_IPC_LOCK: u32 = 14;

fn status_of(server: &Server, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("the server lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

#[test]
fn with_the_capability_code_and_heap_are_locked_and_the_caches_address_space_is_not() {
    let server = Sandbox::new().serve(&["--export", "name=d,kind=ram,size=1MiB"]);
    if u64::from_str_radix(&status_of(&server, "CapEff"), 16).expect("a set") >> CAP_IPC_LOCK & 1 == 0 {
        skip!("the server may not lock memory");
    }
    let kib = |name| status_of(&server, name).trim_end_matches(" kB").parse::<u64>().expect("a number");
    let (locked, all) = (kib("VmLck"), kib("VmSize"));
    assert!(locked > 0, "nothing is locked");
    assert!(locked < all / 2, "{locked} of {all} KiB are locked: the cache could not shrink");
}
