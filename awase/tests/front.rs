//! The command line of the server: messages, signals, reloading, sockets, generated output.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use testkit::nbd::{self, Client};
use testkit::server::{AWASE, Sandbox, await_that};

const RAM: &str = "name=r,kind=ram,size=1MiB";

/// Runs a server that must not start; returns its message.
fn refusal(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let message = refusals(sandbox, arguments);
    assert_eq!(message.lines().count(), 1, "more than one message: {message}");
    message
}

/// As [`refusal`], where there may be several messages.
fn refusals(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let output = sandbox.run(&[&["serve", "--nbd", "none", "--nfs", "none"], arguments].concat());
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{message}");
    message
}

/// The port at loopback that a banner shows.
fn nbd_port(banner: &str) -> u16 {
    let port = banner.split_once("nbd://127.0.0.1:").and_then(|(_, rest)| rest.split_once('/')).expect("an address").0;
    port.parse().expect("a port")
}

#[test]
fn by_default_a_sparse_disk_is_created_and_served() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&[]);
    let image = std::fs::metadata(sandbox.file("awase-data/disk.img")).expect("disk.img");
    assert_eq!(image.len(), 1 << 30);
    assert!(image.blocks() * 512 < 1 << 20, "{} blocks are not sparse", image.blocks());
    assert_eq!(Client::connect(&server.socket(), "disk").expect("connect").size, 1 << 30);
    assert_eq!(Client::connect(&server.socket(), "").expect("connect to the default export").size, 1 << 30);
}

#[test]
fn the_banner_shows_exports_and_how_to_connect() {
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", "127.0.0.1:0", "--processors", "1", "--export", "name=a b,kind=ram,size=3MiB"]);
    let server = Sandbox::new().start(command);
    server.signal(libc::SIGTERM);
    let (_, output, _) = server.wait();
    for part in [
        "a b",
        "3MiB",
        "1 processor",
        "nbd://127.0.0.1:",
        "/a%20b",
        "nbd.sock",
        "nbdinfo",
        "qemu-img",
        "nbd-client -unix",
    ] {
        assert!(output.contains(part), "{part:?} is missing in:\n{output}");
    }
}

#[test]
fn a_wrong_configuration_gives_one_message_and_exit_code_2() {
    for (text, message) in [
        ("processor = 2\n", "bad.toml:1: processor is not a known key; did you mean \"processors\"?"),
        ("memory = \"1MiB\"\n", "bad.toml:1: memory = \"1MiB\" is not between 8MiB and 1PiB"),
        ("[[export]]\nname = \"a\"\nkind = \"fiel\"\n", "bad.toml:3: export \"a\" kind = \"fiel\" is not allowed"),
        ("[[export]]\nname = \"a\"\nkind = \"ram\"\n", "bad.toml:1: export \"a\" size is missing"),
        (
            "[[export]]\nname = \"a\"\nkind = \"file\"\npath = \"none.img\"\n",
            "none.img does not exist; allowed: an existing file, or create = true",
        ),
        ("[[export]]\nname = \"a\"\nkind = \"block\"\npath = \"bad.toml\"\n", "\"bad.toml\" is not a block device"),
        ("= 3\n", "bad.toml:1: is not valid TOML"),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("bad.toml", text);
        let found = refusal(&sandbox, &["--config", "bad.toml"]);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn wrong_flags_are_named_with_exit_code_2() {
    let sandbox = Sandbox::new();
    for (arguments, message) in [
        (["--processors", "none"], "--processors: processors = \"none\" is not allowed"),
        (["--switch", "prioriti=off"], "--switch: switches.prioriti is not a known key; did you mean \"priority\"?"),
        (["--export", "name=a,kind=ram,size=0"], "--export: export \"a\" size = \"0\" is not between"),
        (["--nbd", "example.org"], "--nbd: listen.nbd = [\"example.org\"] holds \"example.org\", not an IP address"),
        (["--config", "missing.toml"], "missing.toml: cannot be read: No such file"),
    ] {
        let found = refusal(&sandbox, &arguments);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn check_prints_all_problems_or_what_would_be_served() {
    let sandbox = Sandbox::new();
    sandbox.write("bad.toml", "processors = 0\nengine = 1\n[[export]]\nname = \"a\"\nkind = \"ram\"\n");
    let output = sandbox.run(&["check", "--config", "bad.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 3);
    let output = sandbox.run(&["check", "--export", RAM]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1MiB  memory"), "{output:?}");
    assert!(!sandbox.file("awase-data").exists(), "check changes nothing");
}

#[test]
fn check_finds_nothing_wrong_with_what_a_server_serves_but_two_names_of_one_file() {
    let sandbox = Sandbox::new();
    let disk = |name: &str| format!("[[export]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}\"\n");
    let database = "[[database]]\nname = \"bank\"\npath = \"bank.db\"\nsize = \"64MiB\"\nprograms = \"programs\"\n";
    let config = format!("[listen]\npostgres_unix = \"psql\"\n{}{database}", disk("one"));
    sandbox.write("awase.toml", &config);
    sandbox.make_directory("programs");
    std::fs::write(sandbox.file("one"), vec![0; 1 << 20]).expect("an image");
    let server = sandbox.serve(&["--config", "awase.toml"]);
    let output = sandbox.run(&["check", "--config", "awase.toml"]);
    let summary = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), summary.matches("(in use now)").count()), (Some(0), 2), "{output:?}");
    std::fs::hard_link(sandbox.file("one"), sandbox.file("two")).expect("a link");
    sandbox.write("awase.toml", &(config + &disk("two")));
    let check_both = || {
        let output = sandbox.run(&["check", "--config", "awase.toml"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("export \"two\" path leads to the medium of export \"one\""), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    };
    check_both();
    server.end();
    check_both();
}

#[test]
fn a_directory_with_the_medium_of_a_disk_or_database_is_refused_also_before_that_is_made() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("c");
    std::os::unix::fs::symlink("c", sandbox.file("link")).expect("a link");
    let directory = |more: &str| format!("[[export]]\nname = \"n\"\nkind = \"directory\"\nsecure = false\n{more}\n");
    let disk = |path: &str| {
        format!("[[export]]\nname = \"m\"\nkind = \"file\"\npath = {path:?}\nsize = \"1MiB\"\ncreate = true\n")
    };
    let database = "[[database]]\nname = \"m\"\npath = \"c/new\"\nsize = \"64MiB\"\n".to_owned();
    let existing = directory("path = \"c\"");
    for (table, medium, directory) in [
        ("export", disk("c/new"), &existing),
        ("export", disk("link/below/new"), &existing),
        ("export", disk("none/../c/new"), &existing),
        ("export", disk("made/new"), &directory("path = \"made\"\ncreate = true")),
        ("database", database, &existing),
    ] {
        let listen = "[listen]\nnbd = []\nnfs = \"127.0.0.1:0\"\npostgres = []\nmetrics = []\n";
        sandbox.write("awase.toml", &[listen, &medium, directory].concat());
        for command in ["check", "serve"] {
            let output = sandbox.run(&[command, "--config", "awase.toml"]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command}, {medium}: {errors}");
            let message = format!("export \"n\" path contains the medium of {table} \"m\"");
            assert!(errors.contains(&message) && errors.lines().count() == 1, "{command}, {medium}: {errors}");
        }
        assert!(std::fs::read_dir(sandbox.file("c")).expect("directory").next().is_none(), "something was made");
    }
}

#[test]
fn a_port_in_use_is_refused() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let message = refusal(&sandbox, &["--nbd", &address, "--export", RAM]);
    assert!(
        message.contains(&format!("listen.nbd cannot be served: {address} is in use by another server")),
        "{message}"
    );
}

#[test]
fn without_descriptors_clients_wait_and_one_message_is_printed() {
    for is_tcp in [false, true] {
        let address = if is_tcp { "127.0.0.1:0" } else { "none" };
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", &AWASE, "serve", "--nbd", address, "--nfs", "none"]);
        command.args(["--metrics", "none", "--export", RAM]);
        let mut server = Sandbox::new().start(command);
        let connect: Box<dyn Fn() -> OwnedFd> = if is_tcp {
            let port = nbd_port(&server.banner());
            Box::new(move || TcpStream::connect(("127.0.0.1", port)).expect("in the queue").into())
        } else {
            let socket = server.socket();
            Box::new(move || UnixStream::connect(&socket).expect("in the queue").into())
        };
        let crowd: Vec<_> = (0..100).map(|_| connect()).collect();
        server.await_error("could not be accepted");
        drop(crowd);
        Client::connect(&server.socket(), "r").expect("descriptors are free again");
        let errors = server.end();
        assert!(errors.contains("limits.connections is 2048, but the limit of 64 open files"), "{errors}");
        assert_eq!(errors.matches("could not be accepted").count(), 1, "{errors}");
    }
}

#[test]
fn a_socket_or_file_of_another_server_is_refused() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    let message = refusals(&sandbox, &["--export", RAM]);
    assert!(message.contains("is in use by another server"), "{message}");
    let message = refusals(&sandbox, &["--nbd-unix", "other.sock", "--postgres-unix", "other.psql"]);
    assert!(message.contains("bank.db is locked"), "{message}");
    // The first server's trace is still found.
    let output = sandbox.run(&["trace", "--event", "processor.started"]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
}

#[test]
fn a_server_starts_after_its_predecessor_was_killed() {
    let sandbox = Sandbox::new();
    sandbox.serve(&[]).crash();
    let server = sandbox.serve(&[]);
    Client::connect(&server.socket(), "disk").expect("connect");
}

#[test]
fn sigterm_writes_everything_and_ends_with_exit_code_0() {
    for engine in ["auto", "threads"] {
        let sandbox = Sandbox::new();
        let mut server = sandbox.serve(&["--engine", engine]);
        let mut client = Client::connect(&server.socket(), "disk").expect("connect");
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        client.write(12_345, &data).expect("write");
        server.signal(libc::SIGTERM);
        server.await_notice("STOPPING=1");
        let (status, _, errors) = server.wait();
        assert_eq!(status.code(), Some(0), "{errors}");
        let image = std::fs::read(sandbox.file("awase-data/disk.img")).expect("image");
        assert!(image[12_345..][..data.len()] == data[..], "an acknowledged write is not in the file");
        assert!(!sandbox.file("awase-data/nbd.sock").exists(), "the socket is not removed");
    }
}

#[test]
fn a_server_whose_standard_error_nobody_reads_any_more_writes_everything() {
    let sandbox = Sandbox::new();
    let config = "[limits]\ndrain_timeout = \"1s\"\n";
    sandbox.write("awase.toml", config);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let mut client = Client::connect(&server.socket(), "disk").expect("connect");
    client.write(4096, &[7; 8192]).expect("write into the cache");
    // The server waits for the rest of this write, and says so in the end.
    let mut stalled = Client::connect(&server.socket(), "disk").expect("connect");
    stalled.send(nbd::Command::Write, 0, 1 << 20, 8192, &[8; 100]).expect("a part of a request");
    server.close_errors();
    sandbox.write("awase.toml", &format!("{config}nonsense = 1\n"));
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
    server.signal(libc::SIGTERM);
    let (status, _, _) = server.wait();
    assert_eq!(status.code(), Some(0), "{status}");
    let image = std::fs::read(sandbox.file("awase-data/disk.img")).expect("image");
    assert!(image[4096..][..8192] == [7; 8192], "an acknowledged write is not in the file");
}

#[test]
fn a_request_in_flight_is_answered_before_the_end() {
    let mut server = Sandbox::new().serve(&["--export", "name=slow,kind=testdev,size=1MiB,latency=300ms"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    // Block 0 is cached: its answer shows that the request before it was received.
    client.read(0, 4096).expect("read");
    let slow = client.ask_to_read(512 << 10, 4096).expect("ask");
    let fast = client.ask_to_read(0, 4096).expect("ask");
    let first = client.take_read(4096).expect("answered");
    server.signal(libc::SIGTERM);
    server.await_notice("STOPPING=1");
    let second = client.take_read(4096).expect("answered before the end");
    let mut answered = [first, second];
    answered.sort_unstable();
    assert_eq!(answered, [slow, fast]);
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
}

#[test]
fn a_second_signal_ends_at_once_with_exit_code_1() {
    let mut server = Sandbox::new().serve(&["--export", "name=slow,kind=testdev,size=1MiB,latency=60s"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    // A whole block, for which nothing is read. Writing it back takes a minute.
    client.write(0, &[1; 4096]).expect("write into the cache");
    server.signal(libc::SIGTERM);
    server.await_notice("STOPPING=1");
    // Two that come at the same time are one.
    await_that("it ends", || {
        server.signal(libc::SIGTERM);
        server.has_ended()
    });
    let (status, _, _) = server.wait();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_signal_that_is_sent_to_the_process_and_to_its_group_lets_everything_be_written() {
    let sandbox = Sandbox::new();
    let mut server = sandbox.serve(&["--export", "name=slow,kind=testdev,size=1MiB,latency=300ms"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    client.write(0, &[1; 4096]).expect("write into the cache");
    // Two of one kind could be delivered as one.
    server.signal(libc::SIGTERM);
    server.signal(libc::SIGINT);
    server.await_notice("STOPPING=1");
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
}

#[test]
fn sighup_adds_removes_and_changes_exports_without_disconnecting() {
    let sandbox = Sandbox::new();
    let export = |name: &str, size: &str| format!("[[export]]\nname = \"{name}\"\nkind = \"ram\"\nsize = \"{size}\"\n");
    sandbox.write("awase.toml", &(export("stays", "1MiB") + &export("removed", "1MiB") + &export("changes", "1MiB")));
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let mut stays = Client::connect(&server.socket(), "stays").expect("connect");
    let mut removed = Client::connect(&server.socket(), "removed").expect("connect");
    stays.write(0, b"data").expect("write");
    removed.write(0, b"more").expect("write");

    sandbox.write("awase.toml", &(export("stays", "1MiB") + &export("changes", "2MiB") + &export("added", "3MiB")));
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");

    assert_eq!(stays.read(0, 4).expect("still served"), b"data");
    assert_eq!(removed.read(0, 4).expect("still served to its client"), b"more");
    assert!(Client::connect(&server.socket(), "removed").is_err());
    let mut again = Client::connect(&server.socket(), "stays").expect("connect");
    assert_eq!(again.read(0, 4).expect("the same disk"), b"data");
    assert_eq!(Client::connect(&server.socket(), "changes").expect("connect").size, 2 << 20);
    assert_eq!(Client::connect(&server.socket(), "added").expect("connect").size, 3 << 20);
}

#[test]
fn a_disk_in_memory_keeps_its_content_when_a_reload_would_serve_it_otherwise() {
    let sandbox = Sandbox::new();
    for (kind, more) in
        [("ram", "read_only = true"), ("ram", "stable_writes = \"flush\""), ("testdev", "delay = \"1ms\"")]
    {
        let export = format!("[[export]]\nname = \"m\"\nkind = \"{kind}\"\nsize = \"1MiB\"\n");
        sandbox.write("awase.toml", &export);
        let mut server = sandbox.serve(&["--config", "awase.toml"]);
        Client::connect(&server.socket(), "m").expect("connect").write(0, b"data").expect("write");
        sandbox.write("awase.toml", &format!("{export}{more}\n"));
        server.signal(libc::SIGHUP);
        server.await_notice("RELOADING=1");
        server.await_notice("READY=1");
        let mut again = Client::connect(&server.socket(), "m").expect("connect");
        assert_eq!(again.read(0, 4).expect("served"), b"data", "{kind}, {more}");
        let errors = server.end();
        assert!(errors.contains("awase.toml:1: export \"m\" kind stays the same while other keys change"), "{errors}");
    }
}

#[test]
fn a_bad_file_at_sighup_is_reported_and_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1MiB\"\n");
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    sandbox.write("awase.toml", "[[export]]\nname = \"b\"\nkind = \"ran\"\nsize = \"1MiB\"\n");
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
    Client::connect(&server.socket(), "a").expect("unchanged");
    let errors = server.end();
    assert!(errors.contains("awase.toml:3: export \"b\" kind = \"ran\" is not allowed"), "{errors}");
}

#[test]
fn one_client_cannot_take_all_connections() {
    let sandbox = Sandbox::new();
    sandbox.write("few.toml", "[limits]\nconnections = 8\n");
    let mut server = sandbox.serve(&["--config", "few.toml", "--nbd", "127.0.0.1:0", "--export", RAM]);
    let port = nbd_port(&server.banner());
    let connect = |_| Client::connect(&server.socket(), "r").ok();
    let taken: Vec<_> = (0..8).map_while(connect).collect();
    assert_eq!(taken.len(), 4, "a user of this host, through the socket");
    // A refused client reads the end of the stream instead of a greeting.
    let address = format!("127.0.0.1:{port}");
    let greet = || {
        let mut greeting = [0; 18];
        let mut stream = std::net::TcpStream::connect(&address).expect("connect");
        std::io::Read::read_exact(&mut stream, &mut greeting).ok().map(|()| stream)
    };
    let others: Vec<_> = (0..8).map_while(|_| greet()).collect();
    assert_eq!(others.len(), 2, "another host, of the four that are left");
    drop(taken);
    drop(others);
    let again = || Client::connect(&server.socket(), "r").is_ok();
    await_that("ended connections are no longer counted", again);
}

/// A server that gets a socket as from systemd, which keeps it: the first is descriptor 3, LISTEN_PID is the process.
fn activated(socket: &OwnedFd, export: &str) -> Command {
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
    command.args(["-c", script, &AWASE, "serve", "--nfs", "none", "--postgres", "none", "--metrics", "none"]);
    command.args(["--export", export]).stdin(socket.try_clone().expect("a duplicate"));
    command
}

#[test]
fn sockets_of_systemd_outlive_servers_that_end_or_do_not_start() {
    let sandbox = Sandbox::new();
    let path = sandbox.file("activated.sock");
    let unix = UnixListener::bind(&path).expect("bind");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = tcp.local_addr().expect("address");
    let sockets: [(OwnedFd, Box<dyn Fn() -> OwnedFd>); 2] = [
        (unix.into(), Box::new(move || UnixStream::connect(&path).expect("in the queue").into())),
        (tcp.into(), Box::new(move || TcpStream::connect(address).expect("in the queue").into())),
    ];
    let is_greeted = |client: OwnedFd| {
        let mut greeting = [0; 8];
        std::io::Read::read_exact(&mut std::fs::File::from(client), &mut greeting).expect("greeted");
        assert_eq!(&greeting, b"NBDMAGIC");
    };
    for (socket, connect) in sockets {
        let mut waiting = connect();
        for engine in ["auto", "threads"] {
            let mut command = activated(&socket, RAM);
            command.args(["--engine", engine]);
            let server = sandbox.start(command);
            is_greeted(std::mem::replace(&mut waiting, connect()));
            is_greeted(std::mem::replace(&mut waiting, connect()));
            server.end();
            let mut missing = activated(&socket, "name=m,kind=file,path=missing.img");
            let output = missing.current_dir(sandbox.path()).env_remove("NOTIFY_SOCKET").output().expect("run awase");
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            waiting = connect();
        }
    }
}

#[test]
fn sockets_are_taken_over_from_systemd() {
    let sandbox = Sandbox::new();
    let path = sandbox.file("activated.sock");
    let socket: OwnedFd = UnixListener::bind(&path).expect("bind").into();
    let mut server = sandbox.start(activated(&socket, RAM));
    assert_eq!(Client::connect(&path, "r").expect("connect").size, 1 << 20);
    assert!(!server.socket().exists(), "the configured socket is not used");
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
    server.signal(libc::SIGTERM);
    let (status, output, errors) = server.wait();
    assert!(status.success() && errors.contains("Ctrl-C") && errors.contains("finishing"), "{status}: {errors}");
    assert_eq!(output, "", "it is its client's");
    assert!(path.exists(), "a socket of systemd stays");
}

#[test]
fn completions_manual_pages_and_configuration_are_generated() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = sandbox.run(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("iotest"), "{shell}: {output:?}");
    }
    assert!(sandbox.run(&["man", "--directory", "man"]).status.success());
    let page = std::fs::read_to_string(sandbox.file("man/awase-serve.1")).expect("awase-serve.1");
    assert!(page.contains("scan_resistant"), "the switches are in the manual: {page}");
    let examples = page.split("\nExamples:\n.nf\n").nth(1).and_then(|rest| rest.split("\n.fi\n").next());
    assert!(examples.is_some_and(|lines| lines.lines().count() == 6), "commands stay as they are: {page}");
    let printed = String::from_utf8(sandbox.run(&["config", "--processors", "3"]).stdout).expect("text");
    sandbox.write("printed.toml", &printed);
    let again = String::from_utf8(sandbox.run(&["config", "--config", "printed.toml"]).stdout).expect("text");
    assert_eq!(again, printed);
}

#[test]
fn awase_lab_is_run_or_reported_as_not_installed() {
    let sandbox = Sandbox::new();
    let alone = sandbox.file("awase");
    std::fs::copy(&*AWASE, &alone).expect("a copy");
    let run = || Command::new(&alone).args(["lab", "run", "--help"]).env("PATH", "").output().expect("run awase");
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("awase-lab, which is not installed"), "{output:?}");
    std::os::unix::fs::symlink("/bin/echo", sandbox.file("awase-lab")).expect("a link");
    assert_eq!(run().stdout, b"run --help\n");
}
