//! Programs that do not do what the library does: the server and others do not notice.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shm::wire::{self, Hello, Offer};
use shm::{Error, Memory, Options};

use crate::cluster::{Cluster, PAGE, SIZE, connect};

fn begin(cluster: &Cluster) -> UnixStream {
    let mut stream = UnixStream::connect(cluster.sandboxes[0].file("awase-data/shm")).expect("connected");
    stream.write_all(&Hello { volume: "s".into() }.encode()).expect("said");
    assert_eq!(wire::receive_answer(&mut stream).expect("an answer"), Ok(SIZE));
    stream
}

fn offer(stream: &UnixStream, offer: Offer, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&offer.encode())], &mut ancillary, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(wire::OFFER_BYTES));
}

fn of(memory: &Memory) -> Offer {
    Offer { base: memory.base().as_ptr() as u64, len: memory.len() as u64 }
}

fn is_healthy(cluster: &Cluster, value: u64) {
    let mapping = cluster.map(0);
    mapping.atomic_u64(0).expect("inside").store(value, SeqCst);
    assert_eq!(cluster.map(0).atomic_u64(0).expect("inside").load(SeqCst), value);
}

#[test]
fn what_is_no_mapping_is_refused_in_words() {
    let cluster = Cluster::new(1, "memory");
    let _server = cluster.start(0);
    let memory = Memory::new(SIZE as usize).expect("memory");
    let small = Memory::new(PAGE).expect("memory");
    let file = File::open("/dev/zero").expect("opened");
    let [userfault, content] = memory.descriptors();
    for (given, descriptors, why) in [
        (of(&memory), vec![file.as_fd(), content], "not a userfaultfd"),
        (of(&memory), vec![userfault, file.as_fd()], "not a memfd sealed"),
        (of(&memory), vec![content, userfault], "not a userfaultfd"),
        (of(&memory), vec![userfault], "two descriptors are needed"),
        (Offer { base: 17, ..of(&memory) }, vec![userfault, content], "whole pages"),
        (of(&small), small.descriptors().to_vec(), "the volume has 33554432 bytes, not 4096"),
        (Offer { len: SIZE, ..of(&small) }, small.descriptors().to_vec(), "not 33554432 bytes long"),
    ] {
        let mut stream = begin(&cluster);
        offer(&stream, given, &descriptors);
        let answer = wire::receive_answer(&mut stream).expect("an answer").expect_err(why);
        assert!(answer.contains(why), "{answer}");
    }
    // More than are taken: the host closes the rest.
    let mut stream = begin(&cluster);
    offer(&stream, of(&memory), &[userfault, content, content, content, content]);
    wire::receive_answer(&mut stream).expect("an answer").expect("two are taken");
    drop(stream);
    let error = Options::at(cluster.sandboxes[0].file("awase-data/shm")).open("t").expect_err("no such volume");
    assert_eq!(error.to_string(), "the server refuses: no shared volume is called \"t\"; there are: \"s\"");
    let error = Options::at("/nowhere/shm").open("s").expect_err("no such server");
    assert!(matches!(error, Error::NoServer { .. }), "{error}");
    is_healthy(&cluster, 3);
}

#[test]
fn only_the_servers_user_may_map() {
    let cluster = Cluster::new(1, "memory");
    let _server = cluster.start(0);
    for name in ["awase-data/shm", "awase-data/shm.lock"] {
        let mode = cluster.sandboxes[0].file(name).metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn programs_that_say_nothing_or_nonsense_or_leave_keep_nobody_out() {
    let cluster = Cluster::new(1, "memory");
    let server = cluster.start(0);
    let path = cluster.sandboxes[0].file("awase-data/shm");
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&path).expect("connected")).collect();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 2000], b"awshm\0\0\x01\xff\xff"] {
        let mut stream = UnixStream::connect(&path).expect("connected");
        // It may have been disconnected already.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    for _ in 0..20 {
        drop(begin(&cluster));
    }
    is_healthy(&cluster, 5);
    drop(silent);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.id())).expect("its descriptors").count();
    let before = descriptors();
    for _ in 0..20 {
        drop(cluster.map(0));
    }
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while descriptors() > before + 3 {
        assert!(std::time::Instant::now() < limit, "descriptors are left: {} after {before}", descriptors());
        thread::yield_now();
    }
}

#[test]
fn a_program_that_pulls_its_memory_away_or_answers_its_faults_itself_harms_nobody() {
    let cluster = Cluster::new(2, "memory");
    let servers = cluster.all();
    let good = cluster.map(1);
    good.atomic_u64(0).expect("inside").store(1, SeqCst);
    for what in 0..6 {
        let memory = Memory::new(SIZE as usize).expect("memory");
        let mut stream = begin(&cluster);
        offer(&stream, of(&memory), &memory.descriptors());
        wire::receive_answer(&mut stream).expect("an answer").expect("taken");
        let word = |page: usize| {
            let at = memory.base().as_ptr().wrapping_add(page * PAGE).cast::<std::sync::atomic::AtomicU64>();
            // SAFETY: it is mapped as long as `memory` lives.
            unsafe { &*at }
        };
        let before = good.atomic_u64(0).expect("inside").load(SeqCst);
        assert_eq!(word(0).fetch_add(1, SeqCst), before);
        match what {
            // Its pages are gone before they are wanted.
            0 => memory.clear().expect("cleared"),
            1 => memory.fail().expect("mapped otherwise"),
            // What it may only read it changes behind the mapping.
            2 => {
                assert_eq!(word(1).load(SeqCst), 0);
                let [_, content] = memory.descriptors();
                rustix::io::pwrite(content, &[9; 8], PAGE as u64).expect("written");
            }
            // Requests that there are none of, and a flood of those that there are.
            3 => stream.write_all(&[7; 4096]).expect("said"),
            4 => (0..1000).for_each(|_| stream.write_all(&wire::FLUSH.to_le_bytes()).expect("said")),
            // Faults that wait when it leaves.
            _ => {
                let [userfault, _] = memory.descriptors();
                rustix::fs::fcntl_setfl(userfault, rustix::fs::OFlags::empty()).expect("made to wait");
            }
        }
        drop(stream);
        assert_eq!(good.atomic_u64(PAGE).expect("inside").load(SeqCst), 0, "what was only read is not taken from it");
        let mut client = connect(&servers[1]);
        client.write(2 * PAGE as u64, &[what; 8]).expect("written");
        // What it had written in the first page may be anything of its own, or lost; others use the page.
        client.write(0, &[0; PAGE]).expect("written anew");
        good.atomic_u64(0).expect("inside").store(1, SeqCst);
        is_healthy(&cluster, 1);
    }
}
