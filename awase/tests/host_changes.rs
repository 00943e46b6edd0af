//! Files of a directory that processes of the host change, too, and directories that are given out more than once.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{COMMIT3args, COMMIT3res, NFS_PROGRAM as Nfs, Nfs3Result, nfs_fh3, stable_how};

use testkit::nfs::Client;
use testkit::server::{AWASE, Place, Server};

const BLOCK: usize = 4096;

/// What the host said of a file is believed for so long.
const FRESH: Duration = Duration::from_millis(500);

const EXPORT: [&str; 2] = ["--export", "name=files,kind=directory,secure=false,path=files"];

fn make_directory(place: &Place, name: &str) -> PathBuf {
    let path = place.file(name);
    fs::create_dir_all(&path).expect("directory");
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
    path
}

fn make_file(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("file");
    fs::set_permissions(path, Permissions::from_mode(0o666)).expect("chmod");
}

/// As a process of the host does it, who wants to be sure.
fn write_on_host(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("opens");
    file.write_all_at(bytes, at).expect("written");
    file.sync_all().expect("durable");
}

fn opened(port: u16, export: &str, name: &str) -> (Client, nfs_fh3) {
    let mut client = Client::connect(port).expect("connected");
    let root = client.mount(export).expect("mounted");
    let file = client.lookup(&root, name).expect("an answer").expect("there");
    (client, file)
}

fn commit(client: &mut Client, file: &nfs_fh3) {
    let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let result: COMMIT3res = client.call(Nfs::NFSPROC3_COMMIT, &arguments).expect("an answer");
    assert!(matches!(result, Nfs3Result::Ok(_)), "durable");
}

/// Reads until that is `expected`, which must be soon.
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
fn what_the_host_changes_beside_an_unstable_block_is_seen_and_stays() {
    each_engine(|engine| {
        let place = Place::new();
        let path = make_directory(&place, "files").join("file");
        make_file(&path, &[1; 4 * BLOCK]);
        let (_server, port) = place.serve_directories(0, &[&EXPORT, engine].concat());
        let (mut client, file) = opened(port, "/files", "file");
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
fn a_byte_written_at_once_after_the_host_wrote_the_rest_of_its_block_leaves_the_rest() {
    each_engine(|engine| {
        let place = Place::new();
        let path = make_directory(&place, "files").join("file");
        make_file(&path, &[1; 2 * BLOCK]);
        let (_server, port) = place.serve_directories(0, &[&EXPORT, engine].concat());
        let (mut client, file) = opened(port, "/files", "file");
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

fn refusal(place: &Place, arguments: &[&str]) -> String {
    let serve = ["serve", "--nbd", "none", "--nfs", "127.0.0.1:0", "--metrics", "none", "--data", "other-data"];
    // One that is not refused serves until it is ended.
    let mut bounded = Command::new("timeout");
    let output = bounded.args(["30", &AWASE]).args(serve).args(arguments).current_dir(place.path()).output();
    let output = output.expect("runs");
    assert!(!output.status.success(), "it was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_server_of_a_directory_or_of_one_above_or_in_it_is_refused() {
    let place = Place::new();
    make_directory(&place, "above/files/in");
    let serves = |path: &str| format!("name=files,kind=directory,secure=false,path={path}");
    let (server, _) = place.serve_directories(0, &["--export", &serves("above/files")]);
    for path in ["above/files", "above", "above/files/in"] {
        let said = refusal(&place, &["--export", &serves(path)]);
        assert!(said.contains("above") && said.contains("is locked: another server gives it out"), "{path}: {said}");
    }
    let said = refusal(&place, &["--export", &format!("{},read_only=true", serves("above/files"))]);
    assert!(said.contains("is locked"), "{said}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0.success());
    // Those who only read do not mind each other.
    let reads = format!("{},read_only=true", serves("above/files"));
    let (_first, _) = place.serve_directories(0, &["--export", &reads]);
    let (_second, _) = place.serve_directories(0, &["--export", &reads, "--data", "other-data"]);
    refusal(&place, &["--export", &serves("above/files")]);
}

#[test]
fn a_server_that_was_killed_leaves_no_lock() {
    let place = Place::new();
    make_directory(&place, "files");
    for _ in 0..3 {
        let (server, _) = place.serve_directories(0, &EXPORT);
        server.crash();
    }
}

/// Writes by each of two ways to a file what the other must read.
fn write_by_turns(first: (Client, nfs_fh3), second: (Client, nfs_fh3), path: &Path) {
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

/// What one way has written is read by the other before it is on the host.
fn assert_one_cache(first: (Client, nfs_fh3), second: (Client, nfs_fh3)) {
    let (mut writer, written) = first;
    let (mut reader, read) = second;
    for round in 0..20 {
        writer.write(&written, 0, &[100 + round; BLOCK], stable_how::UNSTABLE).expect("written");
        assert!(reader.read(&read, 0, BLOCK as u32).expect("read") == [100 + round; BLOCK], "round {round}");
    }
}

#[test]
fn two_exports_of_one_directory_have_one_content() {
    let place = Place::new();
    let path = make_directory(&place, "files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    let other = ["--export", "name=other,kind=directory,secure=false,path=./files"];
    let (_server, port) = place.serve_directories(0, &[EXPORT, other].concat());
    write_by_turns(opened(port, "/files", "file"), opened(port, "/other", "file"), &path);
    assert_one_cache(opened(port, "/files", "file"), opened(port, "/other", "file"));
}

#[test]
fn a_hard_link_in_two_exports_has_one_content() {
    let place = Place::new();
    let path = make_directory(&place, "files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    fs::hard_link(&path, make_directory(&place, "other").join("link")).expect("linked");
    let other = ["--export", "name=other,kind=directory,secure=false,path=other"];
    each_engine(|engine| {
        let (_server, port) = place.serve_directories(0, &[&EXPORT, &other, engine].concat());
        write_by_turns(opened(port, "/files", "file"), opened(port, "/other", "link"), &path);
    });
}

/// A server in file systems of its own, in which the directory `files` is `bound`, too.
fn with_bound(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind files bound && exec \"$0\" \"$@\"", &AWASE, "serve"]);
    command.args(["--nbd", "none", "--nfs", "127.0.0.1:0", "--metrics", "none"]).args(arguments);
    command.current_dir(place.path());
    command
}

fn may_bind(place: &Place) -> bool {
    make_directory(place, "bound");
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "sh", "-c", "mount --bind files bound"]).current_dir(place.path());
    tried.output().is_ok_and(|output| output.status.success())
}

fn port_of(server: &mut Server) -> u16 {
    let banner = server.banner();
    let said = banner.split_once("?nfsport=").and_then(|(_, rest)| rest.split_once('&'));
    said.and_then(|(port, _)| port.parse().ok()).unwrap_or_else(|| panic!("no port of NFS in:\n{banner}"))
}

#[test]
fn a_directory_and_its_bind_mount_have_one_content_and_one_server() {
    let place = Place::new();
    let path = make_directory(&place, "files").join("file");
    make_file(&path, &[0; 5 * BLOCK]);
    if !may_bind(&place) {
        testkit::skip!("nothing can be mounted here");
    }
    let bound = ["--export", "name=bound,kind=directory,secure=false,path=bound"];
    let mut server = place.start(with_bound(&place, &[EXPORT, bound].concat()));
    let port = port_of(&mut server);
    write_by_turns(opened(port, "/files", "file"), opened(port, "/bound", "file"), &path);
    assert_one_cache(opened(port, "/files", "file"), opened(port, "/bound", "file"));
    let second = with_bound(&place, &[&bound[..], &["--data", "other-data"]].concat()).output().expect("runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("is locked"), "{said}");
}
