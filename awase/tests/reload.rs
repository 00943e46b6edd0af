//! What a reload must not put over what is still open, and what it leaves as it is.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
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

fn disk(name: &str, path: &str) -> String {
    format!("[[export]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{path}\"\nsize = \"1MiB\"\ncreate = true\n")
}

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
fn what_changes_only_for_those_who_connect_later_is_told() {
    let sandbox = Sandbox::new();
    let user = |name: &str| format!("[[user]]\nname = \"{name}\"\npassword = \"p\"\n");
    let (ann, bob) = (user("ann"), user("bob"));
    let config = sandbox.write("awase.toml", &[OTHER, &ann].concat());
    // Nobody else may read the passwords.
    fs::set_permissions(config, Permissions::from_mode(0o600)).expect("chmod");
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let described = OTHER.to_owned() + "description = \"spare\"\nblock_size = 4096\n";
    let changes = [
        (
            described.clone() + &ann + &bob,
            "export \"r\" description = \"spare\" for clients that connect from now on\n\
             export \"r\" block_size = 4096 for clients that connect from now on\nuser \"bob\" may connect\n",
        ),
        (described.clone() + &bob, "user \"ann\" may not connect any more; sessions that have begun go on\n"),
        (
            described.clone(),
            "user \"bob\" may not connect any more; sessions that have begun go on\n\
             everybody on this host may connect to databases\n",
        ),
        (
            described + &ann,
            "user \"ann\" may connect\nnobody else may connect to databases any more; sessions that have begun go on\n",
        ),
    ];
    changes.iter().for_each(|(text, _)| reload(&sandbox, &mut server, text));
    server.signal(libc::SIGTERM);
    let (_, said, _) = server.wait();
    let told = changes.map(|(_, told)| told).concat();
    assert!(said.contains(&told), "{said}");
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

#[test]
fn disks_are_renamed_and_exchange_their_names_while_clients_have_them() {
    let sandbox = Sandbox::new();
    let config = |first: &str, second: &str| disk(first, "1.img") + &disk(second, "2.img");
    sandbox.write("awase.toml", &config("a", "b"));
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let connect = |server: &Server, name: &str| nbd::Client::connect(&server.socket(), name);
    let (mut one, mut two) = (connect(&server, "a").expect("connect"), connect(&server, "b").expect("connect"));
    for (first, second) in [("b", "a"), ("b", "c"), ("c", "d"), ("a", "b")] {
        reload(&sandbox, &mut server, &config(first, second));
        for (old, name) in [(&mut one, first), (&mut two, second)] {
            let mut new = connect(&server, name).expect("connect");
            old.write(0, name.as_bytes()).expect("write");
            assert_eq!(new.read(0, 1).expect("read"), name.as_bytes(), "the old client's");
            new.write(4096, name.as_bytes()).expect("write");
            assert_eq!(old.read(4096, 1).expect("read"), name.as_bytes(), "the new client's");
        }
        let is_gone = |name| name == first || name == second || connect(&server, name).is_err();
        assert!(["a", "b", "c", "d"].into_iter().all(is_gone));
    }
    let (status, output, errors) = {
        server.signal(libc::SIGTERM);
        server.wait()
    };
    assert!(status.success() && errors.is_empty(), "{status}: {errors}");
    assert!(output.contains("export \"b\" is served: file 1.img, before as \"a\"\n"), "{output}");
    for (image, name) in [("1.img", b'a'), ("2.img", b'b')] {
        let image = fs::read(sandbox.file(image)).expect("image");
        assert_eq!((image[0], image[4096]), (name, name));
    }
}

#[test]
fn a_removed_disk_comes_back_while_a_client_has_it_as_it_was_or_is_refused_with_who_has_it() {
    let sandbox = Sandbox::new();
    let both = disk("vm", "vm.img") + OTHER;
    sandbox.write("awase.toml", &both);
    let mut server = sandbox.serve(&["--config", "awase.toml"]);
    let mut old = nbd::Client::connect(&server.socket(), "vm").expect("connect");
    old.write(0, b"data").expect("write");
    reload(&sandbox, &mut server, OTHER);
    let otherwise = both.replace("create = true", "read_only = true");
    reload(&sandbox, &mut server, &otherwise);
    server.await_error(
        "export \"vm\" path leads to the medium of export \"vm\", which this server still serves to 1 client",
    );
    reload(&sandbox, &mut server, &both);
    let mut new = nbd::Client::connect(&server.socket(), "vm").expect("connect");
    assert_eq!(new.read(0, 4).expect("read"), b"data");
    // Not closed with its old clients.
    old.disconnect().expect("in order");
    reload(&sandbox, &mut server, &both);
    new.write(0, b"more").expect("write");
    // Removed and replaced: not the old file.
    reload(&sandbox, &mut server, OTHER);
    fs::rename(sandbox.file("vm.img"), sandbox.file("vm.old")).expect("rename");
    fs::write(sandbox.file("vm.img"), vec![7; 1 << 20]).expect("an image");
    reload(&sandbox, &mut server, &both);
    let mut newest = nbd::Client::connect(&server.socket(), "vm").expect("connect");
    assert_eq!(newest.read(0, 4).expect("read"), [7; 4]);
    assert_eq!(new.read(0, 4).expect("read"), b"more");
    // The name of another that has changed.
    fs::hard_link(sandbox.file("vm.img"), sandbox.file("link.img")).expect("a link");
    reload(&sandbox, &mut server, &(both + &disk("link", "link.img")));
    server.await_error("export \"link\" path leads to the medium of export \"vm\", which this server serves; allowed");
    server.await_error("allowed: another file, or to read the configuration without that export first");
    server.end();
    assert_eq!(&fs::read(sandbox.file("vm.old")).expect("image")[..4], b"more");
}
