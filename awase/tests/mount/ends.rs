//! Servers that die and come back, mounts that die, and mounts that end.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::thread;

use crate::fixture::{EXPORT, Fixture, Mount, shell};

/// Kills and restarts the server again and again while `work` runs.
fn with_restarts<T: Send>(f: &mut Fixture, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut restarts = 0;
        while !work.is_finished() && restarts < 6 {
            f.restart_server();
            restarts += 1;
        }
        assert!(restarts > 0, "the work was done before the server died once");
        work.join().expect("the work was done")
    })
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
    let (mount, from) = (f.mount.directory.clone(), source.clone());
    with_restarts(&mut f, move || {
        shell(&mount, &format!("git clone -q --no-hardlinks {} tree", from.display()));
        shell(&mount.join("tree"), "for i in $(seq 1 10 300); do cp src/f$i.c o$i; cat o$i >> all; done; sync all");
        shell(&mount.join("tree"), "git fsck --full && git status --porcelain | grep -v '^??' | wc -l");
    });
    let same = format!("diff -r {}/src tree/src", source.display());
    shell(&f.mount.directory, &same);
    assert_eq!(fs::read_dir(f.served("tree/src")).expect("list").count(), 301);
}

#[test]
fn random_writes_survive_a_server_that_is_killed_again_and_again() {
    let Some(mut f) = Fixture::new("nconnect=2") else { return };
    let path = f.path("a");
    let content = with_restarts(&mut f, move || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).expect("open");
        let mut content = Vec::new();
        for number in 0..400u32 {
            let part: Vec<u8> = (0..30_000u32).map(|i| (i.wrapping_mul(number | 1) >> 5) as u8).collect();
            file.write_all(&part).expect("write");
            content.extend(part);
            if number % 20 == 0 {
                file.sync_all().expect("fsync");
            }
        }
        file.sync_all().expect("fsync");
        content
    });
    assert!(fs::read(f.served("a")).expect("on the server") == content);
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
