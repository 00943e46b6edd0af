//! Mappings of a program (here a thread of the test) that this process fills, on both engines.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use machine::linux::userfault::{Refusal, Userfault};
use machine::mapping::{Fault, Mapping, PAGE_BYTES};
use machine::{Errno, Op};
use testkit::skip;

use crate::rig::{Memory, Rig, on_both_engines};

on_both_engines!(
    an_absent_page_is_reported_and_filled,
    adjacent_pages_are_filled_at_once_and_may_only_be_read,
    adjacent_pages_are_filled_from_where_they_are,
    a_write_of_a_read_only_page_is_reported_and_allowed,
    what_was_written_is_copied_out_after_writes_are_forbidden,
    a_page_that_was_removed_is_reported_again_with_all_its_threads,
    a_poisoned_page_is_a_signal_until_it_is_filled,
    waiting_for_faults_is_cancelled,
    a_program_that_makes_reads_wait_ends_its_faults_only,
);

const PAGES: usize = 40;

/// A program's memory, and what it has handed over.
struct Program {
    memory: Arc<shm::Memory>,
    mapping: Userfault,
}

fn duplicates(memory: &shm::Memory) -> [OwnedFd; 2] {
    memory.descriptors().map(|descriptor| descriptor.try_clone_to_owned().expect("a duplicate"))
}

fn program() -> Program {
    let memory = shm::Memory::new(PAGES * PAGE_BYTES).expect("memory");
    let [userfault, content] = duplicates(&memory);
    let (base, len) = (memory.base().as_ptr() as u64, memory.len() as u64);
    let mapping = Userfault::adopt(userfault, content, base, len).expect("adopted");
    Program { memory: Arc::new(memory), mapping }
}

impl Program {
    /// Does something to the first word of a page, on another thread.
    fn touch(&self, page: usize, how: fn(&AtomicU64) -> u64) -> thread::JoinHandle<u64> {
        let memory = Arc::clone(&self.memory);
        thread::spawn(move || {
            let at = memory.base().as_ptr().wrapping_add(page * PAGE_BYTES).cast::<AtomicU64>();
            // SAFETY: the memory is mapped as long as this thread has its share of it.
            how(unsafe { &*at })
        })
    }

    fn next(&self, rig: &mut Rig) -> Vec<Fault> {
        let memory = Memory::new(256);
        let received = rig.run(Op::Faults { of: self.mapping.faults(), into: memory.all() }).expect("faults");
        self.mapping.decode(&memory.bytes()[..received as usize])
    }
}

fn read(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

fn add(word: &AtomicU64) -> u64 {
    word.fetch_add(1, Ordering::SeqCst)
}

fn page_of(word: u64) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn content(program: &Program, page: u64) -> u64 {
    let mut bytes = [0; PAGE_BYTES];
    program.mapping.copy_out(page, &mut bytes).expect("copied");
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

fn an_absent_page_is_reported_and_filled(mut rig: Rig) {
    let program = program();
    let reader = program.touch(3, read);
    assert_eq!(program.next(&mut rig), [Fault { page: 3, is_write: false }]);
    program.mapping.fill(3, &page_of(77), false).expect("filled");
    assert_eq!(reader.join().expect("read"), 77);
    let writer = program.touch(4, add);
    assert_eq!(program.next(&mut rig), [Fault { page: 4, is_write: true }]);
    program.mapping.fill(4, &page_of(5), true).expect("filled");
    assert_eq!(writer.join().expect("added"), 5);
    assert_eq!(program.touch(4, add).join().expect("added without a fault"), 6);
    assert_eq!(content(&program, 4), 7);
}

fn adjacent_pages_are_filled_at_once_and_may_only_be_read(mut rig: Rig) {
    let program = program();
    let reader = program.touch(3, read);
    assert_eq!(program.next(&mut rig), [Fault { page: 3, is_write: false }]);
    let pages = [2, 3, 4].map(page_of);
    assert_eq!(program.mapping.fill_run(2, &pages.each_ref()), 3);
    assert_eq!(reader.join().expect("read"), 3);
    for page in [2, 4] {
        assert_eq!(program.touch(page, read).join().expect("read without a fault"), page as u64);
    }
    let writer = program.touch(4, add);
    assert_eq!(program.next(&mut rig), [Fault { page: 4, is_write: true }]);
    program.mapping.allow_writes(4).expect("allowed");
    assert_eq!(writer.join().expect("added"), 4);
    let filled = program.mapping.fill_run(4, &pages.each_ref());
    assert_eq!((filled, content(&program, 4)), (0, 5), "the first is there already");
}

fn adjacent_pages_are_filled_from_where_they_are(_rig: Rig) {
    let source: Vec<[u8; PAGE_BYTES]> = (0..30).map(page_of).collect();
    // In one piece, one by one, in another piece, and one more.
    let order: Vec<usize> = (0..10).chain([12, 11]).chain(14..24).chain([26]).collect();
    let pages: Vec<&[u8; PAGE_BYTES]> = order.iter().map(|number| &source[*number]).collect();
    for (there, filled) in [(None, 23), (Some(4), 0), (Some(11), 10), (Some(15), 12), (Some(22), 22)] {
        let program = program();
        if let Some(page) = there {
            program.mapping.fill(5 + page, &page_of(77), false).expect("filled");
        }
        assert_eq!(program.mapping.fill_run(5, &pages), filled, "{there:?} is there already");
        for (page, number) in (5..).zip(&order).take(filled) {
            assert_eq!(content(&program, page), *number as u64, "page {page}, {there:?}");
        }
    }
}

fn a_write_of_a_read_only_page_is_reported_and_allowed(mut rig: Rig) {
    let program = program();
    program.mapping.fill(1, &page_of(10), false).expect("filled before it was asked for");
    assert_eq!(program.touch(1, read).join().expect("read without a fault"), 10);
    let writer = program.touch(1, add);
    assert_eq!(program.next(&mut rig), [Fault { page: 1, is_write: true }]);
    assert_eq!(content(&program, 1), 10, "not written yet");
    program.mapping.allow_writes(1).expect("allowed");
    assert_eq!(writer.join().expect("added"), 10);
    assert_eq!(content(&program, 1), 11);
}

fn what_was_written_is_copied_out_after_writes_are_forbidden(mut rig: Rig) {
    let program = program();
    program.mapping.fill(0, &page_of(0), true).expect("filled");
    let writer = program.touch(0, |word| {
        let mut last = 0;
        while last < 1_000_000 {
            last = word.fetch_add(1, Ordering::SeqCst);
        }
        last
    });
    for _ in 0..100 {
        program.mapping.forbid_writes(0).expect("forbidden");
        let first = content(&program, 0);
        assert_eq!(content(&program, 0), first, "nobody writes");
        program.mapping.allow_writes(0).expect("allowed");
    }
    assert_eq!(writer.join().expect("ended"), 1_000_000);
    // Threads that met the protection have tried again by themselves.
    rig.machine.enter(machine::Park::No, &mut rig.done);
}

fn a_page_that_was_removed_is_reported_again_with_all_its_threads(mut rig: Rig) {
    let program = program();
    for is_writable in [false, true, false] {
        program.mapping.fill(2, &page_of(1), is_writable).expect("filled");
        assert_eq!(program.touch(2, read).join().expect("read"), 1);
        program.mapping.forbid_writes(2).expect("forbidden");
        assert_eq!(content(&program, 2), 1);
        program.mapping.remove(2).expect("removed");
        let threads = [program.touch(2, read), program.touch(2, read), program.touch(2, add)];
        let mut seen = 0;
        while seen < threads.len() {
            seen += program.next(&mut rig).len();
        }
        program.mapping.fill(2, &page_of(9), true).expect("filled with something else");
        for thread in threads {
            assert!(thread.join().expect("went on") >= 9, "never zeroes");
        }
        program.mapping.remove(2).expect("removed");
    }
}

fn a_poisoned_page_is_a_signal_until_it_is_filled(mut rig: Rig) {
    let program = program();
    // A read(2) into the page tells of the signal by its error, without one.
    let read_into = |page: usize| {
        let memory = Arc::clone(&program.memory);
        thread::spawn(move || {
            let zeroes = std::fs::File::open("/dev/zero").expect("opened");
            let at = memory.base().as_ptr().wrapping_add(page * PAGE_BYTES);
            // SAFETY: 8 bytes of the mapping, which lives as long as this thread has its share of it.
            let count = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zeroes), at.cast(), 8) };
            (count, std::io::Error::last_os_error().raw_os_error())
        })
    };
    if program.memory.is_user_mode_only() {
        skip!("the host permits only faults of programs themselves");
    }
    // Before and after the page was there.
    for was_written in [false, true] {
        if was_written {
            program.mapping.fill(5, &page_of(1), true).expect("filled");
            program.mapping.forbid_writes(5).expect("forbidden");
            program.mapping.remove(5).expect("removed");
        }
        let reader = read_into(5);
        assert_eq!(program.next(&mut rig).len(), 1);
        program.mapping.poison(5).expect("poisoned");
        assert_eq!(reader.join().expect("ended"), (-1, Some(libc::EFAULT)), "written: {was_written}");
        assert_eq!(read_into(5).join().expect("ended"), (-1, Some(libc::EFAULT)));
        program.mapping.fill(5, &page_of(8), was_written).expect("filled");
        assert_eq!(program.touch(5, read).join().expect("read"), 8);
        program.mapping.remove(5).expect("removed");
        let reader = program.touch(5, read);
        assert_eq!(program.next(&mut rig).len(), 1, "reported again");
        program.mapping.fill(5, &page_of(7), true).expect("filled");
        assert_eq!(reader.join().expect("read"), 7);
        program.mapping.remove(5).expect("removed");
    }
    // Before it is handed over again, by a program that has locked it, too.
    // SAFETY: it locks the program's memory as it comes.
    let locked = unsafe { libc::mlock2(program.memory.base().as_ptr().cast(), PAGE_BYTES, libc::MLOCK_ONFAULT) };
    assert_eq!(locked, 0);
    program.mapping.poison(5).expect("poisoned");
    program.memory.clear().expect("cleared");
    let reader = program.touch(5, read);
    assert_eq!(program.next(&mut rig).len(), 1, "nothing is left of the poison");
    program.mapping.fill(5, &page_of(6), true).expect("filled");
    assert_eq!(reader.join().expect("read"), 6);
}

fn waiting_for_faults_is_cancelled(mut rig: Rig) {
    let program = program();
    let memory = Memory::new(256);
    let token = rig.start(Op::Faults { of: program.mapping.faults(), into: memory.all() });
    rig.machine.enter(machine::Park::No, &mut rig.done);
    rig.machine.cancel_faults(program.mapping.faults());
    assert_eq!(rig.wait(token), Err(Errno::CANCELLED));
    let reader = program.touch(0, read);
    assert_eq!(program.next(&mut rig).len(), 1, "it can be waited for again");
    program.mapping.fill(0, &page_of(3), false).expect("filled");
    assert_eq!(reader.join().expect("read"), 3);
}

fn a_program_that_makes_reads_wait_ends_its_faults_only(mut rig: Rig) {
    let program = program();
    let [userfault, _] = duplicates(&program.memory);
    rustix::fs::fcntl_setfl(&userfault, rustix::fs::OFlags::empty()).expect("made to wait");
    let memory = Memory::new(256);
    assert_eq!(rig.run(Op::Faults { of: program.mapping.faults(), into: memory.all() }), Err(Errno::INVALID));
}

/// A call on what a program has made of its memory.
type Change = fn(&Userfault) -> Result<(), Errno>;

#[test]
fn a_program_that_has_unmapped_its_memory_or_mapped_it_otherwise_gets_nothing() {
    let program = program();
    program.mapping.fill(1, &page_of(4), true).expect("filled");
    program.memory.fail().expect("mapped otherwise");
    let changes: [Change; 3] = [|of| of.fill(0, &page_of(1), true), |of| of.forbid_writes(1), |of| of.poison(0)];
    for change in changes {
        change(&program.mapping).expect_err("it is mapped otherwise");
    }
    assert_eq!(content(&program, 1), 4, "what was written is still there");
    program.mapping.remove(1).expect("removed");
}

#[test]
fn a_page_that_somebody_else_has_emptied_cannot_be_written_on_or_read_and_is_not_poisoned() {
    let Program { memory: _memory, mapping } = program();
    let is_intact = Arc::new(AtomicBool::new(true));
    let known = Arc::clone(&is_intact);
    let mapping = mapping.guarded(Box::new(move || known.load(Ordering::SeqCst)));
    mapping.fill(1, &page_of(4), false).expect("filled");
    mapping.allow_writes(1).expect("allowed");
    mapping.forbid_writes(1).expect("forbidden");
    is_intact.store(false, Ordering::SeqCst);
    mapping.remove(1).expect("emptied");
    assert_eq!(mapping.allow_writes(1), Err(Errno::IO));
    assert_eq!(mapping.copy_out(1, &mut [1; PAGE_BYTES]), Err(Errno::IO));
    assert_eq!(mapping.poison(1), Err(Errno::IO));
}

#[test]
fn descriptors_of_other_kinds_are_refused() {
    let len = (PAGES * PAGE_BYTES) as u64;
    let memory = shm::Memory::new(len as usize).expect("memory");
    let file = || OwnedFd::from(tempfile::tempfile().expect("a file"));
    let adopt = |userfault: OwnedFd, content: OwnedFd, base: u64, len: u64| {
        Userfault::adopt(userfault, content, base, len).err()
    };
    let good = || duplicates(&memory);
    let refused = |given: fn([OwnedFd; 2], OwnedFd) -> [OwnedFd; 2]| {
        let [userfault, content] = given(good(), file());
        adopt(userfault, content, memory.base().as_ptr() as u64, len)
    };
    assert_eq!(refused(|[_, content], file| [file, content]), Some(Refusal::NoUserfaultfd));
    assert_eq!(refused(|[userfault, _], file| [userfault, file]), Some(Refusal::NoSealedMemory));
    assert_eq!(refused(|[userfault, content], _| [content, userfault]), Some(Refusal::NoUserfaultfd));
    for (base, len) in [(0x1000, len * 2), (0x1001, len), (0x1000, 0), (u64::MAX - 0xfff, len), (0, len - 1)] {
        let [userfault, content] = good();
        assert_eq!(adopt(userfault, content, base, len), Some(Refusal::WrongSize(len)), "{base} {len}");
    }
    let [userfault, _] = good();
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&unsealed, len).expect("sized");
    assert_eq!(adopt(userfault, unsealed, 0x1000, len), Some(Refusal::NoSealedMemory));
}
