//! A server run by an ordinary user serves directories, with real clients and across restarts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{nfsstat3, stable_how};
use testkit::nfs::Client;
use testkit::server::{AWASE, Sandbox, Server, attempt, client, is_root, nfs_port};
use testkit::skip::note;

/// Only a server that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server's user, to which root is also squashed.
const USER: u32 = 65534;

/// A user without other processes: the host counts locked memory for each user.
const ANOTHER_USER: u32 = 65533;

/// Awase as an ordinary user; `None` where that is not possible.
fn awase() -> Option<Command> {
    as_user(USER, &AWASE)
}

/// `program`, which may start Awase, as the ordinary user `user`, to whom the test's directory is given.
fn as_user(user: u32, program: &str) -> Option<Command> {
    if !is_root() {
        return Some(Command::new(program));
    }
    let change = format!("setpriv --reuid {user} --regid {user} --clear-groups");
    let may_run = format!("{change} test -x '{}'", *AWASE);
    if !attempt("sh", &["-c", &may_run]).status.success() {
        note(&format!("an ordinary user can't run {}", *AWASE));
        return None;
    }
    let run = format!(
        "chown -R {user}:{user} . && chmod -R u+rwX . && {{ [ ! -e notify.sock ] || chmod 777 notify.sock; }} && \
         HOME=$PWD exec {change} \"$0\" \"$@\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &run, program]);
    Some(command)
}

/// A server run by an ordinary user, and the port of its directories.
fn serve(sandbox: &Sandbox) -> Option<(Server, u16)> {
    let mut command = awase()?;
    command.args(["serve", "--nbd", "none", "--nfs", "127.0.0.1:0", "--postgres", "none"]);
    let mut server = sandbox.start(command);
    let port = nfs_port(&server.banner());
    Some((server, port))
}

#[test]
fn real_clients_use_the_directory_of_an_ordinary_user() {
    let sandbox = Sandbox::new();
    let Some((server, port)) = serve(&sandbox) else { return };
    let uri = |name: &str, port: u16| format!("nfs://127.0.0.1/files/{name}?nfsport={port}&mountport={port}");
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(sandbox.file("source"), &content).expect("written");
    let source = sandbox.file("source");
    client("nfs-cp", &[source.to_str().expect("a path"), &uri("copy", port)]);
    client("nfs-cp", &["/etc/hostname", &uri("small", port)]);
    let list = client("nfs-ls", &[&uri("", port)]);
    assert!(list.contains("copy") && list.contains("small") && list.contains("3000000"), "{list}");
    assert!(attempt("nfs-cat", &[&uri("copy", port)]).stdout == content, "the content read differs from that written");
    assert!(std::fs::read(sandbox.file("awase-data/files/copy")).expect("read") == content);
    server.end();
    let Some((_server, port)) = serve(&sandbox) else { return };
    assert!(attempt("nfs-cat", &[&uri("copy", port)]).stdout == content, "after a restart");
}

#[test]
fn root_of_a_user_namespace_serves_as_its_ordinary_user() {
    if !attempt("unshare", &["--user", "--map-root-user", "true"]).status.success() {
        testkit::skip!("no user namespaces");
    }
    let Some(mut command) = as_user(USER, "unshare") else { return };
    command.args([
        "--user",
        "--map-root-user",
        &*AWASE,
        "serve",
        "--nbd",
        "none",
        "--postgres",
        "none",
        "--metrics",
        "none",
    ]);
    command.args(["--nfs", "127.0.0.1:0"]);
    let mut server = Sandbox::new().start(command);
    let port = nfs_port(&server.banner());
    let uri = format!("nfs://127.0.0.1/files/note?nfsport={port}&mountport={port}");
    client("nfs-cp", &["/etc/hostname", &uri]);
    assert_eq!(client("nfs-cat", &[&uri]), std::fs::read_to_string("/etc/hostname").expect("readable"));
}

#[test]
fn an_ordinary_user_serves_at_an_unprivileged_port() {
    let sandbox = Sandbox::new();
    let Some(mut command) = awase() else { return };
    let output = command.args(["check", "--nbd", "none"]).current_dir(sandbox.path()).output().expect("run");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("nfs 127.0.0.1:20490"), "{printed}");
    assert!(printed.contains("/files"), "{printed}");
}

#[test]
fn memory_beyond_the_limit_of_locked_memory_is_reported_and_counted() {
    let Some(mut command) = as_user(ANOTHER_USER, "sh") else { return };
    // Enough for rings, and for a part of the cache.
    command.args(["-c", "ulimit -l 4096; exec \"$0\" \"$@\"", &AWASE, "serve", "--nbd", "none", "--nfs", "none"]);
    command.args(["--memory", "64MiB", "--metrics", "127.0.0.1:0", "--export", "name=r,kind=ram,size=64MiB"]);
    let mut server = Sandbox::new().start(command);
    let banner = server.banner();
    if !banner.contains(", io_uring") || banner.contains("registered memory") {
        return testkit::skip::note_kernel("without io_uring of Linux 6.15 nothing is registered");
    }
    let address = banner.split_once("http://").and_then(|(_, rest)| rest.split_once('/')).expect("an address").0;
    let mut client = testkit::nbd::Client::connect(&server.socket(), "r").expect("connect");
    (0..32).for_each(|at| client.write(at << 20, &[1; 1 << 20]).expect("written"));
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).expect("sent");
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).expect("an answer");
    let declined = metrics.lines().filter(|line| line.starts_with("awase_regions_declined_total"));
    let declined: f64 = declined.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
    assert!(declined > 0.0, "{metrics}");
    let errors = server.end();
    assert!(errors.contains("of the cache only 4MiB can be registered"), "{errors}");
}

#[test]
fn a_server_that_can_start_no_thread_writes_everything_before_it_ends() {
    for engine in ["auto", "threads"] {
        let Some(mut command) = awase() else { return };
        command.args(["serve", "--nbd", "none", "--nfs", "none", "--metrics", "none", "--engine", engine]);
        command.args(["--export", "name=disk,kind=file,path=disk.img,create=true,size=1MiB"]);
        let sandbox = Sandbox::new();
        let server = sandbox.start(command);
        let mut client = testkit::nbd::Client::connect(&server.socket(), "disk").expect("connect");
        let mut limit = as_user(USER, "prlimit").expect("as before");
        limit.args(["--nproc=0", "--pid", &server.id().to_string()]).current_dir(sandbox.path());
        assert!(limit.status().expect("prlimit (util-linux)").success());
        client.write(4096, &[7; 8192]).expect("write into the cache");
        server.end();
        let image = std::fs::read(sandbox.file("disk.img")).expect("image");
        assert!(image[4096..][..8192] == [7; 8192], "with {engine}, an acknowledged write is not in the file");
    }
}

#[test]
fn handles_survive_crashes_renames_and_loss_of_the_table_of_places() {
    let sandbox = Sandbox::new();
    let Some((server, port)) = serve(&sandbox) else { return };
    let mut nfs = Client::connect(port).expect("connect");
    let root = nfs.mount("/files").expect("mounted");
    let dir = nfs.make_directory(&root, "dir").expect("an answer").expect("made");
    let file = nfs.create(&dir, "file").expect("an answer").expect("made");
    nfs.write(&file, 0, b"content", stable_how::FILE_SYNC).expect("written");
    server.crash();
    let files = sandbox.file("awase-data/files");
    let (server, port) = serve(&sandbox).expect("as before");
    let mut nfs = Client::connect(port).expect("connect");
    assert_eq!(nfs.read(&file, 0, 100).expect("read"), b"content");
    // Moved on the host, while it is served and while not.
    std::fs::rename(files.join("dir"), files.join("moved")).expect("moved");
    nfs.write(&file, 0, b"changed", stable_how::FILE_SYNC).expect("written");
    server.crash();
    std::fs::rename(files.join("moved/file"), files.join("file")).expect("moved");
    let entries = std::fs::read_dir(sandbox.file("awase-data")).expect("listed").filter_map(Result::ok);
    let places: Vec<_> = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("places-")).collect();
    assert_eq!(places.len(), 1, "one file of places for one directory");
    std::fs::remove_file(places[0].path()).expect("removed");
    let (_server, port) = serve(&sandbox).expect("as before");
    let mut nfs = Client::connect(port).expect("connect");
    assert_eq!(nfs.read(&file, 0, 100).expect("read"), b"changed");
    std::fs::remove_file(files.join("file")).expect("removed");
    std::fs::write(files.join("file"), "another").expect("written");
    // Until attributes are revalidated the old file is served; then its handle is stale, and never another file.
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < TIMEOUT, "a removed file is still served");
        match nfs.read(&file, 0, 100) {
            Err(error) if error.to_string() == nfsstat3::NFS3ERR_STALE.to_string() => break,
            read => assert_eq!(read.expect("read"), b"changed"),
        }
    }
}
