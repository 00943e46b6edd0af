//! With Debian's etcd.

use std::net::TcpListener;

use awase::membership::{Event, now};
use tempfile::tempdir;
use testkit::etcd::Etcd;
use testkit::skip;

use crate::node::{LEASE, Node, SHARDS};
use crate::started::Process;

macro_rules! etcd {
    ($directory:ident) => {
        match Etcd::start($directory.path()) {
            Some(etcd) => etcd,
            None => skip!("etcd is not installed (Debian: etcd-server)"),
        }
    };
}

#[test]
fn a_killed_process_is_seen_dead_when_its_lease_ends_and_the_other_goes_on_within_two() {
    let directory = tempdir().expect("a directory");
    let etcd = etcd!(directory);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let first = a.serves();
    let mut b = Process::start("b", &etcd.url);
    let second = b.serves();
    assert_eq!(a.alive("b"), second);
    a.homes(second.node, usize::from(SHARDS) / 2);
    b.signal(libc::SIGKILL);
    let killed = now();
    let dead = a.dead(second);
    a.homes(first.node, SHARDS.into());
    println!("seen dead {:?} after the kill, home of all {:?} after it", dead.since(killed), now().since(killed));
    assert!(now().since(killed) < 2 * LEASE);
    assert!(a.member().fence().answers(first.incarnation));
}

#[test]
fn a_process_stopped_for_longer_than_its_lease_answers_nothing_before_it_has_registered_again() {
    let directory = tempdir().expect("a directory");
    let etcd = etcd!(directory);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let first = a.serves();
    let mut b = Process::start("b", &etcd.url);
    let second = b.serves();
    a.homes(second.node, usize::from(SHARDS) / 2);
    assert!(b.answers(second.incarnation));
    b.signal(libc::SIGSTOP);
    a.dead(second);
    a.homes(first.node, SHARDS.into());
    b.signal(libc::SIGCONT);
    for _ in 0..100 {
        assert!(!b.answers(second.incarnation), "it was resumed after its lease");
    }
    let again = b.serves();
    assert!(again.incarnation > second.incarnation);
    assert!(!b.answers(second.incarnation) && b.answers(again.incarnation));
    a.homes(again.node, usize::from(SHARDS) / 2);
}

#[test]
fn an_etcd_that_is_killed_and_started_again_finds_the_nodes_and_they_it() {
    let directory = tempdir().expect("a directory");
    let etcd = etcd!(directory);
    let (a, b) = (Node::join("a", std::slice::from_ref(&etcd.url)), Node::join("b", std::slice::from_ref(&etcd.url)));
    let (first, second) = (a.serves(), b.serves());
    a.homes(second.node, usize::from(SHARDS) / 2);
    let etcd = etcd.restart(directory.path());
    a.told("that etcd is back", |event| (*event == Event::Recovered).then_some(()));
    let c = Node::join("c", std::slice::from_ref(&etcd.url));
    let third = c.serves();
    for node in [&a, &b] {
        assert_eq!(node.alive("c"), third);
    }
    // In time, or with a new epoch.
    for node in [first.node, second.node, third.node] {
        c.homes_in(node, 2..=3);
    }
}

#[test]
fn with_one_of_two_endpoints_dead_the_lease_is_renewed() {
    let directory = tempdir().expect("a directory");
    let etcd = etcd!(directory);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = (format!("http://{}", silent.local_addr().expect("an address")), silent);
    let a = Node::join("a", &[silent.0.clone(), etcd.url.clone()]);
    let b = Node::join("b", std::slice::from_ref(&etcd.url));
    let (first, second) = (a.serves(), b.serves());
    a.homes(second.node, usize::from(SHARDS) / 2);
    // Another node ends without a word: while its lease ends, these renew theirs.
    let c = Node::join("c", &[etcd.url.clone(), silent.0.clone()]);
    let third = c.serves();
    a.alive("c");
    let until = c.until();
    drop(c);
    let dead = a.dead(third);
    assert!(until < dead, "{until} is not before {dead}");
    a.homes(second.node, usize::from(SHARDS) / 2);
    assert!(a.member().fence().answers(first.incarnation) && b.member().fence().answers(second.incarnation));
    assert!(!a.events().contains(&Event::Stop), "{:?}", a.events());
    b.leave();
    a.homes(first.node, SHARDS.into());
}
