//! A directory of a million entries, which no server of ours has to have: they are made up as they are asked for.

use std::fs;

use crate::between::{Fate, GETATTR, LOOKUP, READDIRPLUS};
use crate::errors::with_between;
use crate::fixture::shell;

const ENTRIES_MAX: u64 = 1_000_000;

/// With their attributes: more than the mount knows at a time.
const ENTRIES_WITH_ATTRIBUTES: u64 = 150_000;

/// In one reply, as fit into 64 KiB.
const ENTRIES_PER_REPLY: u64 = 400;

/// Numbers of the files begin here.
const FIRST_FILE: u64 = 1 << 32;

/// Most memory of the mount's process, in KiB: it keeps what the host refers to, which is bounded.
const MEMORY_KIB_MAX: u64 = 192 << 10;

/// Begins the handles.
const MADE_UP: &[u8] = b"made";

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&(bytes.len() as u32).to_be_bytes(), bytes, &[0; 3][..padding]].concat()
}

/// The first opaque of `arguments`, and what follows.
fn split_opaque(arguments: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = arguments.split_first_chunk().expect("a length");
    let len = u32::from_be_bytes(*len) as usize;
    (&rest[..len], &rest[len.next_multiple_of(4)..])
}

fn handle(number: u64) -> Vec<u8> {
    opaque(&[MADE_UP, &number.to_be_bytes()].concat())
}

/// A regular file's (RFC 1813, section 2.5).
fn attributes(number: u64) -> Vec<u8> {
    let words = [1, 0o644, 1, 0, 0u32].map(u32::to_be_bytes).concat();
    let longs = [0, 0, 0, 0, FIRST_FILE + number, 0, 0, 0u64].map(u64::to_be_bytes).concat();
    [words, longs].concat()
}

fn entry(number: u64) -> Vec<u8> {
    let is_there = 1u32.to_be_bytes();
    [&named(number)[..], &is_there, &attributes(number), &is_there, &handle(number)].concat()
}

/// An entry of which the server says no more than it must.
fn bare_entry(number: u64) -> Vec<u8> {
    [&named(number)[..], &[0; 8]].concat()
}

fn named(number: u64) -> Vec<u8> {
    let (is_there, name) = (1u32.to_be_bytes(), format!("entry-{number:07}"));
    let (file, cookie) = ((FIRST_FILE + number).to_be_bytes(), (number + 1).to_be_bytes());
    [&is_there[..], &file, &opaque(name.as_bytes()), &cookie].concat()
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
