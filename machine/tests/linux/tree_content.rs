//! Opening files of trees of the host, and making them durable.

use std::os::unix::fs::FileTypeExt;

use crate::rig::Memory;
use crate::tree_rig::*;
use machine::linux::file::{self, OpenOptions};
use machine::tree::{Kind, Node, SetAttributes, TreeCall};
use machine::{Errno, Op, OpenFile, Segments};
use policy::unit::{ByteOffset, Stability};

on_all_trees!(
    an_open_file_is_written_and_read_direct_and_buffered,
    a_file_is_opened_whatever_its_mode,
    an_open_file_stays_open_when_its_name_is_removed,
    only_regular_files_are_opened,
    a_file_in_execution_is_opened_for_reading_only,
    a_file_open_for_reading_can_be_executed,
    nodes_of_every_kind_are_synced_and_removed_ones_skipped,
    a_tree_has_the_disk_of_its_files,
    changes_of_an_open_file_by_other_processes_are_reported_and_own_ones_are_not,
);

fn write(open: &OpenFile, at: u64, from: Segments) -> Op {
    Op::Write { file: open.file, at: ByteOffset(at), from, stability: Stability::Unstable }
}

fn read(open: &OpenFile, at: u64, into: Segments) -> Op {
    Op::Read { file: open.file, at: ByteOffset(at), into }
}

fn an_open_file_is_written_and_read_direct_and_buffered(mut served: ServedTree) {
    let node = served.file("file");
    let open = served.opened(node, true);
    assert_eq!(open.direct.facts.size, 0);
    assert!(open.direct.facts.writable);
    assert_eq!(open.buffered.is_some(), open.direct.facts.direct);
    let whole = Memory::filled(64 << 10, 3);
    assert_eq!(served.rig.run(write(&open.direct, 0, whole.all())), Ok(64 << 10));
    let last = Memory::filled(1000, 9);
    let page_cache = open.buffered.as_ref().unwrap_or(&open.direct);
    assert!(!page_cache.facts.direct);
    assert_eq!(served.rig.run(write(page_cache, 64 << 10, last.all())), Ok(1000));
    assert_eq!(served.attributes(node).expect("attributes").size, (64 << 10) + 1000);
    let content = std::fs::read(served.path("file")).expect("read");
    assert_eq!(content, [whole.bytes(), last.bytes()].concat());
    let into = Memory::new(64 << 10);
    assert_eq!(served.rig.run(read(&open.direct, 0, into.all())), Ok(64 << 10));
    assert_eq!(into.bytes(), whole.bytes());
    assert_eq!(served.rig.run(Op::Flush { file: open.direct.file }), Ok(0));
    // Again, now that it is not empty.
    let again = served.opened(node, true);
    assert_eq!(again.direct.facts.size, (64 << 10) + 1000);
    assert_eq!(again.direct.facts.direct, open.direct.facts.direct);
}

fn a_file_is_opened_whatever_its_mode(mut served: ServedTree) {
    if !served.acts_for_others() {
        return;
    }
    let node = served.file("file");
    let closed = SetAttributes { uid: Some(5001), ..mode(0) };
    assert!(served.ask(None, set(node, closed)).is_ok());
    let anybody = caller(5002, 6002, &[]);
    assert!(served.opened_by(Some(&anybody), node, true).direct.facts.writable);
}

fn an_open_file_stays_open_when_its_name_is_removed(mut served: ServedTree) {
    let root = served.root;
    let node = served.file("file");
    let open = served.opened(node, true);
    let from = Memory::filled(4096, 1);
    assert!(served.ask(None, rename(root, "file", root, "other")).is_ok());
    assert_eq!(served.rig.run(write(&open.direct, 0, from.all())), Ok(4096));
    assert_eq!(std::fs::read(served.path("other")).expect("read"), from.bytes());
    assert!(served.remove(root, "other").is_ok());
    let into = Memory::new(4096);
    assert_eq!(served.rig.run(read(&open.direct, 0, into.all())), Ok(4096));
    assert_eq!(into.bytes(), from.bytes());
}

fn fifo(served: &mut ServedTree, name: &str) -> Node {
    let call = TreeCall::MakeSpecial { dir: served.root, name: name.into(), kind: Kind::Fifo, attributes: mode(0o600) };
    served.node(None, call).expect("made").0
}

fn only_regular_files_are_opened(mut served: ServedTree) {
    let root = served.root;
    assert_eq!(served.ask(None, TreeCall::Open { node: root, writable: false }).err(), Some(EISDIR));
    // Opening it would wait for a writer.
    let node = fifo(&mut served, "fifo");
    assert!(served.path("fifo").metadata().expect("it exists").file_type().is_fifo());
    assert_eq!(served.ask(None, TreeCall::Open { node, writable: true }).err(), Some(Errno::INVALID));
}

/// By another process: a descriptor open for writing in this one is inherited for a moment by programs of other tests.
fn copy(program: &str, to: &std::path::Path) {
    assert!(std::process::Command::new("cp").arg(program).arg(to).status().expect("cp").success());
}

fn a_file_in_execution_is_opened_for_reading_only(mut served: ServedTree) {
    let root = served.root;
    copy("/bin/sleep", &served.path("program"));
    let mut running = std::process::Command::new(served.path("program")).arg("60").spawn().expect("started");
    let node = served.lookup(root, "program").expect("found").0;
    let open = served.opened(node, false);
    let refusal = served.ask(None, TreeCall::Open { node, writable: true }).err();
    running.kill().expect("killed");
    running.wait().expect("ended");
    assert!(!open.direct.facts.writable && open.buffered.is_none());
    assert_eq!(refusal, Some(Errno(libc::ETXTBSY)));
    assert!(served.opened(node, true).direct.facts.writable, "it is no longer executed");
    let into = Memory::new(4096);
    assert_eq!(served.rig.run(read(&open.direct, 0, into.all())), Ok(4096));
    assert_eq!(&into.bytes()[..4], b"\x7fELF");
}

fn a_file_open_for_reading_can_be_executed(mut served: ServedTree) {
    let root = served.root;
    copy("/bin/true", &served.path("program"));
    let node = served.lookup(root, "program").expect("found").0;
    let _open = served.opened(node, false);
    assert!(std::process::Command::new(served.path("program")).status().expect("executed").success());
}

fn nodes_of_every_kind_are_synced_and_removed_ones_skipped(mut served: ServedTree) {
    let root = served.root;
    let (file, gone) = (served.file("file"), served.file("gone"));
    let directory = served.make_directory("directory", 0);
    let link = served.node(None, make_symbolic_link(root, "link", "file")).expect("made").0;
    let fifo = fifo(&mut served, "fifo");
    assert!(served.remove(root, "gone").is_ok());
    for nodes in [vec![], vec![root], vec![gone], vec![root, file, gone, directory, link, fifo, root]] {
        assert_eq!(done_in(served.ask(None, TreeCall::Sync { nodes })), Ok(()));
    }
    // An ordinary user could not remove it with the rest.
    assert_eq!(done_in(served.ask(None, remove_directory(root, "directory"))), Ok(()));
}

fn a_tree_has_the_disk_of_its_files(mut served: ServedTree) {
    let node = served.file("file");
    let open = served.opened(node, true);
    assert_eq!(open.direct.facts.disk, served.open.disk);
    let options = OpenOptions { writable: true, create_size: Some(4096), ..OpenOptions::default() };
    let image = file::open(&served.path("image"), options).expect("opened");
    assert_eq!(image.facts.disk, served.open.disk);
    assert_eq!((image.facts.align, image.facts.direct), (open.direct.facts.align, open.direct.facts.direct));
}

/// Runs a program of the host that changes the file.
fn change(path: &std::path::Path, program: &str) {
    let status = std::process::Command::new("sh").args(["-c", program, "sh"]).arg(path).status();
    assert!(status.expect("a shell").success(), "{program}");
}

fn changes_of_an_open_file_by_other_processes_are_reported_and_own_ones_are_not(mut served: ServedTree) {
    let (node, other) = (served.file("file"), served.file("other"));
    let (watched, open) = (served.opened(node, false), served.opened(node, true));
    let _other = served.opened(other, false);
    let watch = watched.watch.clone().expect("the host reports");
    let so_far = || {
        (watch.take)();
        watch.changes()
    };
    let bytes = Memory::filled(4096, 1);
    assert_eq!(served.rig.run(write(&open.direct, 0, bytes.all())), Ok(4096));
    let page_cache = open.buffered.as_ref().unwrap_or(&open.direct);
    assert_eq!(served.rig.run(write(page_cache, 100, bytes.all())), Ok(4096));
    let cut = SetAttributes { size: Some(10), ..SetAttributes::default() };
    assert!(served.ask(None, set(node, cut)).is_ok());
    change(&served.path("other"), "printf x >> \"$1\"");
    assert_eq!(so_far(), 0, "own changes, and those of other files");
    let mut before = 0;
    for program in ["printf x >> \"$1\"", ": > \"$1\"", "truncate -s 10 \"$1\"", "cat /etc/hostname > \"$1\""] {
        change(&served.path("file"), program);
        let now = so_far();
        assert!(now > before, "{program}");
        before = now;
    }
    // Opened again, and closed once.
    let again = served.opened(node, false);
    drop((watched, open));
    change(&served.path("file"), "printf x >> \"$1\"");
    assert!(so_far() > before);
    drop(again);
}
