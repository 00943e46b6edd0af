//! What is said to the server, and how often.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::between::{Between, COMMIT, CREATE, FSINFO, Fate, LOOKUP, READ, SETATTR, WRITE, split_opaque};
use crate::fixture::{Fixture, Mount};

const FILE_BYTES: usize = 4 << 20;

/// What FSINFO says of transfers, files and times.
struct Limits {
    read_max: u32,
    write_max: u32,
    file_max: u64,
    /// To which times are stored.
    nanoseconds: u32,
}

const LIMITS: Limits = Limits { read_max: 1 << 20, write_max: 1 << 20, file_max: 1 << 40, nanoseconds: 1 };

impl Limits {
    /// As results (RFC 1813, section 3.3.19).
    fn results(&self) -> Vec<u8> {
        const BLOCK: u32 = 4096;
        let Limits { read_max, write_max, file_max, nanoseconds } = *self;
        let words =
            [0, 0, read_max, read_max, BLOCK, write_max, write_max, BLOCK, BLOCK].map(u32::to_be_bytes).concat();
        let precision_and_properties = [0, nanoseconds, 0x1b].map(u32::to_be_bytes).concat();
        [&words[..], &file_max.to_be_bytes(), &precision_and_properties].concat()
    }
}

/// Offset and length of a READ or WRITE.
fn transfer(arguments: &[u8]) -> (u64, u32) {
    let rest = split_opaque(arguments).1;
    let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
    (u64::from(word(0)) << 32 | u64::from(word(4)), word(8))
}

#[test]
fn neighbours_are_one_call_up_to_what_the_server_takes() {
    const READ_MAX: u32 = 128 << 10;
    const WRITE_MAX: u32 = 256 << 10;
    let Some(f) = Fixture::new("") else { return };
    let between = Between::new(f.port);
    let calls: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let seen = Arc::clone(&calls);
    between.set(move |procedure, arguments| match procedure {
        FSINFO => Fate::Answered(Limits { read_max: READ_MAX, write_max: WRITE_MAX, ..LIMITS }.results()),
        READ | WRITE => {
            seen.lock().expect("no panic").push((procedure, transfer(arguments).1));
            Fate::Passed
        }
        _ => Fate::Passed,
    });
    let mount = Mount::new(&f.sandbox, between.port, "through", "");
    let mut file = File::create(mount.directory.join("a")).expect("create");
    (0..FILE_BYTES / 4096).for_each(|number| file.write_all(&[number as u8; 4096]).expect("write"));
    file.sync_all().expect("fsync");
    drop(file);
    mount.end();
    let mount = Mount::new(&f.sandbox, between.port, "again", "");
    let (mut file, mut piece) = (File::open(mount.directory.join("a")).expect("open"), [0; 4096]);
    for number in 0..FILE_BYTES / 4096 {
        file.read_exact(&mut piece).expect("read");
        assert!(piece == [number as u8; 4096], "block {number}");
    }
    let calls = calls.lock().expect("no panic");
    for (procedure, most) in [(READ, READ_MAX), (WRITE, WRITE_MAX)] {
        let lens = || calls.iter().filter(|(which, _)| *which == procedure).map(|(_, len)| *len);
        assert_eq!(lens().max(), Some(most), "procedure {procedure}");
        assert!(lens().count() <= FILE_BYTES / 4096 / 4, "procedure {procedure}: {} calls", lens().count());
    }
}

#[test]
fn a_small_file_that_is_made_in_a_new_directory_takes_two_calls() {
    let Some(f) = Fixture::new("") else { return };
    let between = Between::new(f.port);
    let mount = Mount::new(&f.sandbox, between.port, "through", "");
    let directory = mount.directory.join("d");
    fs::create_dir(&directory).expect("mkdir");
    let calls: Arc<Mutex<BTreeMap<u32, u32>>> = Arc::default();
    let seen = Arc::clone(&calls);
    between.set(move |procedure, _| {
        *seen.lock().expect("no panic").entry(procedure).or_default() += 1;
        Fate::Passed
    });
    for number in 0..20 {
        let file = File::create_new(directory.join(number.to_string()));
        file.and_then(|mut file| file.write_all(b"small")).expect("written");
    }
    // How often attributes are asked for depends on how long it takes.
    let calls = calls.lock().expect("no panic").clone();
    let count = |procedure| calls.get(&procedure).copied().unwrap_or_default();
    assert_eq!([CREATE, WRITE].map(count), [20, 20]);
    assert_eq!([LOOKUP, SETATTR, COMMIT].map(count), [0; 3]);
    assert_eq!(fs::read(f.served("d/19")).expect("on the server"), b"small");
    mount.end();
}

#[test]
fn a_file_that_must_not_exist_is_made_where_the_server_cannot_make_it_exclusively() {
    const EXCLUSIVE: [u8; 4] = 2u32.to_be_bytes();
    const NOTSUPP: u32 = 10_004;
    let Some(f) = Fixture::new("") else { return };
    let (between, asked) = (Between::new(f.port), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&asked);
    between.set(move |procedure, arguments| match procedure {
        // No time tells there whose file it is.
        FSINFO => Fate::Answered(Limits { nanoseconds: 1_000_000, ..LIMITS }.results()),
        CREATE if split_opaque(split_opaque(arguments).1).1.starts_with(&EXCLUSIVE) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::Refused(NOTSUPP)
        }
        _ => Fate::Passed,
    });
    let mount = Mount::new(&f.sandbox, between.port, "through", "");
    let create =
        |name| OpenOptions::new().write(true).create_new(true).mode(0o640).open(mount.directory.join(name)).map(drop);
    for name in ["a", "b"] {
        create(name).expect("it is made");
        assert_eq!(fs::metadata(f.served(name)).expect("on the server").permissions().mode() & 0o777, 0o640);
    }
    assert!(!mount.directory.join("theirs").exists());
    fs::write(f.served("theirs"), "").expect("write");
    assert_eq!(create("theirs").expect_err("it exists").kind(), ErrorKind::AlreadyExists);
    assert_eq!(asked.load(Ordering::Relaxed), 1, "the server has said so once");
    mount.end();
}

/// Of a server that says these limits.
fn mount_with_limits(f: &Fixture, limits: Limits) -> (Between, Mount) {
    let between = Between::new(f.port);
    between.set(move |procedure, _| match procedure {
        FSINFO => Fate::Answered(limits.results()),
        _ => Fate::Passed,
    });
    let mount = Mount::new(&f.sandbox, between.port, "through", "");
    (between, mount)
}

#[test]
fn a_server_that_says_nothing_of_the_longest_file_takes_what_is_written() {
    let Some(f) = Fixture::new("") else { return };
    let (_between, mount) = mount_with_limits(&f, Limits { file_max: 0, ..LIMITS });
    fs::write(mount.directory.join("a"), "hello").expect("write");
    let file = OpenOptions::new().write(true).open(mount.directory.join("a")).expect("open");
    file.set_len(4).expect("truncate");
    drop(file);
    assert_eq!(fs::read_to_string(f.served("a")).expect("on the server"), "hell");
    mount.end();
}

#[test]
fn what_is_too_large_to_be_cached_is_refused_at_once_whatever_the_server_takes() {
    let Some(f) = Fixture::new("") else { return };
    let (_between, mount) = mount_with_limits(&f, Limits { file_max: i64::MAX as u64, ..LIMITS });
    let file = File::create(mount.directory.join("a")).expect("create");
    for refused in [file.write_all_at(b"x", 1 << 59), file.set_len((1 << 60) + 1)] {
        assert_eq!(refused.expect_err("too large").raw_os_error(), Some(libc::EFBIG));
    }
    file.sync_all().expect("nothing is lost");
    drop(file);
    mount.end();
}

#[test]
fn with_noac_others_changes_are_seen_at_once_and_own_ones_are_with_the_server() {
    let Some(f) = Fixture::new("noac") else { return };
    let [other, caching] = [("other", "noac"), ("caching", "actimeo=600")]
        .map(|(name, options)| Mount::new(&f.sandbox, f.port, name, options));
    let writing = OpenOptions::new().write(true).create(true).truncate(true).open(other.directory.join("a"));
    let writing = writing.expect("open");
    writing.write_all_at(b"0", 0).expect("write");
    let [here, cached] = [f.path("a"), caching.directory.join("a")].map(|path| File::open(path).expect("open"));
    assert_eq!([&here, &cached].map(|file| file.metadata().expect("stat").len()), [1, 1]);
    for size in 2..20u64 {
        writing.write_all_at(&[size as u8], size - 1).expect("write");
        assert_eq!(fs::metadata(f.served("a")).expect("stat").len(), size, "it is with the server, which wrote it");
        assert_eq!(here.metadata().expect("stat").len(), size);
        let mut last = [0];
        here.read_exact_at(&mut last, size - 1).expect("it was shown to be there");
        assert_eq!(last, [size as u8]);
    }
    assert_eq!(cached.metadata().expect("stat").len(), 1, "otherwise they are not");
    // A mount ends when nobody uses it any more.
    drop((writing, here, cached));
    other.end();
    caching.end();
}
