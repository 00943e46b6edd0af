//! A Linux guest's own clients: of NBD, with ext4 on an Awase export, and of NFS. The guest is emulated; `scripts/guest`
//! boots it and it runs `scripts/guest-init-nbd`, `-nfs`, `-loop` or `-move`.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use parking_lot::RwLock;
use testkit::server::{AWASE, Sandbox, attempt, client};

/// Last line of a guest without failures.
const ALL_IS_WELL: &str = "GUEST SAYS ALL IS WELL";

/// Line of a guest upon which the server is killed and restarted.
const RESTART: &str = "guest: RESTART";

/// Directory of the guest's kernel, which later runs use again.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/guest");

/// Taken alone by the guest with little memory: its kernel kills for memory what an emulated processor is too slow to free.
static GUESTS: RwLock<()> = RwLock::new(());

/// An address that is free now. If another process binds it first, the server reports it.
fn free_address() -> (String, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
    let address = listener.local_addr().expect("address");
    (address.to_string(), address.port())
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest")
}

#[test]
fn a_guest_kernel_uses_ext4_on_an_export() {
    let _guest = GUESTS.read();
    let sandbox = Sandbox::new();
    let image = sandbox.file("guest.img");
    let (address, port) = free_address();
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", &address, "--nbd-unix", "none", "--memory", "64MiB", "--export"]);
    command.arg(format!("name=disk,kind=file,path={},size=256MiB,create=true", image.display()));
    let server = sandbox.start(command);

    let output = attempt(&script().to_string_lossy(), &["nbd", &port.to_string(), "disk", CACHE]);
    let console = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && console.contains(ALL_IS_WELL), "console of the guest:\n{console}\n{errors}");

    server.end();
    let image = image.to_string_lossy();
    client("e2fsck", &["-fn", &image]);
    let note = client("debugfs", &["-R", "cat /note", &image]);
    assert_eq!(note, "written by a guest\n", "the guest's last write is in the image");
}

#[test]
fn a_guest_moves_between_two_nodes_that_share_its_disk_while_it_writes() {
    let _guest = GUESTS.read();
    let sandboxes = [Sandbox::new(), Sandbox::new()];
    let [(at_a, _), (at_b, _)] = [free_address(), free_address()];
    let [a, b] = ["a", "b"].map(|name| {
        let (sandbox, own) = if name == "a" { (&sandboxes[0], &at_a) } else { (&sandboxes[1], &at_b) };
        let text = format!(
            "[cluster]\nnode = \"{name}\"\nlisten = \"{own}\"\npeers = {{ a = \"{at_a}\", b = \"{at_b}\" }}\n\
             [[export]]\nname = \"disk\"\nkind = \"shared\"\nsize = \"128MiB\"\nbacking = \"disk.img\"\n"
        );
        sandbox.write("node.toml", &text);
        sandbox.serve(&["--config", "node.toml", "--memory", "64MiB"])
    });
    let output = attempt(&script().to_string_lossy(), &["move", &a.uri("disk"), &b.uri("disk"), CACHE]);
    let console = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && console.contains(ALL_IS_WELL), "console of the guest:\n{console}\n{errors}");
    // The node that it has left sees what it wrote at the other.
    let copy = sandboxes[0].file("copy");
    let copy = copy.to_string_lossy();
    client("nbdcopy", &[&a.uri("disk"), &copy]);
    client("e2fsck", &["-fn", &copy]);
    assert_eq!(client("debugfs", &["-R", "cat /note", &copy]), "written at two places\n");
}

#[test]
fn a_kernel_that_is_its_own_servers_client_frees_memory_through_it() {
    let _guest = GUESTS.write();
    let script = script();
    let output = attempt(&script.to_string_lossy(), &["loop", &AWASE, "disk", CACHE]);
    let console = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && console.contains(ALL_IS_WELL), "console of the guest:\n{console}\n{errors}");
}

#[test]
fn a_guest_kernel_works_in_a_directory_while_the_server_is_killed() {
    let _guest = GUESTS.read();
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.file("files")).expect("directory");
    // The guest's only user is root, and git refuses files of other users.
    let arguments =
        ["--memory", "64MiB", "--export", "name=files,kind=directory,secure=false,path=files,squash=no_root_squash"];
    let (mut server, port) = sandbox.serve_directories(0, &arguments);

    let mut guest = Command::new(script())
        .args(["nfs", &port.to_string(), "/files", CACHE])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the guest");
    let (mut console, mut kills) = (String::new(), 0);
    // Ends with the guest, which its script kills when it takes too long.
    for line in BufReader::new(guest.stdout.take().expect("piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line.expect("a line")).into_owned();
        if line.contains(RESTART) {
            server.crash();
            (server, _) = sandbox.serve_directories(port, &arguments);
            kills += 1;
        }
        console += &format!("{line}\n");
    }
    let status = guest.wait().expect("wait");
    assert!(status.success() && console.contains(ALL_IS_WELL), "{status}; console of the guest:\n{console}");
    assert_eq!(kills, 4, "console of the guest:\n{console}");

    server.end();
    let note = std::fs::read_to_string(sandbox.file("files/note")).expect("the guest's last write");
    assert_eq!(note, "written by a guest\n");
}
