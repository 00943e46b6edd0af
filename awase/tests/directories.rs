//! Directories with the real clients of libnfs, and the visibility of changes between clients and the host.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{nfsstat3, stable_how};

use testkit::nfs::Client;
use testkit::server::{AWASE, Sandbox, attempt, client, is_root};
use testkit::skip;

/// Not a multiple of any unit of transfer.
const COPY_BYTES: u32 = 50_000_001;

/// libnfs's URL of a path at a port of loopback.
fn url(port: u16, path: &str) -> String {
    format!("nfs://127.0.0.1{path}?nfsport={port}&mountport={port}")
}

/// The same, for this user.
fn url_as(port: u16, path: &str, uid: u32) -> String {
    format!("{}&uid={uid}&gid={uid}", url(port, path))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

fn make_content(sandbox: &Sandbox, name: &str, bytes: u32) -> PathBuf {
    let content: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(sandbox.file(name), content).expect("file");
    sandbox.file(name)
}

fn assert_same(a: &Path, b: &Path) {
    let (a_bytes, b_bytes) = (fs::read(a).expect("read"), fs::read(b).expect("read"));
    let differs = a_bytes.iter().zip(&b_bytes).position(|(a, b)| a != b);
    assert_eq!((a_bytes.len(), differs), (b_bytes.len(), None), "{a:?} and {b:?} differ (length, first difference)");
}

/// The names listed by `nfs-ls`.
fn names(url: &str) -> BTreeSet<String> {
    let list = client("nfs-ls", &[url]);
    list.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

/// Runs a client that must fail; returns its standard error.
fn refused(program: &str, arguments: &[&str]) -> String {
    let output = attempt(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{program} {arguments:?} was not refused: {errors}");
    errors
}

#[test]
fn by_default_a_directory_for_all_users_is_created_and_served() {
    let sandbox = Sandbox::new();
    let (_server, port) = sandbox.serve_directories(0, &[]);
    let files = sandbox.file("awase-data/files");
    assert_eq!(fs::metadata(&files).expect("made").mode() & 0o7777, 0o1777, "as /tmp");
    let note = sandbox.write("note", "hello\n");
    client("nfs-cp", &[text(&note), &url(port, "/files/of-root")]);
    client("nfs-cp", &[text(&note), &url_as(port, "/files/of-a-user", 1234)]);
    assert_eq!(names(&url(port, "/files")), ["of-a-user", "of-root"].map(String::from).into());
    assert_eq!(client("nfs-cat", &[&url(port, "/files/of-root")]), "hello\n");
    assert_eq!(fs::read_to_string(files.join("of-root")).expect("on the host"), "hello\n");
}

#[test]
fn an_existing_directory_keeps_its_permissions() {
    let sandbox = Sandbox::new();
    let files = sandbox.file("awase-data/files");
    fs::create_dir_all(&files).expect("directory");
    fs::set_permissions(&files, fs::Permissions::from_mode(0o750)).expect("chmod");
    let _server = sandbox.serve_directories(0, &[]);
    assert_eq!(fs::metadata(&files).expect("metadata").mode() & 0o7777, 0o750);
}

#[test]
fn fifty_megabytes_are_copied_in_and_out_unchanged() {
    for more in [&["--engine", "auto"][..], &["--engine", "threads"], &["--switch", "unmapped_io=off"]] {
        let sandbox = Sandbox::new();
        let (server, port) = sandbox.serve_directories(0, more);
        let (big, back) = (make_content(&sandbox, "big", COPY_BYTES), sandbox.file("back"));
        let remote = url(port, "/files/big");
        client("nfs-cp", &[text(&big), &remote]);
        assert!(client("nfs-ls", &[&url(port, "/files")]).contains(" 50000001 big"));
        client("nfs-cp", &[&remote, text(&back)]);
        assert_same(&big, &back);
        // A server with an empty cache reads it from the disk.
        server.end();
        assert_same(&big, &sandbox.file("awase-data/files/big"));
        let (_server, port) = sandbox.serve_directories(0, more);
        let read = attempt("nfs-cat", &[&url(port, "/files/big")]);
        assert!(read.status.success() && read.stdout == fs::read(&big).expect("read"), "{more:?}: read again");
    }
}

#[test]
fn three_thousand_names_and_subdirectories_are_listed() {
    let sandbox = Sandbox::new();
    let files = sandbox.make_directory("files");
    let many: BTreeSet<String> =
        (0..3000).map(|n| format!("a-name-that-is-long-enough-to-need-some-room-{n}")).collect();
    for name in &many {
        fs::write(files.join(name), name).expect("file");
    }
    fs::create_dir_all(files.join("down/below")).expect("directories");
    fs::write(files.join("down/below/at-the-end"), "").expect("file");
    let (_server, port) =
        sandbox.serve_directories(0, &["--export", "name=files,kind=directory,secure=false,path=files"]);
    let mut all = names(&url(port, "/files"));
    assert!(all.remove("down"));
    assert_eq!(all, many);
    let below = client("nfs-ls", &["-R", &url(port, "/files/down")]);
    assert!(below.contains("below") && below.contains("at-the-end"), "{below}");
}

#[test]
fn each_export_serves_its_own_directory() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        fs::write(sandbox.make_directory(name).join(format!("in-{name}")), name).expect("file");
    }
    let exports = [
        "--export",
        "name=one,kind=directory,secure=false,path=one",
        "--export",
        "name=two,kind=directory,secure=false,path=two,mount=/srv/2",
    ];
    let (_server, port) = sandbox.serve_directories(0, &exports);
    assert_eq!(names(&url(port, "/one")), ["in-one".to_owned()].into());
    assert_eq!(names(&url(port, "/srv/2")), ["in-two".to_owned()].into());
    assert!(refused("nfs-ls", &[&url(port, "/two")]).contains("MNT3ERR_NOENT"));
}

#[test]
fn a_read_only_export_refuses_changes_and_serves_reads() {
    let sandbox = Sandbox::new();
    let files = sandbox.make_directory("files");
    let note = sandbox.write("files/note", "as it was");
    for arguments in [
        &["name=files,kind=directory,secure=false,path=files,read_only=true"][..],
        &["name=files,kind=directory,secure=false,path=files", "--read-only"],
    ] {
        let (_server, port) = sandbox.serve_directories(0, &[&["--export"], arguments].concat());
        for name in ["note", "other"] {
            let errors = refused("nfs-cp", &[text(&note), &url(port, &format!("/files/{name}"))]);
            assert!(errors.contains("NFS3ERR_ROFS"), "{errors}");
        }
        assert_eq!(client("nfs-cat", &[&url(port, "/files/note")]), "as it was");
        assert_eq!(fs::read_dir(&files).expect("directory").count(), 1, "nothing was created");
    }
}

#[test]
fn clients_of_other_networks_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("files");
    sandbox.write("files/note", "for some");
    let exports = [
        "--export",
        "name=theirs,kind=directory,secure=false,path=files,clients=192.0.2.0/24",
        "--export",
        "name=ours,kind=directory,secure=false,path=files,clients=127.0.0.0/8",
    ];
    let (_server, port) = sandbox.serve_directories(0, &exports);
    assert!(refused("nfs-cat", &[&url(port, "/theirs/note")]).contains("MNT3ERR_ACCES"));
    assert_eq!(client("nfs-cat", &[&url(port, "/ours/note")]), "for some");
}

#[test]
fn new_files_belong_to_the_user_that_squashing_decides() {
    if !is_root() {
        skip!("only a server run by root acts as other users");
    }
    let sandbox = Sandbox::new();
    let files = sandbox.make_directory("files");
    let note = sandbox.write("note", "mine");
    for (rules, uid, owner) in [
        ("squash=root_squash", 0, 65534),
        ("squash=root_squash", 1234, 1234),
        ("squash=root_squash,anonymous_uid=99,anonymous_gid=98", 0, 99),
        ("squash=no_root_squash", 0, 0),
        ("squash=no_root_squash", 1234, 1234),
        ("squash=all_squash", 1234, 65534),
        ("squash=all_squash,anonymous_uid=99,anonymous_gid=98", 1234, 99),
    ] {
        let export = format!("name=files,kind=directory,secure=false,path=files,{rules}");
        let (_server, port) = sandbox.serve_directories(0, &["--export", &export]);
        client("nfs-cp", &[text(&note), &url_as(port, "/files/made", uid)]);
        let made = fs::metadata(files.join("made")).expect("made");
        let group = if owner == 99 { 98 } else { owner };
        assert_eq!((made.uid(), made.gid()), (owner, group), "{uid} under {rules}");
        fs::remove_file(files.join("made")).expect("remove");
    }
}

#[test]
fn clients_are_bound_by_the_hosts_permissions() {
    if !is_root() {
        skip!("only a server run by root acts as other users");
    }
    let sandbox = Sandbox::new();
    sandbox.make_directory("files");
    let secret = sandbox.write("files/secret", "of root");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("chmod");
    let exports = [
        "--export",
        "name=squashed,kind=directory,secure=false,path=files",
        "--export",
        "name=trusted,kind=directory,secure=false,path=files,squash=no_root_squash",
    ];
    let (_server, port) = sandbox.serve_directories(0, &exports);
    assert_eq!(client("nfs-cat", &[&url_as(port, "/trusted/secret", 0)]), "of root");
    for url in [url_as(port, "/trusted/secret", 1234), url_as(port, "/squashed/secret", 0)] {
        let errors = refused("nfs-cat", &[&url]);
        assert!(errors.contains("ACCESS denied"), "{url}: {errors}");
    }
    // A client that reads without ACCESS. The content is cached by now, which must not bypass the permissions.
    let (mut squashed, secret) = Client::open(port, "/squashed", "secret");
    let error = squashed.read(&secret, 0, 100).expect_err("root is squashed").to_string();
    assert!(error.contains("NFS3ERR_ACCES"), "{error}");
}

/// Polls until `is_new`; a request sent more than a second after the change must not see the old state.
fn until_new(mut is_new: impl FnMut() -> bool) {
    let changed = Instant::now();
    loop {
        let sent = Instant::now();
        if is_new() {
            return;
        }
        assert!(sent - changed <= Duration::from_secs(1), "a change on the host is not visible after a second");
    }
}

#[test]
fn changes_on_the_host_are_visible_whole_and_within_a_second() {
    const BYTES: usize = 256 << 10;
    let sandbox = Sandbox::new();
    let files = sandbox.make_directory("files");
    let export = "name=files,kind=directory,secure=false,path=files,squash=no_root_squash";
    let (_server, port) = sandbox.serve_directories(0, &["--export", export]);
    fs::write(files.join("file"), vec![0; BYTES]).expect("file");
    let (mut client, file) = Client::open(port, "/files", "file");
    let root = client.mount("/files").expect("mount");
    let on_host = fs::File::options().write(true).open(files.join("file")).expect("open");
    for round in 1..=2 {
        assert_eq!(client.read(&file, 0, BYTES as u32).expect("read"), vec![round - 1; BYTES]);
        on_host.write_all_at(&vec![round; BYTES], 0).expect("write");
        until_new(|| {
            let bytes = client.read(&file, 0, BYTES as u32).expect("read");
            assert_eq!(bytes.len(), BYTES);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "old and new are mixed");
            bytes[0] == round
        });
    }
    on_host.set_len(100).expect("cut");
    until_new(|| client.attributes(&file).expect("answer").expect("found").size == 100);
    assert_eq!(client.read(&file, 0, BYTES as u32).expect("read"), [2; 100]);
    fs::rename(files.join("file"), files.join("renamed")).expect("rename");
    until_new(|| client.lookup(&root, "renamed").expect("answer").is_ok());
    until_new(|| matches!(client.lookup(&root, "file").expect("answer"), Err(nfsstat3::NFS3ERR_NOENT)));
    assert_eq!(client.read(&file, 0, 100).expect("the handle stays"), [2; 100]);
    drop(on_host);
    fs::remove_file(files.join("renamed")).expect("remove");
    until_new(|| matches!(client.attributes(&file).expect("answer"), Err(nfsstat3::NFS3ERR_STALE)));
}

#[test]
fn sighup_adds_and_removes_directories_and_handles_of_removed_ones_are_stale() {
    let sandbox = Sandbox::new();
    let export = |name: &str| {
        fs::write(sandbox.make_directory(name).join("note"), name).expect("file");
        format!(
            "[[export]]\nname = \"{name}\"\nkind = \"directory\"\npath = \"{name}\"\nsecure = false\n\
             squash = \"no_root_squash\"\n"
        )
    };
    sandbox.write("awase.toml", &(export("stays") + &export("removed")));
    let (mut server, port) = sandbox.serve_directories(0, &["--config", "awase.toml"]);
    let mut client = Client::connect(port).expect("connect");
    let (stays, removed) = (client.find("/stays", "note"), client.find("/removed", "note"));
    assert_eq!(client.read(&removed, 0, 100).expect("read"), b"removed");

    sandbox.write("awase.toml", &(export("stays") + &export("added")));
    server.signal(libc::SIGHUP);
    server.await_notice("RELOADING=1");
    server.await_notice("READY=1");

    assert_eq!(client.read(&stays, 0, 100).expect("read"), b"stays");
    assert!(matches!(client.attributes(&removed).expect("answer"), Err(nfsstat3::NFS3ERR_STALE)));
    assert!(client.mount("/removed").expect_err("gone").to_string().contains("MNT3ERR_NOENT"));
    let added = client.find("/added", "note");
    assert_eq!(client.read(&added, 0, 100).expect("read"), b"added");
}

#[test]
fn directories_that_cannot_be_served_are_refused_with_one_message_and_exit_code_2() {
    let sandbox = Sandbox::new();
    for name in ["a/b", "c"] {
        sandbox.make_directory(name);
    }
    sandbox.write("file", "");
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let taken = taken.local_addr().expect("address").to_string();
    for (address, exports, message) in [
        (&*taken, &["path=c"][..], format!("listen.nfs cannot be served: {taken} is in use by another server")),
        ("none", &["path=c"], "listen.nfs is empty, and directories are to be served".to_owned()),
        ("127.0.0.1:0", &["path=none"], "export \"n0\" path = \"none\" cannot be served: No such file".to_owned()),
        ("127.0.0.1:0", &["path=file"], "export \"n0\" path cannot be served:".to_owned()),
        ("127.0.0.1:0", &["path=a", "path=a/b"], "is inside the directory of export \"n0\", or contains it".to_owned()),
        ("127.0.0.1:0", &["path=/dev/shm,names=ordered"], "names = \"ordered\" needs a file system that".to_owned()),
        ("127.0.0.1:0", &["path=c,mount=c"], "mount = \"c\" does not begin with \"/\"".to_owned()),
    ] {
        let exports =
            exports.iter().enumerate().map(|(n, more)| format!("name=n{n},kind=directory,secure=false,{more}"));
        let exports: Vec<String> = exports.flat_map(|export| ["--export".to_owned(), export]).collect();
        let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
        let output = sandbox.run(&[&["serve", "--nbd", "none", "--nfs", address], &exports[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{exports:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "more than one message: {errors}");
        assert!(errors.contains(&message), "{message:?} is not in: {errors}");
    }
}

#[test]
fn sigterm_under_load_writes_everything_and_ends_with_exit_code_0() {
    const BLOCK: usize = 5000;
    let sandbox = Sandbox::new();
    let files = sandbox.make_directory("files");
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| fs::write(files.join(name), "").expect("file"));
    let export = "name=files,kind=directory,secure=false,path=files,squash=no_root_squash";
    let (mut server, port) = sandbox.serve_directories(0, &["--export", export]);
    let (sender, acknowledged) = channel();
    let writers = names.map(|name| {
        let sender = sender.clone();
        thread::spawn(move || {
            let (mut client, file) = Client::open(port, "/files", name);
            for number in 0.. {
                let stable = if number % 16 == 0 { stable_how::FILE_SYNC } else { stable_how::UNSTABLE };
                let bytes = vec![number as u8 | 1; BLOCK];
                if client.write(&file, (number * BLOCK) as u64, &bytes, stable).is_err() {
                    return number;
                }
                let _ = sender.send(());
            }
            unreachable!("it writes until the connection ends")
        })
    });
    drop(sender);
    assert_eq!(acknowledged.iter().take(1000).count(), 1000, "a writer stopped early");
    server.signal(libc::SIGTERM);
    server.await_notice("STOPPING=1");
    let counts = writers.map(|writer| writer.join().expect("no panic"));
    let (status, _, errors) = server.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
    for (name, count) in names.iter().zip(counts) {
        let bytes = fs::read(files.join(name)).expect("read");
        assert!(bytes.len() >= count * BLOCK, "{} bytes after {count} acknowledged writes", bytes.len());
        let lost = (0..count).find(|&number| bytes[number * BLOCK..][..BLOCK] != vec![number as u8 | 1; BLOCK]);
        assert_eq!(lost, None, "an acknowledged write to {name} is not on the disk");
    }
}

/// Runs a program in the network and mount namespaces of another process.
fn run_in_namespaces_of(process: u32, program: &[&str]) -> String {
    client("nsenter", &[&["--target", &process.to_string(), "--net", "--mount"], program].concat())
}

#[test]
fn clients_find_directories_by_rpcbind() {
    // Own network and mount namespaces: rpcbind has one fixed port and one socket in /run.
    let own = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
    let has = |command: &str| attempt("sh", &["-c", &format!("command -v {command}")]).status.success();
    let missing = ["rpcbind", "rpcinfo", "showmount", "nsenter", "ip"].into_iter().find(|command| !has(command));
    if missing.is_some() || !attempt("unshare", &[&own[..], &["true"]].concat()).status.success() {
        skip!("{}", missing.map_or("no namespaces".into(), |command| format!("no {command}")));
    }
    let sandbox = Sandbox::new();
    sandbox.make_directory("files");
    sandbox.write("files/note", "found");
    // The shell stays as the first process: when it is killed, so are all others. The server must not replace it: a process
    // that changes its credentials is no longer killed with its parent (prctl(2), PR_SET_PDEATHSIG).
    let script = "mount -t tmpfs none /run && ip link set lo up && rpcbind && \"$0\" \"$@\"; exit $?";
    let mut command = Command::new("unshare");
    command.args(own).args([
        "sh",
        "-c",
        script,
        &AWASE,
        "serve",
        "--nbd",
        "none",
        "--nfs",
        "127.0.0.1:2049",
        "--rpcbind",
    ]);
    command.args(["--export", "name=files,kind=directory,secure=false,path=files,clients=127.0.0.0/8"]);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    let server = sandbox.start(command);
    let known = run_in_namespaces_of(server.id(), &["rpcinfo", "-p", "127.0.0.1"]);
    for program in ["100003", "100005"] {
        let line = known.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = line.filter(|words| words.starts_with(&[program, "3", "tcp", "2049"])).count();
        assert_eq!(found, 1, "{program} is missing in:\n{known}");
    }
    let exports = run_in_namespaces_of(server.id(), &["showmount", "--no-headers", "-e", "127.0.0.1"]);
    assert_eq!(exports.split_whitespace().collect::<Vec<_>>(), ["/files", "127.0.0.0/8"]);
    assert_eq!(run_in_namespaces_of(server.id(), &["nfs-cat", "nfs://127.0.0.1/files/note"]), "found");
}

/// Copies a program of the host into an exported directory.
fn make_program(directory: &Path, name: &str, of: &str) -> PathBuf {
    let path = directory.join(name);
    // By another process: descriptors that this process has open for writing are inherited for a moment by programs that
    // other tests start, and would make this one busy (ETXTBSY).
    assert!(Command::new("cp").arg(of).arg(&path).status().expect("cp").success());
    path
}

#[test]
fn the_host_can_execute_files_that_clients_have_read_or_written() {
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("programs");
    let (read, written) = (make_program(&directory, "read", "/bin/true"), directory.join("written"));
    fs::write(&written, "").expect("made");
    fs::set_permissions(&written, fs::Permissions::from_mode(0o777)).expect("chmod");
    let export = "name=programs,kind=directory,secure=false,path=programs,squash=no_root_squash";
    let (_server, port) = sandbox.serve_directories(0, &["--export", export]);
    let mut client = Client::connect(port).expect("connect");
    let root = client.mount("/programs").expect("mounted");
    let handle = |client: &mut Client, name| client.lookup(&root, name).expect("an answer").expect("a file");

    let (of_read, of_written) = (handle(&mut client, "read"), handle(&mut client, "written"));
    assert_eq!(client.read(&of_read, 0, 4).expect("read"), b"\x7fELF");
    assert!(Command::new(&read).status().expect("executed at once").success());

    let script = b"#!/bin/sh\nexit 7\n";
    client.write(&of_written, 0, script, stable_how::FILE_SYNC).expect("written");
    let began = Instant::now();
    let status = loop {
        match Command::new(&written).status() {
            Ok(status) => break status,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY), "{error}"),
        }
        assert!(began.elapsed() < Duration::from_secs(10), "still open for writing");
        client.attributes(&of_written).expect("an answer").expect("attributes");
    };
    assert_eq!(status.code(), Some(7));

    let mut running = Command::new(make_program(&directory, "running", "/bin/sleep")).arg("600").spawn().expect("runs");
    let of_running = handle(&mut client, "running");
    assert_eq!(client.read(&of_running, 0, 4).expect("read"), b"\x7fELF");
    let refusal = client.write(&of_running, 0, script, stable_how::UNSTABLE);
    // Before any assertion: the program must not outlive the test.
    running.kill().and_then(|()| running.wait()).expect("ended");
    let refusal = refusal.expect_err("it was executed").to_string();
    assert_eq!(refusal, nfsstat3::NFS3ERR_ACCES.to_string());
    client.write(&of_running, 0, script, stable_how::UNSTABLE).expect("accepted after the program has ended");
}
