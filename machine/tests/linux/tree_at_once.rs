//! What is answered from descriptors that stay open follows what the host does meanwhile.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::rig::Memory;
use crate::tree_rig::*;
use machine::tree::{Creation, Node, OpenNode, SetAttributes, SetTime, Time, TreeCall, TreeReply};
use machine::{Errno, Op, Segments};
use policy::unit::{ByteOffset, Stability};
use rustix::fs::XattrFlags;
use testkit::skip::{note, note_kernel};

on_all_trees!(
    the_host_executes_a_new_file_that_it_has_written,
    what_the_host_did_to_a_new_file_counts_when_it_is_opened,
    a_new_file_is_not_read_when_it_is_opened,
    a_new_file_is_written_through_one_descriptor_and_read_through_another,
    a_new_file_that_has_lost_its_name_cannot_be_written,
    permissions_and_attributes_of_open_files_are_those_that_the_host_has,
    access_control_lists_of_open_files_count,
    a_file_that_is_open_is_opened_for_writing_as_the_host_left_it,
    a_lease_is_waited_for_and_not_by_the_processor,
    a_program_that_wants_to_be_asked_keeps_the_processor_waiting_twice,
    names_that_the_host_changes_are_found_by_the_next_lookup,
    a_directory_that_the_host_replaced_is_another,
    who_may_not_search_a_directory_finds_nothing_in_it,
);

const ENOENT: Errno = Errno(libc::ENOENT);
const ESTALE: Errno = Errno::STALE;

fn made(served: &mut ServedTree, name: &str) -> Node {
    let root = served.root;
    served.node(None, create(root, name, Creation::Guarded, mode(0o755))).expect("made").0
}

fn opened(served: &mut ServedTree, node: Node, writable: bool) -> Result<OpenNode, Errno> {
    match served.ask(None, TreeCall::Open { node, writable })? {
        TreeReply::Opened(open) => Ok(open),
        _ => panic!("another reply"),
    }
}

fn write(served: &mut ServedTree, open: &OpenNode, from: Segments) -> Result<u64, Errno> {
    let file = open.buffered.as_ref().unwrap_or(&open.direct).file;
    served.rig.run(Op::Write { file, at: ByteOffset(0), from, stability: Stability::Unstable })
}

fn the_host_executes_a_new_file_that_it_has_written(mut served: ServedTree) {
    let node = made(&mut served, "program");
    // By another program: what is open here for writing others have open, too, that are just started.
    assert!(Command::new("cp").arg("/bin/true").arg(served.path("program")).status().expect("copied").success());
    assert!(Command::new(served.path("program")).status().expect("executed").success());
    let _open = opened(&mut served, node, false).expect("opened");
    assert!(Command::new(served.path("program")).status().expect("executed").success());
}

fn what_the_host_did_to_a_new_file_counts_when_it_is_opened(mut served: ServedTree) {
    let (changed, gone) = (made(&mut served, "changed"), made(&mut served, "gone"));
    fs::write(served.path("changed"), [7; 5000]).expect("written");
    fs::remove_file(served.path("gone")).expect("removed");
    let open = opened(&mut served, changed, false).expect("opened");
    assert_eq!((open.direct.facts.size, open.attributes.size), (5000, 5000));
    assert_eq!(opened(&mut served, gone, false).err(), Some(ESTALE));
}

/// Otherwise the test is noted as skipped.
pub fn reports_direct_io(path: &Path) -> bool {
    // SAFETY: all zeroes is a valid value of the structure, which has integers only.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
    // SAFETY: the path is a C string, and the call fills `found`.
    let asked = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_DIOALIGN, &raw mut found) };
    assert_eq!(asked, 0);
    let is_reported = found.stx_mask & libc::STATX_DIOALIGN != 0;
    if !is_reported {
        note_kernel("the file system does not report whether direct I/O works (Linux 6.1)");
    }
    is_reported
}

/// To read it changes the time of access, which may wait for a journal.
fn a_new_file_is_not_read_when_it_is_opened(mut served: ServedTree) {
    let node = made(&mut served, "file");
    if !reports_direct_io(&served.path("file")) {
        return;
    }
    let long_ago = Time { seconds: 5, nanoseconds: 0 };
    let accessed = Some(SetTime::To(long_ago));
    served.ask(None, set(node, SetAttributes { accessed, ..SetAttributes::default() })).expect("set");
    let _open = [false, true].map(|writable| opened(&mut served, node, writable).expect("opened"));
    assert_eq!(served.attributes(node).expect("attributes").accessed, long_ago);
}

fn a_new_file_is_written_through_one_descriptor_and_read_through_another(mut served: ServedTree) {
    let node = made(&mut served, "file");
    let reading = opened(&mut served, node, false).expect("opened");
    fs::write(served.path("file"), [1; 10]).expect("written");
    let writing = opened(&mut served, node, true).expect("opened");
    assert_eq!((writing.direct.facts.size, writing.attributes.size), (10, 10), "as the host left it");
    assert!(writing.direct.facts.writable && !reading.direct.facts.writable);
    assert_eq!(writing.buffered.is_some(), writing.direct.facts.direct);
    assert_eq!(writing.direct.facts.direct, reading.direct.facts.direct);
    assert_eq!(writing.bytes_max, reading.bytes_max);
    let content = Memory::filled(4096, 9);
    assert_eq!(write(&mut served, &writing, content.all()), Ok(4096));
    assert_eq!(served.rig.run(Op::WriteBack { file: writing.direct.file }), Ok(0));
    assert_eq!(served.rig.run(Op::Flush { file: writing.direct.file }), Ok(0));
    let into = Memory::new(4096);
    let read = Op::Read { file: reading.direct.file, at: ByteOffset(0), into: into.all() };
    assert_eq!(served.rig.run(read), Ok(4096));
    assert_eq!(into.bytes(), content.bytes());
}

fn a_new_file_that_has_lost_its_name_cannot_be_written(mut served: ServedTree) {
    let (root, by_host, by_us) = (served.root, made(&mut served, "host"), made(&mut served, "us"));
    let open = [by_host, by_us].map(|node| opened(&mut served, node, false).expect("opened"));
    fs::remove_file(served.path("host")).expect("removed");
    served.remove(root, "us").expect("removed");
    for node in [by_host, by_us] {
        assert_eq!(opened(&mut served, node, true).err(), Some(ESTALE));
    }
    drop(open);
}

fn permissions_and_attributes_of_open_files_are_those_that_the_host_has(mut served: ServedTree) {
    let (made, node) = (made(&mut served, "made"), served.file("file"));
    let open = opened(&mut served, node, false).expect("opened");
    let (read, write) = (libc::R_OK as u32, libc::W_OK as u32);
    let stranger = caller(5002, 6002, &[]);
    for (permissions, strangers) in [(0o604, read), (0o606, read | write), (0o600, 0), (0o602, write)] {
        for (name, node) in [("made", made), ("file", node)] {
            fs::set_permissions(served.path(name), fs::Permissions::from_mode(permissions)).expect("set");
            assert_eq!(served.attributes(node).expect("answered").mode, permissions, "{name}");
            if served.acts_for_others() {
                let call = TreeCall::Access { node, wanted: read | write };
                let (granted, attributes) = match served.ask(Some(&stranger), call).expect("answered") {
                    TreeReply::Access(granted, attributes) => (granted, attributes),
                    _ => panic!("another reply"),
                };
                assert_eq!((granted, attributes.mode), (strangers, permissions), "{name}");
            }
        }
    }
    for (name, node) in [("made", made), ("file", node)] {
        fs::remove_file(served.path(name)).expect("removed");
        assert_eq!(served.attributes(node).err(), Some(ESTALE), "{name}");
        assert_eq!(access(served.ask(None, TreeCall::Access { node, wanted: read })), Err(ESTALE), "{name}");
    }
    drop(open);
}

/// For everybody and for `named`, whom the mask may limit (acl(5), as ext4 has it in its attribute).
fn access_control_list(named: (u32, u16), mask: u16) -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let (user, everybody) = (named.0, 6);
    let entries: [(u16, u16, u32); 5] = [
        (0x01, everybody, UNDEFINED),
        (0x02, named.1, user),
        (0x04, everybody, UNDEFINED),
        (0x10, mask, UNDEFINED),
        (0x20, everybody, UNDEFINED),
    ];
    let bytes = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [&2_u32.to_le_bytes()[..], &entries.map(bytes).concat()].concat()
}

fn access_control_lists_of_open_files_count(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let (made, node) = (made(&mut served, "made"), served.file("file"));
    let open = opened(&mut served, node, false).expect("opened");
    let (read, write) = (libc::R_OK as u32, libc::W_OK as u32);
    let stranger = caller(5002, 6002, &[]);
    // With an empty mask Linux does not look at the list.
    for (named, mask, granted) in [(4, 6, read), (0, 6, 0), (6, 4, read), (0, 0, read | write)] {
        for (name, node) in [("made", made), ("file", node)] {
            let list = access_control_list((stranger.uid, named), mask);
            let set = rustix::fs::setxattr(served.path(name), "system.posix_acl_access", &list, XattrFlags::empty());
            if set == Err(rustix::io::Errno::OPNOTSUPP) {
                return note_kernel("the file system has no access control lists");
            }
            set.expect("set");
            let call = TreeCall::Access { node, wanted: read | write };
            assert_eq!(access(served.ask(Some(&stranger), call)), Ok(granted), "{name}: {named} {mask}");
        }
    }
    drop(open);
}

fn a_file_that_is_open_is_opened_for_writing_as_the_host_left_it(mut served: ServedTree) {
    let node = served.file("file");
    let reading = opened(&mut served, node, false).expect("opened");
    fs::write(served.path("file"), [1; 10_000]).expect("written");
    let writing = opened(&mut served, node, true).expect("opened");
    assert_eq!((writing.direct.facts.size, writing.attributes.size), (10_000, 10_000));
    assert!(writing.direct.facts.writable && !reading.direct.facts.writable);
    assert_eq!(writing.direct.facts.direct, reading.direct.facts.direct);
    let content = Memory::filled(4096, 9);
    assert_eq!(write(&mut served, &writing, content.all()), Ok(4096));
    drop((reading, writing));
    // Nobody has it open any more.
    fs::remove_file(served.path("file")).expect("removed");
    assert_eq!(opened(&mut served, node, true).err(), Some(ESTALE));
}

fn a_lease_is_waited_for_and_not_by_the_processor(mut served: ServedTree) {
    let node = made(&mut served, "file");
    let _reading = opened(&mut served, node, false).expect("opened");
    let leased = fs::File::open(served.path("file")).expect("opened");
    // SAFETY: no pointer is passed.
    let lease = |kind: libc::c_int| unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, kind) };
    // SAFETY: no other test waits for the signal, which asks for the lease and would end this process.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    if lease(libc::F_RDLCK) < 0 {
        return note("no leases on this file system");
    }
    let (token, reply) = served.start(None, TreeCall::Open { node, writable: true });
    assert!(reply.lock().is_none(), "opened beside a lease");
    assert_eq!(lease(libc::F_UNLCK), 0);
    assert_eq!(served.rig.wait(token), Ok(0));
    assert!(matches!(reply.lock().take(), Some(TreeReply::Opened(open)) if open.direct.facts.writable));
}

/// A program on the host that takes its time to allow what is opened in a directory, and that itself (`FAN_OPEN_PERM`).
pub struct Asked {
    /// It does not answer, for a minute at most.
    pub is_held: Arc<AtomicBool>,
    pub is_asked: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Asked {
    /// `None`: the host has no such programs, or the server's user may not be one.
    pub fn new(directory: &Path) -> Option<Asked> {
        let path = CString::new(directory.as_os_str().as_bytes()).expect("no zero byte");
        let mask = libc::FAN_OPEN_PERM | libc::FAN_EVENT_ON_CHILD | libc::FAN_ONDIR;
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::fanotify_init(libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC, libc::O_RDONLY as u32) };
        // SAFETY: the descriptor is new, and the path a C string.
        let events = (fd >= 0).then(|| unsafe { fs::File::from_raw_fd(fd) })?;
        // SAFETY: as above.
        let marked = unsafe { libc::fanotify_mark(fd, libc::FAN_MARK_ADD, mask, libc::AT_FDCWD, path.as_ptr()) };
        let mut asked =
            Asked { is_held: Arc::default(), is_asked: Arc::default(), ended: Arc::default(), thread: None };
        let [held, is_asked, ended] = [&asked.is_held, &asked.is_asked, &asked.ended].map(Arc::clone);
        let answer = move || Asked::answer(events, &held, &is_asked, &ended);
        asked.thread = Some((marked == 0).then(|| thread::spawn(answer))?);
        Some(asked)
    }

    fn answer(mut events: fs::File, is_held: &AtomicBool, is_asked: &AtomicBool, ended: &AtomicBool) {
        while !ended.load(Ordering::SeqCst) {
            let mut poll = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, as said.
            if unsafe { libc::poll(&raw mut poll, 1, 20) } != 1 {
                continue;
            }
            let mut bytes = [0; 4096];
            let read = events.read(&mut bytes).expect("an event");
            is_asked.store(true, Ordering::SeqCst);
            for event in bytes[..read].chunks_exact(size_of::<libc::fanotify_event_metadata>()) {
                let fd: [u8; 4] = event[16..20].try_into().expect("four bytes");
                let pause = || thread::sleep(Duration::from_millis(2));
                pause();
                (0..30_000).take_while(|_| is_held.load(Ordering::SeqCst)).for_each(|_| pause());
                let answer = [fd, libc::FAN_ALLOW.to_ne_bytes()].concat();
                events.write_all(&answer).expect("answered");
                // SAFETY: the event's descriptor, which nobody else has.
                drop(unsafe { fs::File::from_raw_fd(i32::from_ne_bytes(fd)) });
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.is_held.store(false, Ordering::SeqCst);
        self.ended.store(true, Ordering::SeqCst);
        self.thread.take().map(JoinHandle::join);
    }
}

fn a_program_that_wants_to_be_asked_keeps_the_processor_waiting_twice(mut served: ServedTree) {
    let nodes = ["first", "second", "third"].map(|name| made(&mut served, name));
    let _reading = nodes.map(|node| opened(&mut served, node, false).expect("opened"));
    let Some(asked) = Asked::new(served.path(".").as_path()) else { return note("no FAN_OPEN_PERM here") };
    for node in &nodes[..2] {
        opened(&mut served, *node, true).expect("allowed");
    }
    asked.is_held.store(true, Ordering::SeqCst);
    let (token, reply) = served.start(None, TreeCall::Open { node: nodes[2], writable: true });
    assert!(reply.lock().is_none(), "the processor has waited for the answer");
    asked.is_held.store(false, Ordering::SeqCst);
    assert_eq!(served.rig.wait(token), Ok(0));
}

fn names_that_the_host_changes_are_found_by_the_next_lookup(mut served: ServedTree) {
    let root = served.root;
    let (a, b) = (made(&mut served, "a"), made(&mut served, "b"));
    let found = |served: &mut ServedTree, name| served.lookup(root, name).map(|(node, _)| node);
    assert_eq!((found(&mut served, "a"), found(&mut served, "c")), (Ok(a), Err(ENOENT)));
    fs::rename(served.path("a"), served.path("c")).expect("renamed");
    assert_eq!((found(&mut served, "a"), found(&mut served, "c")), (Err(ENOENT), Ok(a)));
    fs::rename(served.path("b"), served.path("c")).expect("renamed");
    assert_eq!((found(&mut served, "b"), found(&mut served, "c")), (Err(ENOENT), Ok(b)));
}

fn a_directory_that_the_host_replaced_is_another(mut served: ServedTree) {
    let root = served.root;
    let before = served.make_directory("dir", 0);
    assert_eq!(served.lookup(before, "file").err(), Some(ENOENT));
    assert_eq!(served.lookup(root, "dir").expect("found").0, before);
    fs::remove_dir(served.path("dir")).expect("removed");
    fs::create_dir(served.path("dir")).expect("made");
    fs::write(served.path("dir/file"), "").expect("written");
    assert_eq!(served.lookup(before, "file").err(), Some(ESTALE));
    assert_eq!(served.attributes(before).err(), Some(ESTALE));
    assert_eq!(served.node(None, create(before, "new", Creation::Guarded, mode(0o600))).err(), Some(ESTALE));
    let now = served.lookup(root, "dir").expect("found").0;
    assert_ne!(now, before);
    assert!(served.lookup(now, "file").is_ok());
}

fn who_may_not_search_a_directory_finds_nothing_in_it(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let dir = served.make_directory("dir", 0);
    fs::write(served.path("dir/file"), "").expect("written");
    let stranger = caller(5002, 6002, &[]);
    let look = |served: &mut ServedTree, name: &str| {
        served.node(Some(&stranger), TreeCall::Lookup { dir, name: name.into() }).err()
    };
    for (permissions, refusal) in [(0o755, None), (0o700, Some(Errno(libc::EACCES))), (0o711, None)] {
        let asked = SetAttributes { mode: Some(permissions), ..SetAttributes::default() };
        served.ask(None, set(dir, asked)).map(drop).expect("set");
        // The server itself has it in memory.
        assert!(served.lookup(dir, "file").is_ok());
        assert_eq!(look(&mut served, "file"), refusal, "{permissions:o}");
    }
}
