//! The front of the server: messages, signals, reloading, sockets, what is printed and generated.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use testkit::nbd::Client;
use testkit::server::{AWASE, Place};

const RAM: &str = "name=r,kind=ram,size=1MiB";

/// Runs a server that must not start; gives its message.
fn refusal(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(&[&["serve", "--nbd", "none", "--nfs", "none"], arguments].concat());
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "one message is enough: {message}");
    message
}

#[test]
fn without_configuration_a_sparse_disk_is_made_and_served() {
    let place = Place::new();
    let server = place.serve(&[]);
    let image = std::fs::metadata(place.file("awase-data/disk.img")).expect("disk.img");
    assert_eq!(image.len(), 1 << 30);
    assert!(image.blocks() * 512 < 1 << 20, "{} blocks are not sparse", image.blocks());
    assert_eq!(Client::connect(&server.socket(), "disk").expect("connect").size, 1 << 30);
    assert_eq!(Client::connect(&server.socket(), "").expect("connect to the default export").size, 1 << 30);
}

#[test]
fn it_prints_what_it_serves_and_how_to_connect() {
    let place = Place::new();
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", "127.0.0.1:0", "--processors", "1", "--export", "name=a b,kind=ram,size=3MiB"]);
    let server = place.start(command);
    server.signal(libc::SIGTERM);
    let (_, output, _) = server.wait();
    for part in
        ["a b", "3MiB", "1 processor", "nbd://127.0.0.1:", "/a%20b", "nbd.sock", "nbdinfo", "qemu-img", "nbd-client"]
    {
        assert!(output.contains(part), "{part:?} is missing in:\n{output}");
    }
}

#[test]
fn a_wrong_configuration_ends_with_2_and_one_message() {
    for (text, message) in [
        ("processor = 2\n", "bad.toml:1: processor is not a known key; did you mean \"processors\"?"),
        ("memory = \"1MiB\"\n", "bad.toml:1: memory = \"1MiB\" is not between 8MiB and 1PiB"),
        ("[[export]]\nname = \"a\"\nkind = \"fiel\"\n", "bad.toml:3: export \"a\" kind = \"fiel\" is not allowed"),
        ("[[export]]\nname = \"a\"\nkind = \"ram\"\n", "bad.toml:1: export \"a\" size is missing"),
        (
            "[[export]]\nname = \"a\"\nkind = \"file\"\npath = \"none.img\"\n",
            "none.img does not exist; allowed: an existing file, or create = true",
        ),
        ("[[export]]\nname = \"a\"\nkind = \"block\"\npath = \"bad.toml\"\n", "\"bad.toml\" is no block device"),
        ("= 3\n", "bad.toml:1: is not valid TOML"),
    ] {
        let place = Place::new();
        place.write("bad.toml", text);
        let found = refusal(&place, &["--config", "bad.toml"]);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn wrong_flags_end_with_2_and_name_the_flag() {
    let place = Place::new();
    for (arguments, message) in [
        (["--processors", "none"], "--processors: processors = \"none\" is not allowed"),
        (["--switch", "prioriti=off"], "--switch: switches.prioriti is not a known key; did you mean \"priority\"?"),
        (["--export", "name=a,kind=ram,size=0"], "--export: export \"a\" size = \"0\" is not between"),
        (
            ["--nbd", "example.org"],
            "--nbd: listen.nbd = [\"example.org\"] holds \"example.org\", which is no IP address",
        ),
        (["--config", "missing.toml"], "missing.toml: cannot be read: No such file"),
    ] {
        let found = refusal(&place, &arguments);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn check_prints_all_problems_and_what_would_be_served() {
    let place = Place::new();
    place.write("bad.toml", "processors = 0\nengine = 1\n[[export]]\nname = \"a\"\nkind = \"ram\"\n");
    let output = place.run(&["check", "--config", "bad.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 3);
    let output = place.run(&["check", "--export", RAM]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1MiB  memory"), "{output:?}");
    assert!(!place.file("awase-data").exists(), "check changes nothing");
}

#[test]
fn a_port_in_use_is_refused() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let message = refusal(&place, &["--nbd", &address, "--export", RAM]);
    assert!(
        message.contains(&format!("listen.nbd cannot be served: {address} is in use by another server")),
        "{message}"
    );
}

#[test]
fn without_descriptors_clients_wait_and_little_is_said() {
    let place = Place::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", &AWASE, "serve", "--nbd", "none", "--nfs", "none"]);
    command.args(["--metrics", "none", "--export", RAM]);
    let mut server = place.start(command);
    let crowd: Vec<_> = (0..100).map(|_| UnixStream::connect(server.socket()).expect("in the queue")).collect();
    server.await_error("could not be accepted");
    drop(crowd);
    Client::connect(&server.socket(), "r").expect("there is room again");
    server.signal(libc::SIGTERM);
    let (_, _, errors) = server.wait();
    assert!(errors.contains("limits.connections is 2048, but the limit of 64 open files"), "{errors}");
    assert_eq!(errors.matches("could not be accepted").count(), 1, "{errors}");
}

#[test]
fn a_socket_or_file_of_another_server_is_refused() {
    let place = Place::new();
    let _server = place.serve(&[]);
    let message = refusal(&place, &["--export", RAM]);
    assert!(message.contains("is in use by another server"), "{message}");
    let message = refusal(&place, &["--nbd-unix", "other.sock"]);
    assert!(message.contains("disk.img is locked"), "{message}");
    // What the first one records is still found.
    let output = place.run(&["trace", "--event", "processor.started"]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
}

#[test]
fn a_server_that_was_killed_leaves_nothing_in_the_way_of_the_next() {
    let place = Place::new();
    place.serve(&[]).crash();
    let server = place.serve(&[]);
    Client::connect(&server.socket(), "disk").expect("connect");
}

#[test]
fn sigterm_finishes_writes_everything_and_ends_with_0() {
    for engine in ["auto", "threads"] {
        let place = Place::new();
        let mut server = place.serve(&["--engine", engine]);
        let mut client = Client::connect(&server.socket(), "disk").expect("connect");
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        client.write(12_345, &data).expect("write");
        server.signal(libc::SIGTERM);
        server.await_notice("STOPPING=1");
        let (status, _, errors) = server.wait();
        assert_eq!(status.code(), Some(0), "{errors}");
        let image = std::fs::read(place.file("awase-data/disk.img")).expect("image");
        assert!(image[12_345..][..data.len()] == data[..], "what was acknowledged is not in the file");
        assert!(!place.file("awase-data/nbd.sock").exists(), "the socket stays behind");
    }
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let place = Place::new();
    let mut server = place.serve(&["--export", "name=slow,kind=testdev,size=1MiB,latency=300ms"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    // Block 0 is in the cache: its answer shows that the request before it was taken from the wire.
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
fn a_second_signal_ends_at_once_with_1() {
    let place = Place::new();
    let mut server = place.serve(&["--export", "name=slow,kind=testdev,size=1MiB,latency=60s"]);
    let mut client = Client::connect(&server.socket(), "slow").expect("connect");
    // A whole block: nothing need be read for it. To write it back takes a minute.
    client.write(0, &[1; 4096]).expect("write into the cache");
    server.signal(libc::SIGTERM);
    server.await_notice("STOPPING=1");
    server.signal(libc::SIGTERM);
    let (status, _, _) = server.wait();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn sighup_adds_removes_and_changes_exports_and_keeps_connections() {
    let place = Place::new();
    let export = |name: &str, size: &str| format!("[[export]]\nname = \"{name}\"\nkind = \"ram\"\nsize = \"{size}\"\n");
    place.write("awase.toml", &(export("stays", "1MiB") + &export("goes", "1MiB") + &export("changes", "1MiB")));
    let mut server = place.serve(&["--config", "awase.toml"]);
    let mut stays = Client::connect(&server.socket(), "stays").expect("connect");
    let mut goes = Client::connect(&server.socket(), "goes").expect("connect");
    stays.write(0, b"kept").expect("write");
    goes.write(0, b"gone").expect("write");

    place.write("awase.toml", &(export("stays", "1MiB") + &export("changes", "2MiB") + &export("comes", "3MiB")));
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");

    assert_eq!(stays.read(0, 4).expect("still served"), b"kept");
    assert_eq!(goes.read(0, 4).expect("still served to whom it was"), b"gone");
    assert!(Client::connect(&server.socket(), "goes").is_err());
    let mut again = Client::connect(&server.socket(), "stays").expect("connect");
    assert_eq!(again.read(0, 4).expect("the same disk"), b"kept");
    assert_eq!(Client::connect(&server.socket(), "changes").expect("connect").size, 2 << 20);
    assert_eq!(Client::connect(&server.socket(), "comes").expect("connect").size, 3 << 20);
}

#[test]
fn a_bad_file_at_sighup_is_reported_and_changes_nothing() {
    let place = Place::new();
    place.write("awase.toml", "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1MiB\"\n");
    let mut server = place.serve(&["--config", "awase.toml"]);
    place.write("awase.toml", "[[export]]\nname = \"b\"\nkind = \"ran\"\nsize = \"1MiB\"\n");
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
    Client::connect(&server.socket(), "a").expect("the old state stays");
    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("awase.toml:3: export \"b\" kind = \"ran\" is not allowed"), "{errors}");
}

#[test]
fn one_client_cannot_take_all_connections() {
    let place = Place::new();
    place.write("few.toml", "[limits]\nconnections = 8\n");
    let mut server = place.serve(&["--config", "few.toml", "--nbd", "127.0.0.1:0", "--export", RAM]);
    let banner = server.banner();
    let port = banner.split_once("nbd://127.0.0.1:").and_then(|(_, rest)| rest.split_once('/')).expect("an address").0;
    let connect = |_| Client::connect(&server.socket(), "r").ok();
    let taken: Vec<_> = (0..8).map_while(connect).collect();
    assert_eq!(taken.len(), 4, "a user of this host, through the socket");
    // It is turned away before it is greeted, which is the end of the stream.
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
    assert!((0..1000).any(|_| again()), "those that ended count no more");
}

#[test]
fn sockets_are_taken_over_from_systemd() {
    let place = Place::new();
    let path = place.file("activated.sock");
    let socket: OwnedFd = UnixListener::bind(&path).expect("bind").into();
    let mut command = Command::new("sh");
    // As systemd does: the first socket is descriptor 3, and the process is named.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
    command.args(["-c", script, &AWASE, "serve", "--export", RAM]).stdin(socket);
    let server = place.start(command);
    assert_eq!(Client::connect(&path, "r").expect("connect").size, 1 << 20);
    assert!(!server.socket().exists(), "the configured socket is not used");
    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    assert!(path.exists(), "a socket of systemd stays");
}

#[test]
fn completions_pages_and_configuration_are_generated() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = place.run(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("iotest"), "{shell}: {output:?}");
    }
    assert!(place.run(&["man", "--directory", "man"]).status.success());
    let page = std::fs::read_to_string(place.file("man/awase-serve.1")).expect("awase-serve.1");
    assert!(page.contains("scan_resistant"), "the switches are in the manual: {page}");
    let printed = String::from_utf8(place.run(&["config", "--processors", "3"]).stdout).expect("text");
    place.write("printed.toml", &printed);
    let again = String::from_utf8(place.run(&["config", "--config", "printed.toml"]).stdout).expect("text");
    assert_eq!(again, printed);
}

#[test]
fn the_lab_is_a_program_of_its_own_and_told_when_it_is_not_installed() {
    let place = Place::new();
    let alone = place.file("awase");
    std::fs::copy(&*AWASE, &alone).expect("a copy");
    let run = || Command::new(&alone).args(["lab", "run", "--help"]).env("PATH", "").output().expect("run awase");
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("awase-lab, which is not installed"), "{output:?}");
    std::os::unix::fs::symlink("/bin/echo", place.file("awase-lab")).expect("a link");
    assert_eq!(run().stdout, b"run --help\n");
}
