//! Files of a directory that processes of the host also change, and directories that are served more than once.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{COMMIT3args, COMMIT3res, NFS_PROGRAM as Nfs, Nfs3Result, nfs_fh3, stable_how};

use testkit::nfs::Client;
use testkit::server::{AWASE, Sandbox, nfs_port};

const BLOCK: usize = 4096;

/// For this long the attributes of a file are not revalidated.
const FRESH: Duration = Duration::from_millis(500);

const EXPORT: [&str; 2] = ["--export", "name=files,kind=directory,secure=false,path=files"];

fn make_file(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("file");
    fs::set_permissions(path, Permissions::from_mode(0o666)).expect("chmod");
}

/// Writes durably, as a process of the host.
fn write_on_host(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("opens");
    file.write_all_at(bytes, at).expect("written");
    file.sync_all().expect("durable");
}

fn commit(client: &mut Client, file: &nfs_fh3) {
    let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let result: COMMIT3res = client.call(Nfs::NFSPROC3_COMMIT, &arguments).expect("an answer");
    assert!(matches!(result, Nfs3Result::Ok(_)), "durable");
}

/// Reads until the content is `expected`, which must be soon.
fn await_content(client: &mut Client, file: &nfs_fh3, at: u64, expected: &[u8]) {
    let until = Instant::now() + FRESH + Duration::from_secs(5);
    while client.read(file, at, expected.len() as u32).expect("read") != expected {
        assert!(Instant::now() < until, "the change is not seen");
        sleep(Duration::from_millis(5));
    }
}

fn each_engine(test: impl Fn(&[&str])) {
    test(&["--engine", "auto"]);
    test(&["--engine", "threads"]);
}

#[test]
fn a_change_on_the_host_next_to_an_unstable_block_is_seen_and_not_overwritten() {
    each_engine(|engine| {
        let sandbox = Sandbox::new();
        let path = sandbox.make_directory("files").join("file");
        make_file(&path, &[1; 4 * BLOCK]);
        let (_server, port) = sandbox.serve_directories(0, &[&EXPORT, engine].concat());
        let (mut client, file) = Client::open(port, "/files", "file");
        assert!(client.read(&file, 0, 4 * BLOCK as u32).expect("read") == [1; 4 * BLOCK]);
        client.write(&file, 0, &[2; BLOCK], stable_how::UNSTABLE).expect("written");
        write_on_host(&path, 2 * BLOCK as u64, &[9; BLOCK]);
        await_content(&mut client, &file, 2 * BLOCK as u64, &[9; BLOCK]);
        client.write(&file, 0, &[3; BLOCK], stable_how::UNSTABLE).expect("written");
        write_on_host(&path, 3 * BLOCK as u64, &[8; BLOCK]);
        commit(&mut client, &file);
        assert!(client.read(&file, 3 * BLOCK as u64, BLOCK as u32).expect("read") == [8; BLOCK], "seen after a COMMIT");
        client.write(&file, 2 * BLOCK as u64 + 7, b"x", stable_how::FILE_SYNC).expect("written");
        let mut expected = [[3; BLOCK], [1; BLOCK], [9; BLOCK], [8; BLOCK]].concat();
        expected[2 * BLOCK + 7] = b'x';
        assert!(fs::read(&path).expect("read") == expected);
        await_content(&mut client, &file, 0, &expected);
    });
}

#[test]
fn a_byte_written_right_after_the_host_changed_its_block_leaves_the_rest_of_the_block() {
    each_engine(|engine| {
        let sandbox = Sandbox::new();
        let path = sandbox.make_directory("files").join("file");
        make_file(&path, &[1; 2 * BLOCK]);
        let (_server, port) = sandbox.serve_directories(0, &[&EXPORT, engine].concat());
        let (mut client, file) = Client::open(port, "/files", "file");
        let mut expected = vec![1; 2 * BLOCK];
        for round in 0..50_u8 {
            assert!(client.read(&file, 0, 2 * BLOCK as u32).is_ok());
            expected.fill(round);
            write_on_host(&path, 0, &expected);
            let at = usize::from(round) * 100;
            expected[at] = b'x';
            client.write(&file, at as u64, b"x", stable_how::FILE_SYNC).expect("written");
            assert!(fs::read(&path).expect("read") == expected, "round {round}");
            await_content(&mut client, &file, 0, &expected);
        }
    });
}

#[test]
fn what_the_host_appends_to_a_clients_file_is_seen_by_one_that_looks_up_the_name_each_time() {
    each_engine(|engine| {
        let sandbox = Sandbox::new();
        let path = sandbox.make_directory("files").join("log");
        let (_server, port) = sandbox.serve_directories(0, &[&EXPORT, engine].concat());
        let mut client = Client::connect(port).expect("connected");
        let root = client.mount("/files").expect("mounted");
        let mut file = client.create(&root, "log").expect("an answer").expect("made");
        for round in 0..5_u64 {
            client.write(&file, round * 200, &[1; 100], stable_how::FILE_SYNC).expect("written");
            write_on_host(&path, round * 200 + 100, &[2; 100]);
            let until = Instant::now() + FRESH + Duration::from_secs(5);
            while client.attributes(&file).expect("an answer").expect("there").size != (round + 1) * 200 {
                assert!(Instant::now() < until, "the change is not seen");
                file = client.lookup(&root, "log").expect("an answer").expect("there");
            }
            let content = client.read(&file, round * 200, 1000).expect("read");
            assert!(content == [[1; 100], [2; 100]].concat(), "round {round}");
        }
    });
}

fn refusal(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let serve = [
        "serve",
        "--nbd",
        "none",
        "--nfs",
        "127.0.0.1:0",
        "--postgres",
        "none",
        "--metrics",
        "none",
        "--data",
        "other-data",
    ];
    // A server that is not refused runs until it is killed.
    let mut bounded = Command::new("timeout");
    let output = bounded.args(["30", &AWASE]).args(serve).args(arguments).current_dir(sandbox.path()).output();
    let output = output.expect("runs");
    assert!(!output.status.success(), "it was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_server_of_a_directory_its_parent_or_its_child_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("above/files/in");
    let serves = |path: &str| format!("name=files,kind=directory,secure=false,path={path}");
    let (server, _) = sandbox.serve_directories(0, &["--export", &serves("above/files")]);
    for path in ["above/files", "above", "above/files/in"] {
        let errors = refusal(&sandbox, &["--export", &serves(path)]);
        assert!(errors.contains("above") && errors.contains("is locked: another server"), "{path}: {errors}");
    }
    let errors = refusal(&sandbox, &["--export", &format!("{},read_only=true", serves("above/files"))]);
    assert!(errors.contains("is locked"), "{errors}");
    server.end();
    // Read-only servers share it.
    let reads = format!("{},read_only=true", serves("above/files"));
    let (_first, _) = sandbox.serve_directories(0, &["--export", &reads]);
    let (_second, _) = sandbox.serve_directories(0, &["--export", &reads, "--data", "other-data"]);
    refusal(&sandbox, &["--export", &serves("above/files")]);
}

#[test]
fn a_killed_server_leaves_no_lock() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("files");
    for _ in 0..3 {
        let (server, _) = sandbox.serve_directories(0, &EXPORT);
        server.crash();
    }
}

/// Alternates writes by two paths to one file, each of which the other must read.
fn write_alternately(first: (Client, nfs_fh3), second: (Client, nfs_fh3), path: &Path) {
    let mut ways = [first, second];
    let mut expected = fs::read(path).expect("read");
    for round in 0..40_usize {
        let at = round * 331 % (expected.len() - 5000);
        let len = if round % 3 == 0 { 5000 } else { 7 };
        expected[at..at + len].fill(round as u8 + 1);
        let (writer, reader) = (round % 2, (round + 1) % 2);
        let (client, file) = &mut ways[writer];
        let stable = if round % 5 == 0 { stable_how::UNSTABLE } else { stable_how::FILE_SYNC };
        client.write(file, at as u64, &expected[at..at + len], stable).expect("written");
        if stable == stable_how::UNSTABLE {
            commit(client, file);
        }
        assert!(fs::read(path).expect("read") == expected, "round {round}: on the host");
        for way in [reader, writer] {
            let (client, file) = &mut ways[way];
            let found = client.read(file, 0, expected.len() as u32).expect("read");
            assert!(found == expected, "round {round}: by way {way}");
        }
    }
}

/// An unstable write by one path is read by the other before it is on the host.
fn assert_one_cache(first: (Client, nfs_fh3), second: (Client, nfs_fh3)) {
    let (mut writer, written) = first;
    let (mut reader, read) = second;
    for round in 0..20 {
        writer.write(&written, 0, &[100 + round; BLOCK], stable_how::UNSTABLE).expect("written");
        assert!(reader.read(&read, 0, BLOCK as u32).expect("read") == [100 + round; BLOCK], "round {round}");
    }
}

#[test]
fn two_exports_of_one_directory_share_a_cache() {
    let sandbox = Sandbox::new();
    let path = sandbox.make_directory("files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    let other = ["--export", "name=other,kind=directory,secure=false,path=./files"];
    let (_server, port) = sandbox.serve_directories(0, &[EXPORT, other].concat());
    write_alternately(Client::open(port, "/files", "file"), Client::open(port, "/other", "file"), &path);
    assert_one_cache(Client::open(port, "/files", "file"), Client::open(port, "/other", "file"));
}

#[test]
fn hard_links_in_two_exports_have_the_same_content() {
    let sandbox = Sandbox::new();
    let path = sandbox.make_directory("files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    fs::hard_link(&path, sandbox.make_directory("other").join("link")).expect("linked");
    let other = ["--export", "name=other,kind=directory,secure=false,path=other"];
    each_engine(|engine| {
        let (_server, port) = sandbox.serve_directories(0, &[&EXPORT, &other, engine].concat());
        write_alternately(Client::open(port, "/files", "file"), Client::open(port, "/other", "link"), &path);
    });
}

/// A server in its own mount namespace, in which the directory `files` is also bind-mounted at `bound`.
fn with_bound(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind files bound && exec \"$0\" \"$@\"", &AWASE, "serve"]);
    command.args(["--nbd", "none", "--nfs", "127.0.0.1:0", "--metrics", "none"]).args(arguments);
    command.current_dir(sandbox.path());
    command
}

fn may_bind(sandbox: &Sandbox) -> bool {
    sandbox.make_directory("bound");
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "sh", "-c", "mount --bind files bound"]).current_dir(sandbox.path());
    tried.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_directory_and_its_bind_mount_share_a_cache_and_a_lock() {
    let sandbox = Sandbox::new();
    let path = sandbox.make_directory("files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    if !may_bind(&sandbox) {
        testkit::skip!("bind mounts are not permitted");
    }
    let bound = ["--export", "name=bound,kind=directory,secure=false,path=bound"];
    let mut server = sandbox.start(with_bound(&sandbox, &[EXPORT, bound].concat()));
    let port = nfs_port(&server.banner());
    write_alternately(Client::open(port, "/files", "file"), Client::open(port, "/bound", "file"), &path);
    assert_one_cache(Client::open(port, "/files", "file"), Client::open(port, "/bound", "file"));
    let second = with_bound(&sandbox, &[&bound[..], &["--data", "other-data"]].concat()).output().expect("runs");
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && errors.contains("is locked"), "{errors}");
}
