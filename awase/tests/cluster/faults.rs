//! An etcd that is slow, forgets, fails and is gone.

use std::net::TcpListener;
use std::sync::Arc;

use awase::membership::{Event, Problem, Settings, now};
use policy::membership::{Config, NodeId};

use crate::fake::{Fake, Fault};
use crate::node::{LEASE, Node, SHARDS, settings};

/// A node whose question has failed so goes on as if nothing had been, and reports it once.
fn survives(path: &str, fault: &Fault, problem: &str) {
    let etcd = Fake::start(1);
    etcd.fail(path, fault.clone(), 3);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    etcd.all_failed();
    a.homes(a.serves().node, SHARDS.into());
    a.problem(problem);
    let events = a.events();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Problem(_))).count(), 1, "{events:#?}");
    a.told("that it is over", |event| (*event == Event::Recovered).then_some(()));
}

#[test]
fn a_question_that_fails_is_reported_once_and_asked_again() {
    let garbage = Fault::Body("<html>".into());
    let long = Fault::Body("1".repeat((1 << 20) + 1));
    let cases = [
        ("grant", Fault::Refused, "cannot be reached"),
        ("txn", Fault::Status(503), "refuses the request (503): etcdserver: as it was told"),
        ("range", garbage, "not etcd's"),
        ("range", long, "more than 1048576 bytes"),
        ("watch", Fault::Status(500), "(500)"),
        ("watch", Fault::Refused, "cannot be reached"),
    ];
    std::thread::scope(|scope| {
        for (path, fault, problem) in &cases {
            scope.spawn(move || survives(path, fault, problem));
        }
    });
}

#[test]
fn what_was_done_without_an_answer_is_not_done_twice() {
    let etcd = Fake::start(1);
    // The number, then the registration.
    etcd.fail("txn", Fault::Unanswered, 2);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let me = a.serves();
    etcd.all_failed();
    assert_eq!(me.node, NodeId(0));
    let b = Node::join("b", std::slice::from_ref(&etcd.url));
    assert_eq!((b.alive("a"), b.serves().node), (me, NodeId(1)));
    let taken = |event: &Event| matches!(event, Event::Problem(Problem::Occupied(_)));
    assert!(!a.events().iter().any(taken), "its own key: {:?}", a.events());
}

#[test]
fn a_renewal_answered_late_counts_from_when_it_was_sent() {
    let etcd = Fake::start(1);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let me = a.serves();
    // Less than the time that an answer has: a quarter of the lease.
    etcd.fail("keepalive", Fault::Late(LEASE / 6), 1);
    let late = etcd.late();
    let before = a.until();
    while a.until() == before {
        assert!(now().since(late) < LEASE, "it is not renewed");
        std::thread::yield_now();
    }
    let usable = LEASE - Config::new(me.node, SHARDS, LEASE).margin(LEASE);
    // By the next renewal, if that was faster than this thread.
    let (until, renewed) = (a.until(), etcd.renewed());
    assert!(until <= renewed + usable, "{until} was counted from later than {renewed}");
}

#[test]
fn a_node_whose_renewals_are_not_answered_stops_before_its_lease_ends_and_registers_again() {
    let etcd = Fake::start(1);
    // An eighth of it is what this thread may be late.
    let longer = Settings { lease: 4 * LEASE, ..settings("a", std::slice::from_ref(&etcd.url)) };
    let a = Node::with(longer, |_| {});
    let me = a.serves();
    etcd.hold("keepalive");
    let granted = a.until();
    let (stopped, ()) = a.told("to stop", |event| (*event == Event::Stop).then_some(()));
    assert!(!a.member().fence().answers(me.incarnation) && stopped >= granted);
    let expired = etcd.expired("/awase/tests/members/a");
    assert!(stopped < expired, "stopped at {stopped}, and the lease ended at {expired}");
    etcd.go_on();
    let again = |event: &Event| matches!(event, Event::Serve(new) if *new != me).then_some(());
    a.told("to serve with a new epoch", again);
    assert!(!a.member().fence().answers(me.incarnation), "the old one is over");
}

#[test]
fn a_node_that_ends_without_a_word_is_over_before_others_see_it_dead_and_take_over() {
    let etcd = Fake::start(1);
    let (a, b) = (Node::join("a", std::slice::from_ref(&etcd.url)), Node::join("b", std::slice::from_ref(&etcd.url)));
    let (me, second) = (a.serves(), b.serves());
    b.homes(me.node, usize::from(SHARDS) / 2);
    let fence = Arc::clone(a.member().fence());
    let until = a.until();
    drop(a);
    assert!(!fence.answers(me.incarnation));
    let dead = b.dead(me);
    assert!(until < dead, "{until} is not before {dead}");
    b.homes(second.node, SHARDS.into());
    assert!(now().since(until) < LEASE);
}

/// So that who joins need not wait for a lease.
fn another_member(etcd: &Fake) {
    etcd.put("/awase/tests/members/z", r#"{"node":63,"address":"127.0.0.1:1","disks":{}}"#);
}

#[test]
fn a_node_with_other_disks_than_one_that_registers_at_the_same_time_does_not_join() {
    let etcd = Fake::start(1);
    etcd.put("/awase/tests/numbers/0", "a");
    etcd.hold("txn");
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    // It has looked who is there.
    etcd.holds();
    etcd.put("/awase/tests/members/z", r#"{"node":63,"address":"127.0.0.1:1","disks":{"s":512}}"#);
    etcd.go_on();
    a.problem("\"s\" of node \"z\" is not configured here");
    assert!(!a.events().iter().any(|event| matches!(event, Event::Serve(_))));
    a.leave();
}

#[test]
fn changes_that_etcd_has_compacted_are_seen_all_the_same() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    another_member(&etcd);
    etcd.hold("watch");
    // With its long lease it would not notice by silence.
    let a = Node::with(Settings { lease: 60 * LEASE, ..settings("a", &urls) }, |_| {});
    // Its watch begins where nothing is known any more.
    etcd.holds();
    etcd.put("/awase/tests/other", "x");
    etcd.compact();
    etcd.go_on();
    a.homes(a.serves().node, usize::from(SHARDS) / 2);
    let b = Node::join("b", &urls);
    let second = b.serves();
    assert_eq!(a.alive("b"), second);
    a.homes_in(second.node, 1..=2);
}

#[test]
fn of_several_endpoints_those_that_are_dead_silent_or_of_another_cluster_are_passed_over() {
    let (etcd, other) = (Fake::start(1), Fake::start(2));
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = (format!("http://{}", silent.local_addr().expect("an address")), silent);
    // Were it followed, nothing there would look old.
    other.set_revision(1000);
    another_member(&etcd);
    let a = Node::join("a", &[closed, silent.0.clone(), etcd.url.clone(), other.url.clone()]);
    let me = a.serves();
    a.homes(me.node, usize::from(SHARDS) / 2);
    assert!(!a.events().iter().any(|event| matches!(event, Event::Problem(_))), "{:?}", a.events());
    // The one that answers goes: the other cluster's is not asked instead.
    etcd.down();
    let (stopped, ()) = a.told("to stop", |event| (*event == Event::Stop).then_some(()));
    assert!(!a.member().fence().answers(me.incarnation), "{stopped}");
    a.problem("");
    assert_eq!(a.events().iter().filter(|event| matches!(event, Event::Serve(_))).count(), 1, "{:?}", a.events());
    let b = Node::join("b", std::slice::from_ref(&other.url));
    assert_eq!(b.serves().node, NodeId(0), "nobody has registered there");
}
