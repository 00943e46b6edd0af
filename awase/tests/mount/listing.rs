//! A directory of a million entries, which no server of ours has to have: they are made up as they are asked for.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use testkit::server::await_that;

use crate::between::{Between, Fate, GETATTR, LOOKUP, READDIRPLUS, REMOVE, RENAME, split_opaque};
use crate::errors::with_between;
use crate::fixture::{await_end, shell};

const ENTRIES_MAX: u64 = 1_000_000;

/// With their attributes: more than the mount knows at a time.
const ENTRIES_WITH_ATTRIBUTES: u64 = 150_000;

/// In one reply, as fit into 64 KiB.
const ENTRIES_PER_REPLY: u64 = 400;

/// Numbers of the files begin here.
const FIRST_FILE: u64 = 1 << 32;

/// Most memory of the mount's process, in KiB: it keeps what the host refers to, which is bounded.
const MEMORY_KIB_MAX: u64 = 192 << 10;

/// Statuses (RFC 1813, section 2.6).
const STALE: u32 = 70;
const BAD_COOKIE: u32 = 10_003;

/// Begins the handles.
const MADE_UP: &[u8] = b"made";

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&(bytes.len() as u32).to_be_bytes(), bytes, &[0; 3][..padding]].concat()
}

fn handle(number: u64) -> Vec<u8> {
    opaque(&[MADE_UP, &number.to_be_bytes()].concat())
}

/// A regular file's, which is empty (RFC 1813, section 2.5).
pub fn attributes(number: u64) -> Vec<u8> {
    let words = [1, 0o644, 1, 0, 0u32].map(u32::to_be_bytes).concat();
    let longs = [0, 0, 0, 0, FIRST_FILE + number, 0, 0, 0u64].map(u64::to_be_bytes).concat();
    [words, longs].concat()
}

fn entry(number: u64) -> Vec<u8> {
    whole_entry(&name(number), number, number + 1)
}

fn whole_entry(name: &str, number: u64, cookie: u64) -> Vec<u8> {
    let is_there = 1u32.to_be_bytes();
    [&named(name, number, cookie)[..], &is_there, &attributes(number), &is_there, &handle(number)].concat()
}

fn name(number: u64) -> String {
    format!("entry-{number:07}")
}

/// An entry of which the server says no more than it must.
fn bare_entry(number: u64) -> Vec<u8> {
    [&named(&name(number), number, number + 1)[..], &[0; 8]].concat()
}

/// Of two kinds in turns.
fn mixed_entry(number: u64) -> Vec<u8> {
    if number.is_multiple_of(8) { entry(number) } else { bare_entry(number) }
}

fn named(name: &str, number: u64, cookie: u64) -> Vec<u8> {
    let file = (FIRST_FILE + number).to_be_bytes();
    [&1u32.to_be_bytes()[..], &file, &opaque(name.as_bytes()), &cookie.to_be_bytes()].concat()
}

/// A reply to READDIRPLUS of a directory of so many entries.
fn listed(entries: u64, arguments: &[u8], entry: fn(u64) -> Vec<u8>) -> Fate {
    let (ok, is_not) = (0u32.to_be_bytes(), 0u32.to_be_bytes());
    let first = split_opaque(arguments).1.first_chunk().map_or(0, |cookie| u64::from_be_bytes(*cookie));
    let end = entries.min(first + ENTRIES_PER_REPLY);
    let is_end = u32::from(end == entries).to_be_bytes();
    let mut results = [&ok[..], &is_not, &[0; 8]].concat();
    (first..end).for_each(|number| results.extend(entry(number)));
    Fate::Answered([&results[..], &is_not, &is_end].concat())
}

/// Which entry LOOKUP asks for.
fn looked_up(arguments: &[u8]) -> Option<u64> {
    let name = split_opaque(split_opaque(arguments).1).0;
    std::str::from_utf8(name).ok()?.strip_prefix("entry-")?.parse().ok()
}

/// A call about a directory of so many entries.
fn made_up(entries: u64, procedure: u32, arguments: &[u8]) -> Fate {
    let (object, _) = split_opaque(arguments);
    let (ok, is_there, is_not) = (0u32.to_be_bytes(), 1u32.to_be_bytes(), 0u32.to_be_bytes());
    match procedure {
        READDIRPLUS => listed(entries, arguments, entry),
        LOOKUP => {
            let Some(number) = looked_up(arguments) else { return Fate::Passed };
            Fate::Answered([&ok[..], &handle(number), &is_there, &attributes(number), &is_not].concat())
        }
        GETATTR if object.starts_with(MADE_UP) => {
            let number = object[MADE_UP.len()..].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
            Fate::Answered([&ok[..], &attributes(number)].concat())
        }
        _ => Fate::Passed,
    }
}

#[test]
fn a_million_entries_are_listed_in_bounded_memory() {
    let Some((f, between)) = with_between("actimeo=60,cache=16MiB") else { return };
    for (entries, list) in [(ENTRIES_MAX, "ls -f"), (ENTRIES_WITH_ATTRIBUTES, "ls -lU")] {
        between.set(move |procedure, arguments| made_up(entries, procedure, arguments));
        let lines: u64 =
            shell(&f.mount.directory, &format!("{list} | grep -c entry-")).trim().parse().expect("a number");
        assert_eq!(lines, entries, "{list}");
        let status = fs::read_to_string(format!("/proc/{}/status", f.mount.id())).expect("it runs");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        println!("{list}: at most {peak} KiB");
        assert!(peak < MEMORY_KIB_MAX, "{list}: {peak} KiB");
    }
    // And what was forgotten is found again.
    assert_eq!(fs::metadata(f.path("entry-0000000")).expect("stat").len(), 0);
}

#[test]
fn a_listing_goes_on_behind_entries_that_are_removed_meanwhile() {
    const ENTRIES: u64 = 3 * ENTRIES_PER_REPLY;
    // All of the first reply, and some of the second.
    const GONE: u64 = ENTRIES_PER_REPLY + 7;
    let Some((f, between)) = with_between("") else { return };
    between.set(|procedure, arguments| match procedure {
        READDIRPLUS => listed(ENTRIES, arguments, bare_entry),
        LOOKUP if looked_up(arguments).is_some_and(|number| number < GONE) => Fate::Refused(libc::ENOENT as u32),
        _ => made_up(ENTRIES, procedure, arguments),
    });
    for list in ["ls -f", "ls -lU"] {
        let lines: u64 =
            shell(&f.mount.directory, &format!("{list} | grep -c entry-")).trim().parse().expect("a number");
        assert_eq!(lines, ENTRIES - GONE, "{list}");
    }
}

#[test]
fn a_killed_listing_of_a_directory_without_end_asks_for_nothing_more() {
    // The attributes of a directory are asked for each time.
    let Some((f, between)) = with_between("noac") else { return };
    let asked = Arc::new(AtomicU64::new(0));
    let own = Arc::clone(&asked);
    between.set(move |procedure, arguments| match procedure {
        READDIRPLUS => listed(u64::MAX, arguments, bare_entry),
        LOOKUP if looked_up(arguments).is_some() => {
            own.fetch_add(1, Ordering::SeqCst);
            Fate::Refused(libc::ENOENT as u32)
        }
        _ => made_up(u64::MAX, procedure, arguments),
    });
    let mut list = Command::new("ls").arg(&f.mount.directory).stdout(Stdio::null()).spawn().expect("ls");
    await_that("it goes on and on", || asked.load(Ordering::SeqCst) > 2 * ENTRIES_PER_REPLY);
    list.kill().expect("kill -9");
    assert!(!await_end(&mut list, "ls").success());
    await_that("nothing is asked for any more", || {
        let before = asked.load(Ordering::SeqCst);
        (0..100).for_each(|_| assert!(fs::metadata(&f.mount.directory).expect("stat").is_dir()));
        asked.load(Ordering::SeqCst) == before
    });
}

#[test]
fn what_cannot_be_looked_up_is_listed_nevertheless() {
    const ENTRIES: u64 = 2 * ENTRIES_PER_REPLY;
    let Some((f, between)) = with_between("") else { return };
    between.set(|procedure, arguments| match procedure {
        READDIRPLUS => listed(ENTRIES, arguments, mixed_entry),
        LOOKUP => match looked_up(arguments).map(|number| number % 4) {
            Some(1) => Fate::Refused(libc::EACCES as u32),
            Some(2) => Fate::Refused(libc::EIO as u32),
            // Removed meanwhile.
            Some(3) => Fate::Refused(STALE),
            _ => made_up(ENTRIES, procedure, arguments),
        },
        _ => made_up(ENTRIES, procedure, arguments),
    });
    let expected: Vec<(u64, String)> =
        (0..ENTRIES).filter(|number| number % 4 != 3).map(|number| (FIRST_FILE + number, name(number))).collect();
    let entries = fs::read_dir(&f.mount.directory).expect("list").map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| (entry.ino(), entry.file_name().into_string().expect("text")));
    assert_eq!(named.collect::<Vec<_>>(), expected);
    // It asks for the attributes of each.
    let lines = shell(&f.mount.directory, "ls -lU 2> /dev/null | grep -c entry-");
    assert_eq!(lines.trim().parse(), Ok(expected.len()));
    // The mount goes on.
    assert_eq!(fs::metadata(f.path("entry-0000000")).expect("stat").len(), 0);
    assert_eq!(fs::metadata(f.path("entry-0000001")).expect_err("refused").raw_os_error(), Some(libc::EACCES));
    // The directory itself is gone.
    between.set(|procedure, arguments| match procedure {
        READDIRPLUS => listed(ENTRIES, arguments, mixed_entry),
        LOOKUP | GETATTR => Fate::Refused(STALE),
        _ => made_up(ENTRIES, procedure, arguments),
    });
    let mut entries = fs::read_dir(&f.mount.directory).expect("opened");
    let error = entries.find_map(Result::err).expect("not a part of it as if it were all");
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
}

/// A directory whose cookies are places in it, and hold until it changes.
struct Changing {
    numbers: BTreeMap<String, u64>,
    changes: u64,
}

impl Changing {
    const ENTRIES_PER_REPLY: usize = 10;

    fn new(between: &Between, entries: u64) -> Arc<Mutex<Changing>> {
        let numbers = (0..entries).map(|number| (name(number), number)).collect();
        let directory = Arc::new(Mutex::new(Changing { numbers, changes: 1 }));
        let own = Arc::clone(&directory);
        between.set(move |procedure, arguments| own.lock().expect("no panic").answer(procedure, arguments));
        directory
    }

    fn rename(&mut self, from: Option<&str>, to: Option<&str>) {
        let number = from.map_or(Some(1000 + self.changes), |from| self.numbers.remove(from));
        self.numbers.extend(to.map(str::to_owned).zip(number));
        self.changes += 1;
    }

    fn list(&self, cookie: u64, verifier: u64) -> Fate {
        if cookie != 0 && verifier != self.changes {
            return Fate::Refused(BAD_COOKIE);
        }
        let entries = self.numbers.iter().enumerate().skip(cookie as usize).take(Self::ENTRIES_PER_REPLY);
        let entries: Vec<u8> =
            entries.flat_map(|(index, (name, number))| whole_entry(name, *number, index as u64 + 1)).collect();
        let is_end = cookie as usize + Self::ENTRIES_PER_REPLY >= self.numbers.len();
        let end = [0, u32::from(is_end)].map(u32::to_be_bytes).concat();
        Fate::Answered([&[0; 8][..], &self.changes.to_be_bytes(), &entries, &end].concat())
    }

    fn answer(&mut self, procedure: u32, arguments: &[u8]) -> Fate {
        let rest = split_opaque(arguments).1;
        let named = || String::from_utf8_lossy(split_opaque(rest).0).into_owned();
        match procedure {
            READDIRPLUS => {
                let [cookie, verifier] = [0, 8].map(|at| rest[at..at + 8].try_into().expect("8 bytes"));
                self.list(u64::from_be_bytes(cookie), u64::from_be_bytes(verifier))
            }
            LOOKUP => match self.numbers.get(&named()) {
                Some(number) => {
                    let is_there = 1u32.to_be_bytes();
                    Fate::Answered([&[0; 4][..], &handle(*number), &is_there, &attributes(*number), &[0; 4]].concat())
                }
                None => Fate::Refused(libc::ENOENT as u32),
            },
            REMOVE => {
                self.rename(Some(&named()), None);
                Fate::Answered(vec![0; 12])
            }
            RENAME => {
                let to = split_opaque(split_opaque(split_opaque(rest).1).1).0;
                self.rename(Some(&named()), Some(&String::from_utf8_lossy(to)));
                Fate::Answered(vec![0; 20])
            }
            _ => made_up(0, procedure, arguments),
        }
    }
}

#[test]
fn a_directory_that_changes_while_it_is_listed_is_listed_whole_where_its_cookies_end_with_that() {
    const ENTRIES: u64 = 100;
    let Some((f, between)) = with_between("") else { return };
    let all: Vec<String> = (0..ENTRIES).map(name).collect();
    let list = || {
        let entries = fs::read_dir(&f.mount.directory).expect("list");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
    };
    let directory = Changing::new(&between, ENTRIES);
    let listed = list().enumerate().inspect(|(count, _)| {
        if count % 25 == 24 {
            directory.lock().expect("no panic").rename(None, Some(&format!("begin-{count}")));
        }
    });
    let mut names: Vec<String> = listed.map(|(_, name)| name).filter(|name| name.starts_with("entry-")).collect();
    names.sort();
    assert_eq!(names, all, "others' files come meanwhile");
    Changing::new(&between, ENTRIES);
    let renamed = list().inspect(|name| fs::rename(f.path(name), f.path(&format!("{name}.bak"))).expect("rename"));
    assert_eq!(renamed.collect::<Vec<_>>(), all, "each is renamed once");
    let directory = Changing::new(&between, ENTRIES);
    list().for_each(|name| fs::remove_file(f.path(&name)).expect("unlink"));
    assert!(directory.lock().expect("no panic").numbers.is_empty(), "all are removed");
}
