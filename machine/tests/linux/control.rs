//! Opening files and making sockets.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use machine::OpenFile;
use machine::linux::file::{DirectIo, OpenError, OpenOptions, open};
use machine::linux::net::{self, Address, NetError};
use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::{TempDir, tempdir};
use testkit::skip;

use crate::tree_at_once::reports_direct_io;
use crate::tree_file_systems::{Kind, Mounted};

fn directory() -> TempDir {
    tempdir().expect("a temporary directory")
}

fn writable() -> OpenOptions {
    OpenOptions { writable: true, ..OpenOptions::default() }
}

fn creating(size: u64) -> OpenOptions {
    OpenOptions { create_size: Some(size), ..writable() }
}

/// The error of opening; `OpenFile` itself cannot be printed.
fn refused(result: Result<OpenFile, OpenError>) -> OpenError {
    match result {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[test]
fn a_missing_file_is_created_sparse_with_its_size_and_keeps_it() {
    let directory = directory();
    let path = directory.path().join("disk.img");
    assert_eq!(refused(open(&path, writable())), OpenError::Missing(path.clone()));
    let created = open(&path, creating(1 << 30)).expect("created");
    assert_eq!(created.facts.size, 1 << 30);
    assert!(created.facts.writable);
    let allocated = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("it exists"));
    assert!(allocated < 1000, "{allocated} sectors are allocated");
    drop(created);
    let again = open(&path, creating(1 << 20)).expect("opened");
    assert_eq!(again.facts.size, 1 << 30);
}

#[test]
fn closing_a_file_unlocks_it_though_programs_were_started_meanwhile() {
    let directory = directory();
    let path = directory.path().join("disk.img");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                Command::new("true").status().expect("started");
            }
        });
        let opened: Result<Vec<_>, _> = (0..500).map(|_| open(&path, creating(1 << 20)).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        assert_eq!(opened.map(drop), Ok(()));
    });
}

#[test]
fn properties_of_an_open_file_are_plausible() {
    let directory = directory();
    let path = directory.path().join("disk.img");
    let direct = open(&path, creating(1 << 20)).expect("created").facts;
    assert!(direct.align.is_power_of_two() && direct.align <= 4096);
    assert!(direct.transfer_bytes_max >= 4096);
    let never = OpenOptions { direct: DirectIo::Never, ..OpenOptions::default() };
    let buffered = open(&path, never).expect("opened").facts;
    assert!(!buffered.direct && !buffered.writable);
    assert_eq!((buffered.align, buffered.disk), (1, direct.disk));
}

#[test]
fn a_writer_excludes_all_others_and_readers_only_writers() {
    let directory = directory();
    let path = directory.path().join("disk.img");
    let writer = open(&path, creating(4096)).expect("created");
    let locked = OpenError::Locked(path.clone());
    assert_eq!(refused(open(&path, writable())), locked);
    assert_eq!(refused(open(&path, OpenOptions::default())), locked);
    let clone = writer.clone();
    drop(writer);
    assert_eq!(refused(open(&path, writable())), locked);
    drop(clone);
    let readers = [0, 1].map(|_| open(&path, OpenOptions::default()).expect("shared"));
    assert_eq!(refused(open(&path, writable())), locked);
    drop(readers);
    assert!(open(&path, writable()).is_ok());
}

#[test]
fn what_cannot_be_a_disk_is_refused_with_its_path() {
    let directory = directory();
    let at = |name: &str| directory.path().join(name);
    let path = directory.path().to_owned();
    for options in [OpenOptions::default(), writable(), creating(4096)] {
        assert_eq!(refused(open(&path, options)), OpenError::Directory(path.clone()));
    }
    let _socket = UnixListener::bind(at("socket")).expect("bound");
    for name in ["socket", "/dev/null"] {
        let path = at(name);
        assert_eq!(refused(open(&path, writable())), OpenError::NotRegular(path));
    }
    fs::write(at("empty"), "").expect("written");
    assert_eq!(refused(open(&at("empty"), writable())), OpenError::Empty(at("empty")));
    let nowhere = at("missing/disk.img");
    assert_eq!(refused(open(&nowhere, creating(4096))), OpenError::Missing(at("missing")));
}

#[test]
fn a_named_pipe_is_refused_without_waiting_for_its_other_end() {
    let directory = directory();
    let path = directory.path().join("pipe");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("made");
    for options in [OpenOptions::default(), writable()] {
        assert_eq!(refused(open(&path, options)), OpenError::NotRegular(path.clone()));
    }
}

#[test]
fn files_in_memory_are_buffered_and_direct_io_on_them_is_refused() {
    let Ok(directory) = TempDir::new_in("/dev/shm") else {
        skip!("no /dev/shm");
    };
    let path = directory.path().join("disk.img");
    let facts = open(&path, creating(1 << 20)).expect("created").facts;
    assert_eq!((facts.direct, facts.align), (false, 1));
    let always = OpenOptions { direct: DirectIo::Always, ..writable() };
    assert_eq!(refused(open(&path, always)), OpenError::NoDirectIo(path.clone()));
    let common = OpenOptions { is_common: true, ..writable() };
    assert!(open(&path, common).is_ok(), "all who share it are on this host");
}

/// Others on another host, that is: what they write would be read from this host's page cache as it was before.
#[test]
fn a_file_that_others_write_is_not_opened_where_direct_io_is_refused() {
    let Some(mounted) = Mounted::new(Kind::Image("mkfs.ext4", &["-q", "-F", "-O", "inline_data"])) else { return };
    let common = OpenOptions { is_common: true, ..writable() };
    let (large, small) = (mounted.path().join("large"), mounted.path().join("small"));
    drop(open(&large, creating(1 << 20)).expect("created"));
    // Before, ext4 takes direct I/O and does buffered I/O where it has none.
    if !reports_direct_io(&large) {
        return;
    }
    assert!(open(&large, common).expect("opened").facts.direct);
    // Its content is in the inode, which has no direct I/O.
    fs::write(&small, [1; 50]).expect("written");
    for options in [common, OpenOptions { writable: false, ..common }, OpenOptions { is_examined: true, ..common }] {
        assert_eq!(refused(open(&small, options)), OpenError::NoDirectIo(small.clone()));
    }
    assert!(!open(&small, writable()).expect("a file of this node alone").facts.direct);
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let directory = directory();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "left behind");
    let listening = net::listen_unix(&path).expect("replaced");
    let in_use = NetError::AddrInUse(Address::Unix(path.clone()));
    assert_eq!(net::listen_unix(&path).expect_err("live"), in_use);
    assert!(UnixStream::connect(&path).is_ok());
    drop(listening);
    assert!(!path.exists(), "removed");
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let directory = directory();
    let path = directory.path().join("precious");
    fs::write(&path, "text").expect("written");
    let expected = NetError::NotASocket(Address::Unix(path.clone()));
    assert_eq!(net::listen_unix(&path).expect_err("no socket"), expected);
    assert_eq!(fs::read(&path).expect("still there"), b"text");
}

#[test]
fn a_replaced_socket_file_is_not_removed() {
    let directory = directory();
    let path = directory.path().join("socket");
    let listening = net::listen_unix(&path).expect("listening");
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "another server's").expect("written");
    drop(listening);
    assert!(path.exists());
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let any = "127.0.0.1:0".parse().expect("an address");
    let (listening, addr) = net::listen_tcp(any).expect("listening");
    let expected = NetError::AddrInUse(Address::Tcp(addr));
    assert_eq!(net::listen_tcp(addr).expect_err("in use"), expected);
    drop(listening);
    let again = net::listen_tcp(addr);
    assert!(again.is_ok(), "{again:?}");
}

#[test]
fn a_listening_socket_can_be_handed_over_and_others_not() {
    let directory = directory();
    let path = directory.path().join("socket");
    let unix = UnixListener::bind(&path).expect("bound");
    let adopted = net::adopt_listener(OwnedFd::from(unix)).expect("adopted");
    assert_eq!(*adopted.address(), Address::Unix(path.clone()));
    drop(adopted);
    assert!(path.exists(), "the file belongs to its maker");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = tcp.local_addr().expect("bound");
    let adopted = net::adopt_listener(OwnedFd::from(tcp)).expect("adopted");
    assert_eq!(*adopted.address(), Address::Tcp(addr));
    drop(adopted);
    let (stream, _other) = UnixStream::pair().expect("a pair of sockets");
    let error = net::adopt_listener(OwnedFd::from(stream)).expect_err("not listening");
    assert!(matches!(error, NetError::NotListening(_)));
}

#[test]
fn a_path_too_long_for_a_socket_is_an_error_that_names_it() {
    let path = "/tmp/".to_string() + &"x".repeat(200);
    let error = net::listen_unix(Path::new(&path)).expect_err("too long");
    assert!(error.to_string().contains(&path), "{error}");
}
