//! A Linux guest's own clients: of NBD, with ext4 on an Awase export, and of NFS. The guest is emulated; `scripts/guest`
//! boots it and `scripts/guest-init-nbd` and `-nfs` are what it does.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::server::{AWASE, Place, attempt, client};

/// The last line of a guest that found everything as it should be.
const ALL_IS_WELL: &str = "GUEST SAYS ALL IS WELL";

/// The line of a guest in whose work the server is to be killed and started again.
const RESTART: &str = "guest: RESTART";

/// Where the guest's kernel is kept between runs.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/guest");

/// An address that was free a moment ago. Another may take it before the server does; then the server says so.
fn free_address() -> (String, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
    let address = listener.local_addr().expect("address");
    (address.to_string(), address.port())
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest")
}

#[test]
fn a_guest_kernel_keeps_ext4_on_an_export() {
    let place = Place::new();
    let image = place.file("guest.img");
    let (address, port) = free_address();
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", &address, "--nbd-unix", "none", "--memory", "64MiB", "--export"]);
    command.arg(format!("name=disk,kind=file,path={},size=256MiB,create=true", image.display()));
    let server = place.start(command);

    let output = attempt(&script().to_string_lossy(), &["nbd", &port.to_string(), "disk", CACHE]);
    let console = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && console.contains(ALL_IS_WELL), "the guest said:\n{console}\n{errors}");

    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert!(status.success(), "the server ended with {status}: {errors}");
    let image = image.to_string_lossy();
    client("e2fsck", &["-fn", &image]);
    let note = client("debugfs", &["-R", "cat /note", &image]);
    assert_eq!(note, "written by a guest\n", "what the guest wrote last is in the image");
}

#[test]
fn a_kernel_that_is_its_own_servers_client_frees_memory_through_it() {
    let script = script();
    let output = attempt(&script.to_string_lossy(), &["loop", &AWASE, "disk", CACHE]);
    let console = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && console.contains(ALL_IS_WELL), "the guest said:\n{console}\n{errors}");
}

#[test]
fn a_guest_kernel_works_in_a_directory_and_goes_on_when_the_server_is_killed() {
    let place = Place::new();
    std::fs::create_dir(place.file("files")).expect("directory");
    // The guest's only user is root, and git keeps to its own files.
    let arguments =
        ["--memory", "64MiB", "--export", "name=files,kind=directory,secure=false,path=files,squash=no_root_squash"];
    let (mut server, port) = place.serve_directories(0, &arguments);

    let mut guest = Command::new(script())
        .args(["nfs", &port.to_string(), "/files", CACHE])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the guest");
    let (mut console, mut kills) = (String::new(), 0);
    // Ends with the guest, which its script ends when it takes too long.
    for line in BufReader::new(guest.stdout.take().expect("piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line.expect("a line")).into_owned();
        if line.contains(RESTART) {
            server.crash();
            (server, _) = place.serve_directories(port, &arguments);
            kills += 1;
        }
        console += &format!("{line}\n");
    }
    let status = guest.wait().expect("wait");
    assert!(status.success() && console.contains(ALL_IS_WELL), "{status}; the guest said:\n{console}");
    assert_eq!(kills, 4, "the guest said:\n{console}");

    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert!(status.success(), "the server ended with {status}: {errors}");
    let note = std::fs::read_to_string(place.file("files/note")).expect("what the guest wrote last");
    assert_eq!(note, "written by a guest\n");
}
