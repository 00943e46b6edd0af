//! Servers that die and come back, mounts that die, and mounts that end.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testkit::server::attempt;

use crate::fixture::{EXPORT, Fixture, Mount, shell};

/// What the writer below writes to.
const WRITES_TO: &str = "AWASE_TEST_WRITES_TO";

/// Ample: it takes seconds.
const WORK_TIMEOUT: Duration = Duration::from_secs(120);

/// Kills and restarts the server again and again while `work` runs. It is a process of its own: a server that is
/// started by the process that has the mount's files open would wait, as it closes its copies of them, for the server.
pub fn with_restarts(restarts_max: u32, work: &mut Command, mut restart: impl FnMut()) {
    let mut work = Killed(work.spawn().expect("the work"));
    let mut restarts = 0;
    while restarts < restarts_max && work.0.try_wait().expect("wait").is_none() {
        restart();
        restarts += 1;
    }
    assert!(restarts > 0, "the work was done before the server died once");
    let end = Instant::now() + WORK_TIMEOUT;
    let status = loop {
        if let Some(status) = work.0.try_wait().expect("wait") {
            break status;
        }
        assert!(Instant::now() < end, "the work hangs");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "the work ended with {status}");
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn a_clone_and_a_build_go_on_when_the_server_is_killed() {
    let Some(mut f) = Fixture::new("") else { return };
    let source = f.sandbox.file("source");
    fs::create_dir(&source).expect("mkdir");
    let make = "git init -q . && git config user.name t && git config user.email t@t && \
                mkdir src && for i in $(seq 300); do echo \"int f$i(void) { return $i; }\" > src/f$i.c; done && \
                echo 'int main(void) { return 0; }' > src/main.c && git add . && git commit -q -m all";
    shell(&source, make);
    let work = "git clone -q --no-hardlinks \"$SOURCE\" tree; cd tree; \
                for i in $(seq 1 10 300); do cp src/f$i.c o$i; cat o$i >> all; done; sync all; \
                git fsck --full; git status --porcelain";
    let mut command = Command::new("sh");
    command.args(["-ec", work]).env("SOURCE", &source).current_dir(&f.mount.directory).stdout(Stdio::null());
    with_restarts(6, &mut command, || f.restart_server());
    let same = format!("diff -r {}/src tree/src", source.display());
    shell(&f.mount.directory, &same);
    assert_eq!(fs::read_dir(f.served("tree/src")).expect("list").count(), 301);
}

/// Builds a program in `directory` with the host's own compiler, and runs it. In the end there is `built`.
pub fn building(directory: &Path) -> Command {
    let work = "for i in $(seq 30); do echo \"int f$i(void) { return $i; }\" > f$i.c; cc -c f$i.c; \
                sum=\"$sum + f$i()\"; done; echo \"int main(void) { return 0 $sum != 465; }\" > main.c; \
                cc -w -std=gnu89 -o program main.c f*.o; ./program; touch built";
    let mut command = Command::new("sh");
    command.args(["-ec", work]).current_dir(directory).stdout(Stdio::null());
    command
}

/// Without a compiler there is nothing to build.
pub fn has_compiler() -> bool {
    let has = attempt("sh", &["-c", "command -v cc"]).status.success();
    if !has {
        testkit::skip::note("there is no C compiler");
    }
    has
}

#[test]
fn a_build_goes_on_when_the_server_is_killed() {
    if !has_compiler() {
        return;
    }
    let Some(mut f) = Fixture::new("") else { return };
    let mut work = building(&f.mount.directory);
    with_restarts(6, &mut work, || f.restart_server());
    assert!(f.served("built").exists());
}

#[test]
fn random_writes_survive_a_server_that_is_killed_again_and_again() {
    let Some(mut f) = Fixture::new("nconnect=2") else { return };
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "ends::writer"]).env(WRITES_TO, f.path("a")).stdout(Stdio::null());
    with_restarts(6, &mut command, || f.restart_server());
    let content: Vec<u8> = (0..400).flat_map(part).collect();
    assert!(fs::read(f.served("a")).expect("on the server") == content);
}

/// Writes when it is told what to; otherwise there is nothing to do.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(WRITES_TO) else { return };
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).expect("open");
    for number in 0..400 {
        file.write_all(&part(number)).expect("write");
        if number % 20 == 0 {
            file.sync_all().expect("fsync");
        }
    }
    file.sync_all().expect("fsync");
}

fn part(number: u32) -> Vec<u8> {
    (0..30_000u32).map(|i| (i.wrapping_mul(number | 1) >> 5) as u8).collect()
}

#[test]
fn a_mount_that_is_killed_loses_nothing_that_fsync_promised() {
    let Some(mut f) = Fixture::new("") else { return };
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(f.path("a")).expect("open");
    file.write_all(&[3; 200_000]).expect("write");
    file.sync_all().expect("fsync");
    file.write_all(&[4; 1000]).expect("write");
    let Fixture { sandbox, port, .. } = &f;
    let again = Mount::new(sandbox, *port, "again", "");
    let dead = std::mem::replace(&mut f.mount, again);
    dead.kill();
    assert!(file.write_all(&[5; 10]).is_err(), "there is nobody to write to");
    drop(file);
    f.server.take().expect("it runs").crash();
    let (server, _) = f.sandbox.serve_directories(f.port, &["--export", EXPORT]);
    f.server = Some(server);
    let content = fs::read(f.path("a")).expect("by another mount");
    assert!(content.len() >= 200_000 && content[..200_000].iter().all(|byte| *byte == 3));
}

#[test]
fn a_mount_that_ends_stores_everything_and_unmounts() {
    let Some(mut f) = Fixture::new("") else { return };
    fs::write(f.path("a"), vec![9; 3_000_000]).expect("write");
    let again = Mount::new(&f.sandbox, f.port, "again", "");
    let ended = std::mem::replace(&mut f.mount, again);
    let directory = ended.directory.clone();
    ended.end();
    assert_eq!(fs::read_dir(directory).expect("list").count(), 0, "nothing is mounted there any more");
    assert_eq!(fs::read(f.served("a")).expect("read"), vec![9; 3_000_000]);
}

#[test]
fn a_soft_mount_fails_in_time_and_a_hard_one_waits() {
    let Some(mut f) = Fixture::new("soft,timeo=3,retrans=1,noac") else { return };
    fs::write(f.path("a"), "x").expect("write");
    let hard = Mount::new(&f.sandbox, f.port, "hard", "noac");
    f.server.take().expect("it runs").crash();
    let error = fs::metadata(f.path("b")).expect_err("nobody answers");
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    let path = hard.directory.join("a");
    let waiting = thread::spawn(move || {
        let mut text = String::new();
        fs::File::open(path).expect("open").read_to_string(&mut text).expect("read");
        text
    });
    let (server, _) = f.sandbox.serve_directories(f.port, &["--export", EXPORT]);
    f.server = Some(server);
    assert_eq!(waiting.join().expect("it waited"), "x");
    assert_eq!(fs::read_to_string(f.path("a")).expect("the soft one goes on, too"), "x");
    hard.end();
}
