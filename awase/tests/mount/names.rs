//! Names and attributes: what POSIX promises, case by case.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

use crate::fixture::{Fixture, shell};

#[test]
fn files_directories_and_links_are_made_found_renamed_and_removed() {
    let Some(f) = Fixture::new("") else { return };
    fs::create_dir(f.path("d")).expect("mkdir");
    assert_eq!(fs::create_dir(f.path("d")).expect_err("exists").kind(), ErrorKind::AlreadyExists);
    fs::write(f.path("d/a"), "hello").expect("write");
    assert_eq!(fs::read_to_string(f.served("d/a")).expect("on the server"), "hello");
    fs::hard_link(f.path("d/a"), f.path("b")).expect("link");
    assert_eq!(fs::metadata(f.path("b")).expect("stat").nlink(), 2);
    assert_eq!(fs::metadata(f.path("b")).expect("stat").ino(), fs::metadata(f.path("d/a")).expect("stat").ino());
    symlink("d/a", f.path("s")).expect("symlink");
    assert_eq!(fs::read_link(f.path("s")).expect("readlink").to_str(), Some("d/a"));
    assert_eq!(fs::read_to_string(f.path("s")).expect("through the link"), "hello");
    assert_eq!(fs::remove_dir(f.path("d")).expect_err("not empty").kind(), ErrorKind::DirectoryNotEmpty);
    fs::rename(f.path("d/a"), f.path("c")).expect("rename");
    assert_eq!(fs::metadata(f.path("d/a")).expect_err("gone").kind(), ErrorKind::NotFound);
    fs::rename(f.path("c"), f.path("b")).expect("two names of one file: nothing happens, or the first goes");
    fs::remove_dir(f.path("d")).expect("rmdir");
    fs::remove_file(f.path("b")).expect("unlink");
    fs::remove_file(f.path("s")).expect("unlink");
    let long = "x".repeat(256);
    let error = File::create(f.path(&long)).expect_err("too long");
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn fifos_are_made_and_work() {
    let Some(f) = Fixture::new("") else { return };
    let said = shell(&f.mount.directory, "mkfifo p; (echo hello > p &); cat p");
    assert_eq!(said, "hello\n");
    assert!(fs::metadata(f.served("p")).expect("stat").file_type().is_fifo());
}

#[test]
fn attributes_are_set_and_shown() {
    let Some(f) = Fixture::new("") else { return };
    let file = File::create(f.path("a")).expect("create");
    fs::set_permissions(f.path("a"), Permissions::from_mode(0o4710)).expect("chmod");
    assert_eq!(fs::metadata(f.path("a")).expect("stat").mode() & 0o7777, 0o4710);
    let time = UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    file.set_modified(time).expect("utimensat");
    assert_eq!(fs::metadata(f.path("a")).expect("stat").modified().expect("a time"), time);
    assert_eq!(fs::metadata(f.served("a")).expect("stat").modified().expect("a time"), time);
    fs::write(f.path("a"), vec![1; 10_000]).expect("write");
    for size in [5000, 4096, 0, 12_345] {
        file.set_len(size).expect("ftruncate");
        let metadata = fs::metadata(f.path("a")).expect("stat");
        assert_eq!((metadata.len(), fs::metadata(f.served("a")).expect("stat").len()), (size, size));
    }
    assert_eq!(fs::read(f.path("a")).expect("read"), vec![0; 12_345], "what was cut off does not come back");
}

#[test]
fn a_time_that_is_set_after_writing_stays() {
    let Some(f) = Fixture::new("") else { return };
    let mut file = File::create(f.path("a")).expect("create");
    file.write_all(&[1; 100_000]).expect("write");
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(time).expect("utimensat");
    drop(file);
    assert_eq!(fs::metadata(f.path("a")).expect("stat").modified().expect("a time"), time);
}

#[test]
fn an_exclusive_creation_succeeds_once() {
    let Some(f) = Fixture::new("") else { return };
    let create = || OpenOptions::new().write(true).create_new(true).open(f.path("lock"));
    create().expect("the first");
    assert_eq!(create().expect_err("the second").kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::metadata(f.path("lock")).expect("stat").mode() & 0o777, 0o644);
}

#[test]
fn open_files_outlive_their_names() {
    let Some(f) = Fixture::new("") else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(f.path("a")).expect("open");
    file.write_all(b"first").expect("write");
    fs::remove_file(f.path("a")).expect("unlink");
    file.write_all(b" second").expect("write");
    file.sync_all().expect("fsync");
    file.rewind().expect("seek");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "first second");
    assert_eq!(fs::metadata(f.path("a")).expect_err("gone").kind(), ErrorKind::NotFound);
    drop(file);
    // The host closes it after close(2) has returned.
    testkit::server::await_that("nothing is left", || fs::read_dir(f.served("")).expect("list").count() == 0);
}

#[test]
fn a_directory_is_empty_once_the_files_that_were_removed_from_it_are_closed() {
    let Some(f) = Fixture::new("") else { return };
    // A process of its own: programs that other tests start have open for a moment what is open here.
    let script = "python3 -c \"
import os
for round in range(100):
    os.mkdir('d')
    file = os.open('d/a', os.O_WRONLY | os.O_CREAT)
    os.unlink('d/a')
    os.close(file)
    os.rmdir('d')
print('removed')
\"";
    assert_eq!(shell(&f.mount.directory, script), "removed\n");
}

#[test]
fn a_file_has_the_servers_number_also_if_a_removed_one_had_it_that_is_still_in_use() {
    let Some(f) = Fixture::new("") else { return };
    let names = |kind: &str| (0..64).map(|number| format!("{kind}-{number}")).collect::<Vec<_>>();
    let (old, new, links) = (names("old"), names("new"), names("link"));
    let make = |name: &String| _ = File::create(f.path(name)).expect("create");
    old.iter().for_each(make);
    // To the host they are not open.
    let open =
        |name: &String| OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(f.path(name)).expect("open");
    let in_use: Vec<File> = old.iter().map(open).collect();
    old.iter().for_each(|name| fs::remove_file(f.path(name)).expect("unlink"));
    // File systems such as ext4 give the numbers again at once.
    new.iter().for_each(make);
    new.iter().zip(&links).for_each(|(name, link)| fs::hard_link(f.path(name), f.path(link)).expect("link"));
    let number = |path| fs::metadata(path).expect("stat").ino();
    let check = || {
        for (name, link) in new.iter().zip(&links) {
            assert_eq!([name, link].map(|name| number(f.path(name))), [number(f.served(name)); 2], "{name}");
        }
    };
    check();
    assert_eq!(fs::read_dir(&f.mount.directory).expect("list").count(), 128);
    check();
    drop(in_use);
    check();
}

#[test]
fn removing_and_closing_at_the_same_time_leaves_nothing_behind() {
    let Some(f) = Fixture::new("") else { return };
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let path = f.path("a");
            scope.spawn(move || {
                for round in 0..100u8 {
                    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
                    // Another one may have removed it since it was found.
                    let Ok(mut file) = open() else { continue };
                    file.write_all(&[number; 100]).expect("write");
                    let removed = fs::remove_file(&path);
                    assert!(
                        removed.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NotFound),
                        "{removed:?}"
                    );
                    if round % 2 == 0 {
                        file.sync_all().expect("what is removed can still be written");
                    }
                }
            });
        }
    });
    testkit::server::await_that("nothing is left", || fs::read_dir(f.served("")).expect("list").count() == 0);
}

#[test]
fn a_file_that_is_replaced_while_it_is_open_can_still_be_read() {
    let Some(f) = Fixture::new("") else { return };
    fs::write(f.path("a"), "old").expect("write");
    let mut old = File::open(f.path("a")).expect("open");
    fs::write(f.path("b"), "new").expect("write");
    fs::rename(f.path("b"), f.path("a")).expect("rename");
    let mut text = String::new();
    old.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), fs::read_to_string(f.path("a")).expect("read").as_str()), ("old", "new"));
}

#[test]
fn a_file_that_is_replaced_while_it_is_written_has_all_that_was_written() {
    let Some(f) = Fixture::new("") else { return };
    let options = || OpenOptions::new().read(true).write(true).create(true).truncate(true).clone();
    let (mut old, first, second) = (options().open(f.path("a")).expect("open"), [1; 300_000], [2; 300_000]);
    old.write_all(&first).expect("write");
    let mut new = options().open(f.path("b")).expect("open");
    new.write_all(b"new").expect("write");
    fs::rename(f.path("b"), f.path("a")).expect("rename");
    old.write_all(&second).expect("write");
    new.write_all(b"er").expect("write");
    [&old, &new].iter().for_each(|file| file.sync_all().expect("fsync"));
    old.rewind().expect("seek");
    let mut content = Vec::new();
    old.read_to_end(&mut content).expect("read");
    assert!(content == [first, second].concat());
    drop((old, new));
    assert_eq!(fs::read_to_string(f.path("a")).expect("read"), "newer");
    testkit::server::await_that("only the new one is left", || fs::read_dir(f.served("")).expect("list").count() == 1);
    assert_eq!(fs::read_to_string(f.served("a")).expect("read"), "newer");
}

#[test]
fn three_thousand_names_are_listed_with_their_kinds() {
    let Some(f) = Fixture::new("") else { return };
    let names: BTreeSet<String> = (0..3000).map(|number| format!("a-name-of-some-length-{number}")).collect();
    fs::create_dir(f.served("many")).expect("mkdir");
    for (number, name) in names.iter().enumerate() {
        let path = f.served("many").join(name);
        if number % 10 == 0 { fs::create_dir(path).expect("mkdir") } else { fs::write(path, name).expect("write") }
    }
    for _ in 0..2 {
        let entries: Vec<_> =
            fs::read_dir(f.path("many")).expect("list").map(|entry| entry.expect("an entry")).collect();
        assert_eq!(entries.len(), names.len());
        let listed = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
        assert_eq!(listed.collect::<BTreeSet<_>>(), names);
        let directories = entries.iter().filter(|entry| entry.file_type().expect("a kind").is_dir()).count();
        assert_eq!(directories, 300);
    }
    assert_eq!(shell(&f.mount.directory, "find many -type f | wc -l").trim(), "2700");
    shell(&f.mount.directory, "rm -r many");
    assert!(!f.served("many").exists());
}

#[test]
fn locks_are_local_and_extended_attributes_are_refused() {
    let Some(f) = Fixture::new("") else { return };
    fs::write(f.path("a"), "x").expect("write");
    let refused = shell(&f.mount.directory, "flock a sh -c 'flock -n a true && echo granted || echo refused'");
    assert_eq!(refused, "refused\n");
    let error = rustix::fs::setxattr(f.path("a"), "user.x", b"y", rustix::fs::XattrFlags::empty());
    assert_eq!(error, Err(rustix::io::Errno::NOTSUP));
}

#[test]
fn the_space_is_the_servers() {
    let Some(f) = Fixture::new("") else { return };
    let (here, there) = (rustix::fs::statvfs(&f.mount.directory), rustix::fs::statvfs(f.served("")));
    let (here, there) = (here.expect("statvfs"), there.expect("statvfs"));
    assert_eq!(here.f_blocks * here.f_frsize / (1 << 20), there.f_blocks * there.f_frsize / (1 << 20));
    assert_eq!(here.f_namemax, 255);
}
