//! What a server refuses, told to those who wrote it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use testkit::server::{attempt, await_that, is_root};
use testkit::skip;

use crate::between::{self, Between, Fate};
use crate::fixture::{EXPORT, Fixture, Mount, await_end, shell};
use crate::listing::attributes;

const NOSPC: u32 = libc::ENOSPC as u32;

/// A fixture whose mount has something between itself and the server.
pub fn with_between(options: &str) -> Option<(Fixture, Between)> {
    let mut f = Fixture::new("")?;
    let between = Between::new(f.port);
    let mount = Mount::new(&f.sandbox, between.port, "through", options);
    std::mem::replace(&mut f.mount, mount).end();
    Some((f, between))
}

fn opened(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn error_of(result: std::io::Result<()>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn an_error_is_told_once_to_each_opening_and_the_data_is_stored_when_the_server_takes_it() {
    let Some((f, between)) = with_between("") else { return };
    between.refuse(between::WRITE, NOSPC);
    // A process of its own: of a file that is open here, every new process would close a copy, and be told.
    let script = "
import os, sys
def sync(file):
    try:
        os.fsync(file)
        return 0
    except OSError as error:
        return error.errno
first, second = [os.open(sys.argv[1], os.O_RDWR | os.O_CREAT) for _ in range(2)]
os.write(first, bytes([7]) * 10000)
told = sync(first)
later = os.open(sys.argv[1], os.O_RDWR)
print(told, flush=True)
for files in ([later], [second], [first, second, later]):
    sys.stdin.readline()
    print(*[sync(file) for file in files], flush=True)
";
    let mut writer = Command::new("python3");
    writer.args(["-c", script]).arg(f.path("a")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("python");
    let mut orders = writer.stdin.take().expect("piped");
    let mut said = BufReader::new(writer.stdout.take().expect("piped")).lines();
    let mut next = || said.next().expect("it says something").expect("text");
    let mut order = || orders.write_all(b"\n").expect("it reads");
    assert_eq!(next(), NOSPC.to_string());
    between.pass();
    order();
    assert_eq!(next(), "0", "it was opened after somebody was told");
    assert_eq!(fs::read(f.served("a")).expect("on the server"), vec![7; 10_000], "it was repeated");
    order();
    assert_eq!(next(), NOSPC.to_string(), "it was open when that failed");
    order();
    assert_eq!(next(), "0 0 0");
    assert!(await_end(&mut writer, "who wrote").success());
}

#[test]
fn a_server_that_refuses_makes_close_fail_whatever_it_refuses() {
    let Some((f, between)) = with_between("") else { return };
    for (procedure, status) in [(between::WRITE, libc::EDQUOT), (between::COMMIT, libc::EIO)] {
        let status_on_wire = if status == libc::EDQUOT { 69 } else { status as u32 };
        between.refuse(procedure, status_on_wire);
        // More than one WRITE, so that there is a COMMIT.
        let line = format!(
            "python3 -c \"
import os
f = os.open('a{procedure}', os.O_WRONLY | os.O_CREAT)
g = os.open('a{procedure}', os.O_WRONLY)
os.write(f, b'x' * 3000000)
for descriptor in (f, g):
    try:
        os.close(descriptor)
        print('closed')
    except OSError as error:
        print(error.errno)
\""
        );
        assert_eq!(shell(&f.mount.directory, &line), format!("{status}\n{status}\n"), "procedure {procedure}");
        between.pass();
        let path = f.path(&format!("a{procedure}"));
        opened(&path).sync_all().expect("it is stored now");
        assert_eq!(fs::metadata(f.served(&format!("a{procedure}"))).expect("stat").len(), 3_000_000);
    }
}

#[test]
fn a_synchronous_write_fails_at_once_and_is_not_told_again() {
    let Some((f, between)) = with_between("sync") else { return };
    let mut file = opened(&f.path("a"));
    between.refuse(between::WRITE, NOSPC);
    assert_eq!(error_of(file.write_all(&[7; 10_000])), Some(libc::ENOSPC));
    between.pass();
    assert_eq!(error_of(file.sync_all()), None);
}

#[test]
fn cp_to_a_full_file_system_fails() {
    if !is_root() {
        skip!("a small file system is mounted by root only");
    }
    let Some(mut f) = Fixture::new("") else { return };
    let small = f.sandbox.make_directory("small");
    let options = ["-t", "tmpfs", "-o", "size=2m", "none", small.to_str().expect("text")];
    if !attempt("mount", &options).status.success() {
        skip!("no tmpfs can be mounted here");
    }
    let _unmounted = crate::fixture::Detached(small.clone());
    let export = EXPORT.replace("path=files", "path=small");
    let (server, port) = f.sandbox.serve_directories(0, &["--export", &export]);
    let mount = Mount::new(&f.sandbox, port, "full", "");
    let source = f.sandbox.file("source");
    fs::write(&source, vec![5; 4_000_000]).expect("write");
    let output = Command::new("cp").arg(&source).arg(mount.directory.join("a")).output().expect("cp");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("No space left"), "{:?}: {errors}", output.status);
    fs::remove_file(mount.directory.join("a")).expect("unlink");
    fs::write(&source, vec![5; 500_000]).expect("write");
    let copied = Command::new("cp").arg(&source).arg(mount.directory.join("b")).stderr(Stdio::inherit()).status();
    assert!(copied.expect("cp").success(), "there is room again");
    mount.end();
    drop(server);
    f.server.take();
}

#[test]
fn only_who_holds_a_file_that_the_server_has_lost_is_told() {
    let Some(f) = Fixture::new("noac") else { return };
    fs::write(f.path("a"), "old").expect("write");
    let mut holder = opened(&f.path("a"));
    fs::remove_file(f.served("a")).expect("unlink");
    fs::write(f.served("a"), "new").expect("write");
    await_that("the server notices", || fs::read_to_string(f.path("a")).is_ok_and(|text| text == "new"));
    // The server has it open for a while.
    await_that("it is another file", || error_of(holder.metadata().map(drop)) == Some(libc::ESTALE));
    // What it writes has nowhere to go.
    let written = holder.write_all(b"lost").and_then(|()| holder.sync_all());
    assert_eq!(error_of(written), Some(libc::ESTALE));
    assert_eq!(fs::read_to_string(f.path("a")).expect("the others"), "new");
}

/// READ's results with neither bytes nor the end of the file.
fn nothing(attributes: Option<Vec<u8>>) -> Fate {
    let is_there = u32::from(attributes.is_some()).to_be_bytes();
    Fate::Answered([&[0; 4][..], &is_there, &attributes.unwrap_or_default(), &[0; 12]].concat())
}

#[test]
fn what_a_read_does_not_bring_is_asked_for_again_and_is_not_zeroes() {
    let Some((f, between)) = with_between("") else { return };
    let content = vec![7; 1_000_000];
    ["a", "b"].into_iter().for_each(|name| fs::write(f.served(name), &content).expect("write"));
    let reads = AtomicU32::new(0);
    between.set(move |procedure, _| match procedure {
        between::READ if reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => nothing(None),
        _ => Fate::Passed,
    });
    assert!(fs::read(f.path("a")).expect("read") == content);
    between.set(|procedure, _| if procedure == between::READ { nothing(None) } else { Fate::Passed });
    let file = OpenOptions::new().read(true).write(true).open(f.path("b")).expect("open");
    assert_eq!(error_of(file.read_exact_at(&mut [0; 100], 0)), Some(libc::EIO));
    // Of that block the rest is read.
    let written = file.write_all_at(&[1; 10], 5000).and_then(|()| file.sync_all());
    assert_eq!(error_of(written), Some(libc::EIO));
    drop(file);
    assert!(fs::read(f.served("b")).expect("on the server") == content);
}

#[test]
fn what_lies_beyond_the_end_is_zeroes_also_where_a_read_there_does_not_say_that_it_is_the_end() {
    let Some((f, between)) = with_between("") else { return };
    fs::write(f.served("a"), "begin").expect("write");
    between.set(|procedure, arguments| {
        let is_beyond = || between::split_opaque(arguments).1[..8] > 4096u64.to_be_bytes()[..];
        // The file that is made up is empty.
        if procedure == between::READ && is_beyond() { nothing(Some(attributes(0))) } else { Fate::Passed }
    });
    let file = OpenOptions::new().read(true).write(true).open(f.path("a")).expect("open");
    file.write_all_at(b"end", 1_000_000).expect("write");
    let mut between_them = [1; 4096];
    file.read_exact_at(&mut between_them, 500_000).expect("read");
    assert_eq!(between_them, [0; 4096]);
}
