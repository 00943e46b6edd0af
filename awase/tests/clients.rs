//! Real clients of NBD: libnbd's programs, its Python binding, qemu-img.

use std::path::Path;

use testkit::nbd::Client;
use testkit::server::{Sandbox, Server, attempt, client};

const IMAGE_BYTES: u64 = 64 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

/// An image of a file system with files.
fn image(sandbox: &Sandbox) -> String {
    let (tree, image) = (sandbox.file("tree"), sandbox.file("image"));
    std::fs::create_dir_all(tree.join("a/b")).expect("directories");
    for n in 0..200u32 {
        let content: Vec<u8> =
            (0..n * 97).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(n) >> 24) as u8).collect();
        std::fs::write(tree.join(format!("a/b/{n}")), content).expect("file");
    }
    client("mke2fs", &["-q", "-F", "-t", "ext4", "-d", text(&tree), text(&image), &format!("{}k", IMAGE_BYTES >> 10)]);
    text(&image).to_owned()
}

fn serve_file(sandbox: &Sandbox, more: &[&str]) -> Server {
    let export = format!("name=d,kind=file,path=d.img,size={IMAGE_BYTES},create=true");
    sandbox.serve(&[&["--export", &export], more].concat())
}

fn assert_same(a: &str, b: &str) {
    let (a_bytes, b_bytes) = (std::fs::read(a).expect("read"), std::fs::read(b).expect("read"));
    let differs = a_bytes.iter().zip(&b_bytes).position(|(a, b)| a != b);
    assert_eq!((a_bytes.len(), differs), (b_bytes.len(), None), "{a} and {b} differ (length, first difference)");
}

#[test]
fn nbdinfo_shows_exports_sizes_and_capabilities() {
    let server = Sandbox::new().serve(&[
        "--export",
        "name=one,kind=ram,size=1MiB,description=the first",
        "--export",
        "name=two,kind=ram,size=2MiB,read_only=true,block_size=512",
    ]);
    assert_eq!(client("nbdinfo", &["--size", &server.uri("one")]).trim(), "1048576");
    let list = client("nbdinfo", &["--list", &server.uri("")]);
    assert!(list.contains("export=\"one\"") && list.contains("export=\"two\""), "{list}");
    assert!(list.contains("the first"), "{list}");
    let one = client("nbdinfo", &[&server.uri("one")]);
    for can in [
        "is_read_only: false",
        "can_fua: true",
        "can_flush: true",
        "can_trim: true",
        "can_zero: true",
        "can_multi_conn: true",
        "can_cache: true",
        "base:allocation",
    ] {
        assert!(one.contains(can), "{can} is missing: {one}");
    }
    let two = client("nbdinfo", &[&server.uri("two")]);
    assert!(two.contains("is_read_only: true") && two.contains("block_size_minimum: 512"), "{two}");
}

#[test]
fn an_unknown_export_is_refused_and_others_are_served() {
    let server = Sandbox::new().serve(&["--export", "name=one,kind=ram,size=1MiB"]);
    let output = attempt("nbdinfo", &[&server.uri("three")]);
    assert!(!output.status.success());
    assert_eq!(client("nbdinfo", &["--size", &server.uri("one")]).trim(), "1048576");
}

#[test]
fn nbdcopy_copies_a_file_system_in_and_out_unchanged() {
    for more in [&["--engine", "auto"][..], &["--engine", "threads"], &["--switch", "unmapped_io=off"]] {
        let sandbox = Sandbox::new();
        let image = image(&sandbox);
        let server = serve_file(&sandbox, more);
        client("nbdcopy", &["--flush", &image, &server.uri("d")]);
        let copy = sandbox.file("copy");
        client("nbdcopy", &[&server.uri("d"), text(&copy)]);
        assert_same(&image, text(&copy));
        client("e2fsck", &["-f", "-n", text(&copy)]);
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    let sandbox = Sandbox::new();
    let image = image(&sandbox);
    let server = serve_file(&sandbox, &[]);
    let info = client("qemu-img", &["info", &server.uri("d")]);
    assert!(info.contains("64 MiB (67108864 bytes)"), "{info}");
    client("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &server.uri("d")]);
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &server.uri("d")]);
    let copy = sandbox.file("copy.qcow2");
    client("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &server.uri("d"), text(&copy)]);
    client("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &image, text(&copy)]);
}

#[test]
fn unwritten_blocks_are_reported_as_a_hole() {
    let sandbox = Sandbox::new();
    let server = serve_file(&sandbox, &[]);
    let map = client("nbdinfo", &["--map", "--totals", &server.uri("d")]);
    assert!(map.contains("100.0%") && map.contains("hole"), "{map}");
}

/// A Python with libnbd's module: Debian installs it for its own Python, which need not be the first in the path.
fn python() -> &'static str {
    let has_module = |python: &&str| attempt(python, &["-c", "import nbd"]).status.success();
    ["python3", "/usr/bin/python3"].into_iter().find(has_module).expect("python3-libnbd (`make test` installs it)")
}

#[test]
fn every_command_follows_the_protocol() {
    let sandbox = Sandbox::new();
    let server = serve_file(&sandbox, &[]);
    let script = r#"
import nbd, sys
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 65536, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 4096) == b"x" * 65536
h.zero(4096, 8192)
assert h.pread(12288, 4096) == b"x" * 4096 + bytes(4096) + b"x" * 4096
h.zero(4096, 16384, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, 16384) == bytes(4096)
h.trim(4096, 32768)
h.pwrite(b"odd", 1000001)
assert h.pread(5, 1000000) == b"\0odd\0"
h.cache(1 << 20, 0)
h.flush()
extents = []
h.block_status(1 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
assert sum(extents[0::2]) <= 1 << 20 and len(extents) >= 4, extents
for bad in (lambda: h.pread(4096, h.get_size()), lambda: h.pwrite(b"x", h.get_size())):
    try:
        h.set_strict_mode(0)
        bad()
        raise SystemExit("beyond the end was accepted")
    except nbd.Error as error:
        assert error.errno in ("EINVAL", "ENOSPC"), error
assert h.pread(1, 4096) == b"x"
h.shutdown()
"#;
    client(python(), &["-c", script, &server.uri("d")]);
}

#[test]
fn connections_see_each_others_writes_at_once() {
    let server = Sandbox::new().serve(&["--processors", "2", "--export", "name=d,kind=ram,size=1MiB"]);
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(&server.socket(), "d").expect("connect")).collect();
    for round in 0..64u8 {
        let writer = usize::from(round) % clients.len();
        clients[writer].write(u64::from(round) * 1000, &[round; 5000]).expect("write");
        for client in &mut clients {
            assert_eq!(client.read(u64::from(round) * 1000, 5000).expect("read"), [round; 5000]);
        }
    }
}

#[test]
fn a_read_only_export_refuses_writes_and_serves_reads() {
    let sandbox = Sandbox::new();
    let image = image(&sandbox);
    let server = sandbox.serve(&["--export", &format!("name=d,kind=file,path={image}"), "--read-only"]);
    assert!(!attempt("nbdcopy", &[&image, &server.uri("d")]).status.success());
    let mut client = Client::connect(&server.socket(), "d").expect("connect");
    let error = client.write(0, b"no").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    assert_eq!(client.read(0, 4096).expect("read"), std::fs::read(&image).expect("image")[..4096]);
}

#[test]
fn only_clients_of_a_failing_medium_get_errors() {
    let server = Sandbox::new().serve(&[
        "--export",
        "name=bad,kind=ram,size=1MiB,faults.read_permille=1000,faults.flush_permille=1000",
        "--export",
        "name=good,kind=ram,size=1MiB",
    ]);
    let mut bad = Client::connect(&server.socket(), "bad").expect("connect");
    let mut good = Client::connect(&server.socket(), "good").expect("connect");
    good.write(0, b"fine").expect("write");
    assert_eq!(bad.read(0, 4096).expect_err("fails").raw_os_error(), Some(libc::EIO));
    bad.write(0, &[1; 4096]).expect("into the cache");
    for _ in 0..3 {
        assert_eq!(bad.flush().expect_err("fails again").raw_os_error(), Some(libc::EIO));
    }
    good.flush().expect("flush");
    assert_eq!(good.read(0, 4).expect("read"), b"fine");
}

#[test]
fn garbage_on_the_wire_harms_no_other_client() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let server = Sandbox::new().serve(&["--export", "name=d,kind=ram,size=1MiB"]);
    let mut good = Client::connect(&server.socket(), "d").expect("connect");
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"] {
        let mut stream = UnixStream::connect(server.socket()).expect("connect");
        // It may be disconnected before all is sent.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        good.write(0, garbage).expect("write");
        assert_eq!(good.read(0, garbage.len() as u32).expect("read"), garbage);
    }
}
