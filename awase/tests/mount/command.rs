//! The command line: background, unmounting, and an error for every mistake.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use testkit::port;
use testkit::server::{AWASE, Sandbox, await_that};

use crate::fixture::{Detached, EXPORT, Fixture, Mount, await_end, has_fuse};

/// Runs `awase` with these arguments, which must fail; returns what it says.
fn refused(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let output = sandbox.run(arguments);
    assert!(!output.status.success(), "{arguments:?} was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_mistake_has_its_message() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.write("file", "x");
    let closed = format!("nfs://127.0.0.1:{}/files", port::unused());
    for (arguments, said) in [
        (&["mount", "server", "mnt"][..], "nfs://HOST[:PORT]/PATH"),
        (&["mount", "nfs://127.0.0.1/x", "nowhere"][..], "cannot mount on nowhere"),
        (&["mount", "nfs://127.0.0.1/x", "file"][..], "file is no directory"),
        (&["mount", "nfs://127.0.0.1/x", "mnt", "-o", "rsise=4096"][..], "did you mean \"rsize\""),
        (&["mount", "nfs://127.0.0.1/x", "mnt", "-o", "soft=3,comment=x"][..], "option soft has no value"),
        (&["mount", "nfs://no.such.host.invalid/x", "mnt"][..], "no server \"no.such.host.invalid\""),
        (&["mount", &closed, "mnt"][..], "the server cannot be reached"),
        (&["umount", "mnt"][..], "nothing is mounted on mnt by awase"),
    ] {
        let errors = refused(&sandbox, arguments);
        assert!(errors.contains(said), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_wrong_command_line_has_exit_code_2() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    for arguments in [&["http://server/x", "mnt"][..], &["server:/x", "mnt", "-o", "ro,nconnect=17"]] {
        let output = sandbox.run(&[&["mount"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn an_export_that_is_not_there_is_refused_by_name() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.make_directory("files");
    let (_server, port) = sandbox.serve_directories(0, &["--export", EXPORT]);
    let errors = refused(&sandbox, &["mount", &format!("nfs://127.0.0.1:{port}/other"), "mnt"]);
    assert!(errors.contains("no export \"/other\""), "{errors}");
}

#[test]
fn in_the_background_it_is_ready_when_the_command_returns_and_ends_with_umount() {
    if !has_fuse() {
        return;
    }
    let sandbox = Sandbox::new();
    let (files, mnt) = (sandbox.make_directory("files"), sandbox.make_directory("mnt"));
    fs::write(files.join("a"), "hello").expect("write");
    let (_server, port) = sandbox.serve_directories(0, &["--export", EXPORT]);
    let url = format!("nfs://127.0.0.1:{port}/files");
    let _detached = Detached(mnt.clone());
    let output = sandbox.run(&["mount", &url, "mnt", "-o", "nosuid"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(mnt.join("a")).expect("it is ready"), "hello");
    let again = refused(&sandbox, &["mount", &url, "mnt"]);
    assert!(again.contains("already mounted"), "{again}");
    let busy = fs::File::open(mnt.join("a")).expect("open");
    assert!(refused(&sandbox, &["umount", "mnt"]).contains("in use"));
    drop(busy);
    await_that("it is unmounted", || sandbox.run(&["umount", "mnt"]).status.success());
    assert!(!mnt.join("a").exists());
}

/// Whoever reads the log of a mount in the foreground has ended, or its disk is full.
#[test]
fn a_mount_serves_although_what_it_says_cannot_be_written() {
    let Some(f) = Fixture::new("") else { return };
    let mnt = f.sandbox.make_directory("full");
    fs::write(f.served("a"), "hello").expect("write");
    let _detached = Detached(mnt.clone());
    let mut command = Command::new(&*AWASE);
    command.args(["mount", &format!("nfs://127.0.0.1:{}/files", f.port), "full", "--foreground"]);
    command.current_dir(f.sandbox.path()).stdout(fs::File::options().write(true).open("/dev/full").expect("/dev/full"));
    let mut child = command.spawn().expect("awase mount");
    await_that("it is mounted", || mnt.join("a").exists() || child.try_wait().expect("wait").is_some());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("kill");
    let status = await_end(&mut child, "the mount");
    assert!(status.success(), "{status}");
}

/// As after Ctrl-C while the server is slow.
#[test]
fn a_mount_in_the_background_that_nobody_waits_for_any_more_is_taken_away() {
    let Some(f) = Fixture::new("") else { return };
    let mnt = f.sandbox.make_directory("nobodys");
    let _detached = Detached(mnt.clone());
    let (_, closed) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(&*AWASE);
    command.args(["mount", &format!("nfs://127.0.0.1:{}/files", f.port), "nobodys"]).current_dir(f.sandbox.path());
    let status = command.env("AWASE_MOUNT_IN_BACKGROUND", "1").stdout(closed).status().expect("awase mount");
    assert!(!status.success());
    fs::read_dir(&mnt).expect("nothing is mounted there");
}

#[test]
fn systemd_is_told_when_it_is_mounted() {
    let Some(f) = Fixture::new("") else { return };
    let mnt = f.sandbox.make_directory("unit");
    let path = f.sandbox.file("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = Command::new(&*AWASE);
    command.env("NOTIFY_SOCKET", &path);
    let mount = Mount::start(command, &format!("nfs://127.0.0.1:{}/files", f.port), &mnt, "");
    let mut said = [0; 100];
    let len = socket.recv(&mut said).expect("a message");
    assert_eq!(std::str::from_utf8(&said[..len]).expect("text").trim(), "READY=1");
    mount.end();
}

#[test]
fn fstab_mounts_by_the_helper() {
    let Some(f) = Fixture::new("") else { return };
    let helper = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/mount.awase");
    let mnt = f.sandbox.make_directory("by-helper");
    fs::write(f.served("a"), "hello").expect("write");
    let _detached = Detached(mnt.clone());
    let url = format!("nfs://127.0.0.1:{}/files", f.port);
    // As mount(8) calls it.
    let mut command = Command::new(helper);
    command.arg(url).arg(&mnt).args(["-s", "-o", "rw,_netdev,x-systemd.automount"]).env("AWASE", &*AWASE);
    let output = command.output().expect("the helper");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(mnt.join("a")).expect("mounted"), "hello");
    await_that("it is unmounted", || f.sandbox.run(&["umount", "by-helper"]).status.success());
}
