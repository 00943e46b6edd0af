//! Signals end a server in order, whoever reads what it says, and at once where it cannot.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use testkit::nbd::Client;
use testkit::server::{AWASE, Sandbox, Server, await_that, client};

const EXPORT: &str = "[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1MiB\"\n";

const DISK: &str =
    "[[export]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\ncreate = true\n";

/// Reads a configuration with a value that is refused.
fn reload_with(sandbox: &Sandbox, server: &mut Server, value: &str) {
    sandbox.write("awase.toml", &format!("processors = {value:?}\n"));
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
}

/// Fills a pipe to which the server writes, and which nobody reads.
fn fill(server: &Server, descriptor: i32) {
    let path = format!("/proc/{}/fd/{descriptor}", server.id());
    let mut pipe = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("a pipe");
    for bytes in [4096, 1] {
        while pipe.write(&vec![b'.'; bytes]).is_ok() {}
    }
}

fn make_fifo(path: &Path) {
    client("mkfifo", &[path.to_str().expect("UTF-8")]);
}

/// Waits until the server reads from a FIFO. As long as the file is open, it does not read to its end.
fn await_reader(fifo: &Path) -> File {
    let mut opened = None;
    await_that("it is read", || {
        opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(fifo).ok();
        opened.is_some()
    });
    opened.expect("open")
}

/// Threads that have ended meanwhile have no name.
fn has_processors(server: &Server) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", server.id())).expect("threads");
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.flatten().any(|thread| name(thread).starts_with("processor"))
}

/// Writes into the cache of a server of [`DISK`].
fn write_unflushed(server: &Server) -> Client {
    let mut client = Client::connect(&server.socket(), "disk").expect("connect");
    client.write(4096, &[7; 8192]).expect("write into the cache");
    client
}

fn assert_ends_with_all_written(sandbox: &Sandbox, server: Server) {
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    let image = fs::read(sandbox.file("disk.img")).expect("image");
    assert!(image[4096..][..8192] == [7; 8192], "an acknowledged write is not in the file");
}

#[test]
fn a_server_whose_output_nobody_reads_reloads_writes_everything_and_ends() {
    for descriptor in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        let sandbox = Sandbox::new();
        sandbox.write("awase.toml", DISK);
        let mut server = sandbox.serve(&["--config", "awase.toml"]);
        let _client = write_unflushed(&server);
        fill(&server, descriptor);
        reload_with(&sandbox, &mut server, "nonsense");
        server.signal(libc::SIGTERM);
        assert_ends_with_all_written(&sandbox, server);
    }
}

#[test]
fn a_refused_reload_says_why_in_the_status_and_a_good_one_what_is_served() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", &[EXPORT, DISK].concat());
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let mut reload = |text: &str, status: &str| {
        sandbox.write("awase.toml", text);
        server.signal(libc::SIGHUP);
        server.await_notice(status);
    };
    let why = "awase.toml:5: export \"r\" read_only = 3 is not allowed; allowed: true, false";
    let wrong = EXPORT.to_owned() + "read_only = 3\n";
    reload(&wrong, &format!("STATUS=the configuration was not changed: {why}"));
    let more = wrong + "overlay = 3\n";
    reload(&more, &format!("STATUS=the configuration was not changed (2 problems): {why}"));
    reload(EXPORT, "STATUS=serving 1 disk");
    // A notice has a bound.
    reload(&format!("processors = \"{}\"\n", "x".repeat(1 << 20)), "READY=1");
    reload(&[EXPORT, DISK].concat(), "STATUS=serving 2 disks");
    server.end();
}

#[test]
fn a_server_notifies_a_watchdog() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", EXPORT);
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", "none", "--metrics", "none", "--config", "awase.toml"]);
    command.env("WATCHDOG_USEC", "2000000").env_remove("WATCHDOG_PID");
    let mut server = sandbox.start(command);
    for _ in 0..3 {
        server.await_notice("WATCHDOG=1");
    }
    server.end();
}

#[test]
fn a_stream_that_nobody_reads_holds_up_no_other() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", EXPORT);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    fill(&server, libc::STDOUT_FILENO);
    sandbox.write("awase.toml", &[EXPORT, DISK].concat());
    server.signal(libc::SIGHUP);
    server.await_notice("READY=1");
    reload_with(&sandbox, &mut server, "nonsense");
    server.await_error("\"nonsense\" is not allowed");
}

#[test]
fn a_report_is_complete_however_many_lines_it_has() {
    const EXPORTS: usize = 1 << 10;
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", EXPORT);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let long = "k".repeat(2 << 10);
    let export = |number| format!("[[export]]\nname = \"{number}\"\nkind = \"{long}\"\n");
    sandbox.write("awase.toml", &(0..EXPORTS).map(export).collect::<String>());
    server.signal(libc::SIGHUP);
    server.await_notice("READY=1");
    server.await_error("the configuration was not changed");
    let errors = server.end();
    assert_eq!(errors.matches(&long).count(), EXPORTS);
}

#[test]
fn what_is_read_late_is_complete_and_in_order_and_what_was_dropped_is_counted() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", EXPORT);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    fill(&server, libc::STDERR_FILENO);
    let values = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.repeat(300 << 10));
    values.iter().for_each(|value| reload_with(&sandbox, &mut server, value));
    server.await_error("messages were dropped");
    reload_with(&sandbox, &mut server, "late");
    fill(&server, libc::STDERR_FILENO);
    reload_with(&sandbox, &mut server, "latest");
    server.await_error("\"latest\" is not allowed");
    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert!(status.success(), "{status}");
    let at = |part: &str| errors.find(part).unwrap_or_else(|| panic!("no {:?}", &part[..part.len().min(60)]));
    let kept = values[..4].iter().map(|value| at(&format!("awase.toml:1: processors = \"{value}\" is not allowed")));
    let later = ["awase: 2 messages were dropped", "\"late\" is not", "\"latest\" is not"].map(at);
    let places: Vec<usize> = kept.chain(later).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(errors.matches("the configuration was not changed").count(), 6);
}

#[test]
fn a_server_whose_configuration_cannot_be_read_to_its_end_writes_everything_and_ends() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", DISK);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let _client = write_unflushed(&server);
    fs::remove_file(sandbox.file("awase.toml")).expect("remove");
    make_fifo(&sandbox.file("awase.toml"));
    server.signal(libc::SIGHUP);
    let _held = await_reader(&sandbox.file("awase.toml"));
    server.signal(libc::SIGHUP);
    server.await_error("the configuration is still being read");
    server.signal(libc::SIGTERM);
    assert_ends_with_all_written(&sandbox, server);
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_file() {
    let sandbox = Sandbox::new();
    let listen = "[listen]\nnbd = []\nnfs = \"127.0.0.1:0\"\npostgres = []\nmetrics = []\n";
    sandbox.write("awase.toml", &[listen, EXPORT].concat());
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--config", "awase.toml"]);
    let server = sandbox.start(command);
    let secret = sandbox.file("awase-data/nfs-secret");
    make_fifo(&secret);
    sandbox.make_directory("d");
    let directory = "[[export]]\nname = \"d\"\nkind = \"directory\"\npath = \"d\"\nsecure = false\n";
    sandbox.write("awase.toml", &[listen, EXPORT, directory].concat());
    server.signal(libc::SIGHUP);
    let _held = await_reader(&secret);
    await_that("it ends", || {
        server.signal(libc::SIGTERM);
        server.has_ended()
    });
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(1), "{errors}");
}

#[test]
fn a_second_signal_to_a_server_that_only_waits_for_its_reader_is_no_failure() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", DISK);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    drop(write_unflushed(&server));
    for descriptor in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        fill(&server, descriptor);
    }
    reload_with(&sandbox, &mut server, "nonsense");
    server.signal(libc::SIGTERM);
    await_that("its processors end", || !has_processors(&server));
    await_that("it ends", || {
        server.signal(libc::SIGTERM);
        server.has_ended()
    });
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
}
