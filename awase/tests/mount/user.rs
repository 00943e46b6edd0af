//! An ordinary user's mount, by fusermount3.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output};

use testkit::server::{AWASE, Sandbox, attempt, is_root};
use testkit::skip;

use crate::fixture::{EXPORT, Mount, has_fuse};

const USER: u32 = 65_534;

/// A command of that user's.
fn as_user(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--", program]);
    command
}

fn run(command: &mut Command) -> (bool, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.success(), said)
}

#[test]
fn an_ordinary_user_mounts_has_the_rights_that_the_server_gives_and_unmounts() {
    if !is_root() || !attempt("sh", &["-c", "command -v setpriv && command -v fusermount3"]).status.success() {
        skip!("setpriv or fusermount3 is not installed, or this user cannot become another one");
    }
    if !has_fuse() {
        return;
    }
    if !run(as_user("test").args(["-x", &*AWASE, "-a", "-w", "/dev/fuse"])).0 {
        testkit::skip::note_kernel("other users may not run the program or open /dev/fuse");
        return;
    }
    let sandbox = Sandbox::new();
    let (files, mnt) = (sandbox.make_directory("files"), sandbox.make_directory("mnt"));
    fs::set_permissions(sandbox.path(), Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(&files, Permissions::from_mode(0o777)).expect("chmod");
    chown(&mnt, Some(USER), Some(USER)).expect("chown");
    fs::write(files.join("secret"), "x").expect("write");
    fs::set_permissions(files.join("secret"), Permissions::from_mode(0o600)).expect("chmod");
    fs::write(files.join("log"), "theirs\n").expect("write");
    fs::set_permissions(files.join("log"), Permissions::from_mode(0o622)).expect("chmod");
    fs::create_dir(files.join("closed")).expect("mkdir");
    fs::set_permissions(files.join("closed"), Permissions::from_mode(0o700)).expect("chmod");
    fs::create_dir(files.join("shown")).expect("mkdir");
    fs::write(files.join("shown/x"), "x").expect("write");
    fs::set_permissions(files.join("shown"), Permissions::from_mode(0o744)).expect("chmod");
    let (_server, port) = sandbox.serve_directories(0, &["--export", EXPORT]);
    let url = format!("nfs://127.0.0.1:{port}/files");
    let (done, said) = run(as_user(&AWASE).args(["mount", &url]).arg(&mnt).args(["-o", "resvport"]));
    assert!(!done && said.contains("resvport: ports below 1024 are for root"), "{said}");
    let mount = Mount::start(as_user(&AWASE), &url, &mnt, "");
    let shell = |line: &str| run(as_user("sh").args(["-ec", line]).current_dir("/").env("MNT", &mnt));
    let (done, said) = shell("cd $MNT; echo hello > a; cat a; mkdir d; mv a d; stat -c %u d/a");
    assert!(done, "{said}");
    assert_eq!(said, format!("hello\n{USER}\n"));
    for refused in
        ["cat $MNT/secret", "echo y > $MNT/secret", "ls $MNT/closed", "touch $MNT/closed/x", "rm $MNT/closed/x"]
    {
        let (done, said) = shell(refused);
        assert!(!done && said.contains("Permission denied"), "{refused}: {said}");
    }
    let (done, said) = shell("ls $MNT/shown; ! test -e $MNT/shown/x");
    assert_eq!((done, said.as_str()), (true, "x\n"), "a directory that may be read and not searched");
    let (done, said) = shell("test -r $MNT/d/a && ! test -r $MNT/secret && ! test -x $MNT/closed");
    assert!(done, "{said}");
    let (done, said) = shell("echo ours >> $MNT/log; ! cat $MNT/log 2> /dev/null");
    assert!(done, "{said}");
    assert_eq!(fs::read_to_string(files.join("log")).expect("read"), "theirs\nours\n");
    let (done, said) = run(as_user(&AWASE).args(["umount"]).arg(&mnt));
    assert!(done, "{said}");
    assert!(mount.wait().success());
}
