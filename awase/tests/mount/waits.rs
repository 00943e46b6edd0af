//! Processes that wait for a server that does not answer, and mounts whose server is gone.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use testkit::server::await_that;

use crate::between::{MKDIR, WRITE};
use crate::errors::with_between;
use crate::fixture::{Fixture, Mount, await_end};

#[test]
fn who_waits_for_a_server_can_be_killed_and_the_mount_goes_on() {
    // What is swallowed is sent again after a second.
    let Some((f, between)) = with_between("noac,timeo=10") else { return };
    fs::create_dir(f.path("d")).expect("mkdir");
    fs::write(f.path("a"), vec![1; 10_000]).expect("write");
    for (swallowed, line) in [
        (None, "exec cat $MNT/a"),
        (None, "exec stat $MNT/a"),
        (None, "exec ls $MNT/d"),
        (Some(MKDIR), "exec mkdir $MNT/d/new"),
        (None, "exec touch $MNT/created"),
        // And then as it closes what it wrote.
        (Some(WRITE), "exec dd if=/dev/zero of=$MNT/written bs=100k count=20 conv=fsync"),
    ] {
        between.pass();
        assert_eq!(fs::read(f.path("a")).expect("it goes on"), vec![1; 10_000]);
        let before = between.swallowed();
        between.swallow(swallowed);
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("MNT", &f.mount.directory).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell");
        await_that("it waits", || between.swallowed() > before);
        child.kill().expect("kill -9");
        let status = await_end(&mut child, line);
        assert!(!status.success(), "{line}");
    }
    between.pass();
    // The mount's own work, which went on, comes to its end when the server answers.
    await_that("the directory is there", || f.served("d/new").is_dir());
    fs::remove_dir(f.path("d/new")).expect("rmdir");
    fs::remove_dir(f.path("d")).expect("rmdir");
}

#[test]
fn umount_by_force_ends_a_mount_whose_server_is_gone_and_says_what_is_lost() {
    let Some((f, between)) = with_between("") else { return };
    // A process of its own: of a file that is open here, every new process would close a copy, and wait for the server.
    let script = "
import os, sys
stored = os.open(sys.argv[1] + '/b', os.O_WRONLY | os.O_CREAT)
os.write(stored, b'x' * 5000)
os.fsync(stored)
file = os.open(sys.argv[1] + '/a', os.O_WRONLY | os.O_CREAT)
for step in ('opened', 'written'):
    print(step, flush=True)
    sys.stdin.readline()
    os.write(file, b'x' * 100000)
";
    let mut writer = Command::new("python3");
    writer.args(["-c", script]).arg(&f.mount.directory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("python");
    let mut orders = writer.stdin.take().expect("piped");
    let mut said = BufReader::new(writer.stdout.take().expect("piped")).lines();
    let mut next = || said.next().expect("it says something").expect("text");
    assert_eq!(next(), "opened");
    between.swallow(None);
    orders.write_all(b"\n").expect("it reads");
    assert_eq!(next(), "written");
    let directory = f.mount.directory.clone();
    let output = f.sandbox.run(&["umount", "--force", directory.to_str().expect("text")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(answer, "lost: 100000 bytes of 1 file, which the server has not stored\n");
    // There is nobody to write to.
    orders.write_all(b"\n").expect("it reads");
    drop(orders);
    assert!(!await_end(&mut writer, "who wrote").success());
    assert_eq!(fs::read_dir(&directory).expect("list").count(), 0, "nothing is mounted there any more");
    let status = f.mount.wait();
    assert!(!status.success(), "something was lost");
}

#[test]
fn umount_by_force_loses_nothing_that_is_stored() {
    let Some(f) = Fixture::new("") else { return };
    fs::write(f.path("a"), "x").expect("write");
    let directory = f.mount.directory.clone();
    let output = f.sandbox.run(&["umount", "--force", directory.to_str().expect("text")]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "nothing is lost: the server has stored everything\n");
    assert!(f.mount.wait().success());
    // Of a mount whose process is gone it takes away what is left.
    let mount = Mount::new(&f.sandbox, f.port, "again", "");
    mount.signal(rustix::process::Signal::KILL);
    let output = f.sandbox.run(&["umount", "--force", "again"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("does not say"));
    let again = f.sandbox.run(&["umount", "again"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing is mounted"));
}

#[test]
fn a_signal_that_is_sent_to_a_mount_and_to_its_group_lets_everything_be_stored() {
    // What is swallowed is sent again after a second.
    let Some((f, between)) = with_between("timeo=10") else { return };
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(f.path("a")).expect("open");
    let before = between.swallowed();
    between.swallow(None);
    file.write_all(&[1; 5000]).expect("it is cached");
    // Two of one kind could be delivered as one.
    f.mount.signal(rustix::process::Signal::TERM);
    f.mount.signal(rustix::process::Signal::INT);
    await_that("it is being stored", || between.swallowed() > before);
    between.pass();
    drop(file);
    let stored = f.served("a");
    assert!(f.mount.wait().success(), "something was lost");
    assert_eq!(fs::read(stored).expect("on the server"), [1; 5000]);
}

#[test]
fn a_second_signal_ends_a_mount_at_once() {
    let Some((mut f, between)) = with_between("") else { return };
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(f.path("a")).expect("open");
    between.swallow(None);
    file.write_all(&[1; 5000]).expect("it is cached");
    let directory = f.mount.directory.clone();
    // Two that come at the same time are one.
    await_that("it ends", || {
        f.mount.signal(rustix::process::Signal::TERM);
        f.mount.has_ended()
    });
    assert!(!f.mount.wait().success(), "something was lost");
    assert!(file.sync_all().is_err());
    assert_eq!(fs::read_dir(&directory).expect("list").count(), 0, "nothing is mounted there any more");
}
