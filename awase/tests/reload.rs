//! What a reload must not put over what is still open, and what it leaves as it is.

use std::fs;
use std::process::Command;

use testkit::nbd;
use testkit::nfs;
use testkit::server::{AWASE, Sandbox, Server, await_that};

const DISK: &str =
    "[[export]]\nname = \"vm\"\nkind = \"file\"\npath = \"images/vm.img\"\nsize = \"1MiB\"\ncreate = true\n";
const OTHER: &str = "[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1MiB\"\n";

fn directory(path: &str) -> String {
    let name = path.replace('/', "-");
    format!("[[export]]\nname = \"{name}\"\nkind = \"directory\"\npath = \"{path}\"\nsecure = false\n{SQUASH}")
}

const SQUASH: &str = "squash = \"no_root_squash\"\n";

/// Reads the configuration once more.
fn reload(sandbox: &Sandbox, server: &mut Server, text: &str) {
    sandbox.write("awase.toml", text);
    server.forget_errors();
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");
}

#[test]
fn a_directory_over_the_image_of_a_disk_that_clients_have_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("images");
    sandbox.make_directory("other");
    let (with_disk, with_directory) = (directory("other") + DISK, directory("other") + &directory("images"));
    sandbox.write("awase.toml", &with_disk);
    let (mut server, port) = sandbox.serve_directories(0, &["--config", "awase.toml"]);
    let mut client = nbd::Client::connect(&server.socket(), "vm").expect("connect");
    client.write(0, b"data").expect("write");
    let mut files = nfs::Client::connect(port).expect("connect");
    let message = "path contains the medium of export \"vm\", which is open; allowed: to read the configuration";
    // Served, retired with a client, and the client is gone.
    reload(&sandbox, &mut server, &with_directory);
    server.await_error(message);
    nbd::Client::connect(&server.socket(), "vm").expect("nothing has changed");
    reload(&sandbox, &mut server, &directory("other"));
    assert!(nbd::Client::connect(&server.socket(), "vm").is_err(), "not served to new clients");
    reload(&sandbox, &mut server, &with_directory);
    server.await_error(message);
    assert!(files.mount("/images").is_err(), "it is served");
    assert_eq!(client.read(0, 4).expect("still served to its client"), b"data");
    client.disconnect().expect("in order");
    await_that("the directory is served", || {
        reload(&sandbox, &mut server, &with_directory);
        files.mount("/images").is_ok()
    });
    let image = fs::read(sandbox.file("images/vm.img")).expect("image");
    assert_eq!(&image[..4], b"data", "the disk was written before");
    server.end();
}

#[test]
fn a_directory_or_disk_in_a_directory_that_is_not_served_any_more_waits_until_that_is_written() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("images/home");
    for inner in [&*directory("images/home"), DISK] {
        let (outer, inner) = (OTHER.to_owned() + &directory("images"), OTHER.to_owned() + inner);
        sandbox.write("awase.toml", &outer);
        let (mut server, port) = sandbox.serve_directories(0, &["--config", "awase.toml"]);
        let mut files = nfs::Client::connect(port).expect("connect");
        files.mount("/images").expect("mount");
        reload(&sandbox, &mut server, &inner);
        server.await_error("images, which was served until now; allowed: to read the configuration without it");
        files.mount("/images").expect("nothing has changed");
        reload(&sandbox, &mut server, OTHER);
        await_that("it is served", || {
            reload(&sandbox, &mut server, &inner);
            files.mount("/images-home").is_ok() || nbd::Client::connect(&server.socket(), "vm").is_ok()
        });
        server.end();
    }
}

#[test]
fn a_directory_that_was_only_read_is_no_obstacle() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("images/home");
    sandbox.write("awase.toml", &(OTHER.to_owned() + &directory("images") + "read_only = true\n"));
    let (mut server, port) = sandbox.serve_directories(0, &["--config", "awase.toml"]);
    let mut files = nfs::Client::connect(port).expect("connect");
    files.mount("/images").expect("mount");
    reload(&sandbox, &mut server, &(OTHER.to_owned() + &directory("images/home")));
    files.mount("/images-home").expect("served at once");
    server.end();
}

#[test]
fn a_file_that_is_empty_for_a_moment_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", &[OTHER, &directory("files"), "create = true\n"].concat());
    let (mut server, port) = sandbox.serve_directories(0, &["--config", "awase.toml"]);
    for text in ["", "# nothing\n[listen]\nnbd = []\n"] {
        reload(&sandbox, &mut server, text);
        server.await_error("awase.toml: names nothing to serve; allowed: an export or database");
        nbd::Client::connect(&server.socket(), "r").expect("still served");
        assert!(nfs::Client::connect(port).expect("connect").mount("/files").is_ok());
        assert!(!sandbox.file("awase-data/files").exists() && !sandbox.file("awase-data/disk.img").exists());
    }
    reload(&sandbox, &mut server, DISK);
    nbd::Client::connect(&server.socket(), "vm").expect("added");
    server.end();
}

#[test]
fn what_is_served_by_default_stays_where_it_is() {
    let sandbox = Sandbox::new();
    sandbox.write("awase.toml", "data = \"d\"\n");
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", "none", "--nfs", "none", "--postgres", "none", "--metrics", "none"]);
    command.args(["--config", "awase.toml"]);
    let mut server = sandbox.start(command);
    let connect = || nbd::Client::connect(&sandbox.file("d/nbd.sock"), "disk").expect("connect");
    connect().write(0, b"data").expect("write");
    reload(&sandbox, &mut server, "");
    assert_eq!(connect().read(0, 4).expect("read"), b"data");
    assert!(!sandbox.file("awase-data").exists());
    server.end();
}
