//! A Linux guest's own NBD client with ext4 on an Awase export. The guest is emulated; `scripts/guest` boots it and
//! `scripts/guest-init-nbd` and `-nfs` are what it does.
#![cfg(target_arch = "x86_64")]

mod server;

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use server::{AWASE, Place, attempt, client};

/// The last line of a guest that found everything as it should be.
const ALL_IS_WELL: &str = "GUEST SAYS ALL IS WELL";

/// Where the guest's kernel is kept between runs.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/guest");

/// An address that was free a moment ago. Another may take it before the server does; then the server says so.
fn free_address() -> (String, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
    let address = listener.local_addr().expect("address");
    (address.to_string(), address.port())
}

#[test]
fn a_guest_kernel_keeps_ext4_on_an_export() {
    let place = Place::new();
    let image = place.file("guest.img");
    let (address, port) = free_address();
    let mut command = Command::new(AWASE);
    command.args(["serve", "--nbd", &address, "--nbd-unix", "none", "--memory", "64MiB", "--export"]);
    command.arg(format!("name=disk,kind=file,path={},size=256MiB,create=true", image.display()));
    let server = place.start(command);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest");
    let output = attempt(&script.to_string_lossy(), &["nbd", &port.to_string(), "disk", CACHE]);
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
