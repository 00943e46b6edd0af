//! The shortest servers of NBD and NFS: clients that others wrote use them, and what is written is in the files.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::server::{Sandbox, await_that, client};

const MIB: usize = 1 << 20;

/// A running `awase-lab limit`, killed at its end.
struct Limit(Child);

impl Limit {
    fn start(arguments: &[&str]) -> Limit {
        let mut command = Command::new(env!("CARGO_BIN_EXE_awase-lab"));
        command.arg("limit").args(arguments).stdin(Stdio::null());
        Limit(command.spawn().expect("awase-lab"))
    }

    /// Returns what clients connect to as well.
    fn disk(place: &Sandbox, arguments: &[&str]) -> (Limit, String) {
        let socket = place.file("limit.sock");
        let limit = Limit::start(&[&["nbd", "--unix", text(&socket)], arguments].concat());
        await_that("it listens", || socket.exists());
        (limit, format!("nbd+unix:///disk?socket={}", socket.display()))
    }

    /// Returns its address as well.
    fn directory(arguments: &[&str]) -> (Limit, SocketAddr) {
        Limit::listening("nfs", arguments)
    }

    fn listening(protocol: &str, arguments: &[&str]) -> (Limit, SocketAddr) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, testkit::port::unused()));
        let limit = Limit::start(&[&[protocol, "--tcp", &address.to_string()], arguments].concat());
        await_that("it listens", || TcpStream::connect(address).is_ok());
        (limit, address)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

fn url(address: SocketAddr, name: &str) -> String {
    let port = address.port();
    format!("nfs://{}/files/{name}?nfsport={port}&mountport={port}", address.ip())
}

/// Bytes of which no two blocks are alike.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 512 * 31 + at) as u8).collect()
}

#[test]
fn a_disk_that_stores_nothing_is_read_and_written() {
    let place = Sandbox::new();
    let (_limit, uri) = Limit::disk(&place, &["--null", &(64 * MIB).to_string()]);
    assert_eq!(client("nbdinfo", &["--size", &uri]).trim(), (64 * MIB).to_string());
    client("nbdcopy", &[&uri, "null:"]);
    client("qemu-io", &["-f", "raw", "-c", "write 0 1M", "-c", "flush", "-c", "read 4096 65536", &uri]);
}

#[test]
fn what_is_written_to_a_disk_is_in_its_file_and_read_from_it() {
    let place = Sandbox::new();
    let (image, source, back) = (place.file("image"), place.file("source"), place.file("back"));
    fs::write(&source, content(16 * MIB)).expect("source");
    fs::File::create(&image).and_then(|file| file.set_len(16 * MIB as u64)).expect("image");
    let (_limit, uri) = Limit::disk(&place, &["--pass", text(&image), "--group", "4"]);
    client("nbdcopy", &["--flush", text(&source), &uri]);
    assert!(fs::read(&image).expect("image") == content(16 * MIB), "the image is not what was copied");
    client("nbdcopy", &[&uri, text(&back)]);
    assert!(fs::read(&back).expect("copy") == content(16 * MIB), "the copy is not what is in the image");
    // A read right behind a write of the same blocks; parts of blocks; a forced write.
    let commands =
        ["write -P 9 4096 65536", "read -P 9 8192 4096", "write -f -P 3 100 13", "read -P 3 100 13", "flush"];
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    client("qemu-io", &[&["-f", "raw"], &commands[..], &[&uri]].concat());
    let written = fs::read(&image).expect("image");
    assert!(written[4096..69632].iter().all(|byte| *byte == 9) && written[100..113] == [3; 13]);
}

#[test]
fn a_directory_that_stores_nothing_is_read_and_written() {
    let place = Sandbox::new();
    let note = place.write("note", "hello");
    let (_limit, address) = Limit::directory(&["--null", "8192"]);
    client("nfs-cp", &[text(&note), &url(address, "any")]);
    assert_eq!(client("nfs-cat", &[&url(address, "other")]).len(), 8192);
}

#[test]
fn what_is_written_to_a_directory_is_in_its_files_and_read_from_them() {
    let place = Sandbox::new();
    let files = place.file("files");
    fs::create_dir(&files).expect("directory");
    let (_limit, address) = Limit::directory(&["--pass", text(&files)]);
    // Whole blocks, and a part of one.
    for (name, bytes) in [("whole", 3 * MIB), ("part", 70_001)] {
        let (source, back) = (place.file(name), place.file(&format!("{name}.back")));
        fs::write(&source, content(bytes)).expect("source");
        client("nfs-cp", &[text(&source), &url(address, name)]);
        assert!(fs::read(files.join(name)).expect("file") == content(bytes), "{name} is not what was copied");
        client("nfs-cp", &[&url(address, name), text(&back)]);
        assert!(fs::read(&back).expect("copy") == content(bytes), "the copy of {name} is not what is in the file");
    }
}

#[test]
fn stable_writes_of_a_group_are_in_the_files_of_a_directory() {
    let place = Sandbox::new();
    let files = place.file("files");
    fs::create_dir(&files).expect("directory");
    let (_limit, address) = Limit::directory(&["--pass", text(&files), "--group", "16"]);
    let address = address.to_string();
    // Ends while fewer than a group are in flight: those are not forgotten.
    let workloads = ["--workload", "write_sync", "--workload", "write_sync_extend", "--workload", "read_random_cached"];
    let load = ["bench", "nfs", "--server", &address, "--export", "/files", "--seconds", "1", "--file-mib", "4"];
    client(env!("CARGO_BIN_EXE_awase-lab"), &[&load[..], &workloads].concat());
    let written = fs::read(files.join("load-0-0")).expect("file");
    assert!(written.chunks(8192).all(|block| block.iter().any(|byte| *byte != 0)), "a block was not written");
}

#[test]
fn queries_are_answered_with_one_row_in_either_protocol_with_and_without_a_log() {
    let place = Sandbox::new();
    let (log, script) = (place.file("log"), place.write("script", "SELECT 1;\n"));
    for arguments in [&[][..], &["--log", text(&log)], &["--log", text(&log), "--group", "4"]] {
        let (_limit, address) = Limit::listening("postgres", arguments);
        let port = address.port().to_string();
        let at = ["-h", "127.0.0.1", "-p", &port, "-U", "anybody"];
        assert_eq!(client("psql", &[&at[..], &["-At", "-c", "SELECT 1", "any"]].concat()).trim(), "999");
        for mode in ["simple", "prepared"] {
            let load = ["-n", "-M", mode, "-c", "4", "-t", "20", "-f", text(&script), "any"];
            let told = client("pgbench", &[&at[..], &load].concat());
            assert!(told.contains("number of transactions actually processed: 80/80"), "{told}");
        }
    }
    assert_eq!(fs::metadata(&log).expect("log").len(), 16 << 20);
}
