//! Content: every way of reading and writing agrees with a model, and with the server.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use testkit::random::Random;

use crate::fixture::{Fixture, Mount, shell};

const FILE_BYTES: u64 = 3_000_000;

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let seed = random.next();
    (0..len as u64).map(|i| (seed.wrapping_mul(i | 1) >> 32) as u8).collect()
}

/// Random writes, reads, truncations and flushes of a file that is open twice; `served` is the same on the server's host.
pub fn agree(path: &Path, served: &Path, seed: u64) {
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let files = [open().expect("open"), open().expect("open")];
    let (mut random, mut model) = (Random(seed), Vec::new());
    for step in 0..300 {
        let file = &files[random.below(files.len() as u64) as usize];
        let at = random.below(FILE_BYTES);
        let most = [50, 9000, 300_000][random.below(3) as usize];
        let len = 1 + random.below(most) as usize;
        match random.below(12) {
            0..5 => {
                let data = bytes(&mut random, len);
                file.write_all_at(&data, at).expect("write");
                model.resize(model.len().max(at as usize + len), 0);
                model[at as usize..at as usize + len].copy_from_slice(&data);
            }
            5..9 => {
                let mut data = vec![0; len];
                let mut done = 0;
                while done < len {
                    match file.read_at(&mut data[done..], at + done as u64).expect("read") {
                        0 => break,
                        count => done += count,
                    }
                }
                let end = model.len().min(at as usize + len);
                assert!(data[..done] == model[(at as usize).min(end)..end], "seed {seed}, step {step}: {at}+{len}");
            }
            9 => {
                file.set_len(at).expect("truncate");
                model.resize(at as usize, 0);
            }
            10 => file.sync_all().expect("fsync"),
            _ => assert_eq!(file.metadata().expect("stat").len(), model.len() as u64, "seed {seed}, step {step}"),
        }
    }
    files[0].sync_all().expect("fsync");
    assert!(fs::read(served).expect("on the server") == model, "seed {seed}: on the server");
}

#[test]
fn random_reads_and_writes_agree_with_a_model() {
    for (seed, options) in
        [(1, ""), (2, "nconnect=3,rsize=16384,wsize=16384"), (3, "direct_io"), (4, "noac,readahead=0")]
    {
        let Some(f) = Fixture::new(options) else { return };
        agree(&f.path("a"), &f.served("a"), seed);
    }
}

#[test]
fn what_others_have_appended_is_copied_without_a_read() {
    let Some(f) = Fixture::new("") else { return };
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    fs::write(f.path("a"), [0; 5000]).expect("write");
    let (theirs, copy) = (other.directory.join("a"), f.sandbox.file("copy"));
    assert_eq!(fs::metadata(&theirs).expect("stat").len(), 5000);
    for round in 1..4 {
        OpenOptions::new().append(true).open(f.path("a")).expect("open").write_all(&[round; 5000]).expect("append");
        // Nobody asks for the size.
        let (from, to) = (File::open(&theirs).expect("open"), File::create(&copy).expect("create"));
        while rustix::fs::sendfile(&to, &from, None, 1 << 20).expect("sendfile") > 0 {}
        let copied = fs::read(&copy).expect("read");
        assert_eq!((copied.len(), copied.last()), (5000 * (1 + usize::from(round)), Some(&round)));
    }
}

#[test]
fn a_large_file_is_copied_in_and_out_unchanged() {
    let Some(f) = Fixture::new("readahead=4") else { return };
    let content = bytes(&mut Random(7), 50_000_001);
    let mut file = File::create(f.path("big")).expect("create");
    file.write_all(&content).expect("write");
    // Before, the server may have it in its memory only.
    file.sync_all().expect("fsync");
    drop(file);
    assert!(fs::read(f.served("big")).expect("on the server") == content);
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    assert!(fs::read(other.directory.join("big")).expect("by another client") == content);
    other.end();
}

#[test]
fn what_is_appended_comes_at_the_end() {
    let Some(f) = Fixture::new("") else { return };
    for number in 0..100 {
        let mut file = OpenOptions::new().append(true).create(true).open(f.path("log")).expect("open");
        writeln!(file, "line {number}").expect("write");
    }
    let expected: String = (0..100).map(|number| format!("line {number}\n")).collect();
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    assert_eq!(fs::read_to_string(other.directory.join("log")).expect("by another client"), expected);
    other.end();
}

fn append(log: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(log).expect("open");
    file.write_all(line.as_bytes()).expect("write");
}

#[test]
fn what_a_client_and_the_servers_host_append_in_turns_comes_at_the_end() {
    let Some(f) = Fixture::new("") else { return };
    let mut expected = String::new();
    for round in 0..5 {
        for (log, line) in [(f.path("log"), "by a client"), (f.served("log"), "on the host")] {
            let line = format!("{line} in round {round}\n");
            append(&log, &line);
            expected += &line;
        }
        // So long the server may not have seen it.
        sleep(Duration::from_millis(500));
    }
    assert_eq!(fs::read_to_string(f.path("log")).expect("read"), expected);
    assert_eq!(fs::read_to_string(f.served("log")).expect("on the server"), expected);
}

#[test]
fn what_two_clients_append_in_turns_comes_at_the_end() {
    let Some(f) = Fixture::new("") else { return };
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    let logs = [f.path("log"), other.directory.join("log")];
    let mut expected = String::new();
    for round in 0..20 {
        for (client, log) in logs.iter().enumerate() {
            if round % 3 == 2 {
                // Its answer comes with the news of what the other one has written.
                fs::metadata(log).expect("stat");
            }
            let line = format!("round {round} of {client}\n");
            append(log, &line);
            expected += &line;
        }
    }
    for log in &logs {
        assert_eq!(fs::read_to_string(log).expect("read"), expected);
    }
    other.end();
}

#[test]
fn a_file_that_another_client_changed_is_opened_for_appending_without_its_name() {
    let Some(f) = Fixture::new("") else { return };
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    fs::write(f.path("log"), "a").expect("write");
    let file = File::open(f.path("log")).expect("open");
    fs::write(other.directory.join("log"), "others").expect("write");
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().append(true).open(again).expect("open");
    other.end();
}

#[test]
fn holes_read_as_zeroes() {
    let Some(f) = Fixture::new("") else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(f.path("a")).expect("open");
    file.seek(SeekFrom::Start(1_000_000)).expect("seek");
    file.write_all(b"end").expect("write");
    file.rewind().expect("seek");
    let mut content = Vec::new();
    file.read_to_end(&mut content).expect("read");
    assert!(content[..1_000_000].iter().all(|byte| *byte == 0) && &content[1_000_000..] == b"end");
}

#[test]
fn a_synchronous_write_is_on_the_servers_host_when_it_returns() {
    let Some(f) = Fixture::new("") else { return };
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_SYNC).open(f.path("a"));
    file.as_mut().expect("open").write_all(&[5; 10_000]).expect("write");
    assert_eq!(fs::read(f.served("a")).expect("read"), vec![5; 10_000], "while it is open");
}

#[test]
fn mapped_files_are_read_and_written() {
    let Some(f) = Fixture::new("") else { return };
    let line = "python3 -c \"
import mmap
with open('m', 'wb') as f: f.write(b'a' * 100000)
with open('m', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0)
    assert m[99999:] == b'a'
    m[50000:50005] = b'hello'
    m.flush()
    m.close()
\"";
    shell(&f.mount.directory, line);
    let content = fs::read(f.served("m")).expect("read");
    assert_eq!((content.len(), &content[49_999..50_006]), (100_000, &b"ahelloa"[..]));
}

#[test]
fn who_opens_a_file_sees_what_another_client_closed() {
    let Some(f) = Fixture::new("") else { return };
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    for round in 0..20u8 {
        // The size stays: only the times tell.
        fs::write(f.path("a"), [round; 5000]).expect("write");
        assert!(fs::read(other.directory.join("a")).expect("read") == [round; 5000], "round {round}");
        fs::write(other.directory.join("a"), [round + 100; 5000]).expect("write");
        assert!(fs::read(f.path("a")).expect("read") == [round + 100; 5000], "round {round}");
    }
    other.end();
}

#[test]
fn who_has_a_file_open_and_asks_for_its_name_reads_what_another_client_has_appended() {
    // Each question for attributes is one for the name.
    let Some(f) = Fixture::new("lookupcache=none") else { return };
    let other = Mount::new(&f.sandbox, f.port, "other", "");
    fs::write(f.path("log"), "").expect("write");
    let (mut file, mut size) = (File::open(f.path("log")).expect("open"), 0);
    for line in ["first\n", "second\n", "third\n"] {
        append(&other.directory.join("log"), line);
        size += line.len() as u64;
        assert_eq!(fs::metadata(f.path("log")).expect("stat").len(), size);
        let mut read = String::new();
        file.read_to_string(&mut read).expect("read");
        assert_eq!(read, line);
    }
    other.end();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(f) = Fixture::new("ro") else { return };
    fs::write(f.served("a"), "x").expect("write");
    assert_eq!(fs::read_to_string(f.path("a")).expect("read"), "x");
    let error = fs::write(f.path("a"), "y").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}
