//! Registration, homes and clean ends, without faults.

use awase::membership::{Event, Settings, now};
use policy::membership::{Incarnation, NodeId};

use crate::fake::Fake;
use crate::node::{LEASE, Node, SHARDS, settings};

#[test]
fn nodes_register_see_each_other_and_share_the_shards() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let a = Node::join("a", &urls);
    let first = a.serves();
    a.homes(first.node, SHARDS.into());
    let b = Node::join("b", &urls);
    let second = b.serves();
    assert_eq!((a.alive("b"), b.alive("a")), (second, first));
    assert_eq!((first.node, second.node), (NodeId(0), NodeId(1)));
    assert!(second.incarnation > first.incarnation);
    for node in [&a, &b] {
        node.homes(first.node, usize::from(SHARDS) / 2);
        node.homes(second.node, usize::from(SHARDS) / 2);
    }
    assert_eq!(a.all_homes(), b.all_homes());
    assert!(a.member().fence().answers(first.incarnation));
    assert!(!a.member().fence().answers(Incarnation(first.incarnation.0 - 1)));
}

#[test]
fn a_node_that_leaves_stops_is_seen_dead_at_once_and_has_its_number_when_it_returns() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let (a, b) = (Node::join("a", &urls), Node::join("b", &urls));
    let (first, second) = (a.serves(), b.serves());
    a.alive("b");
    let left = now();
    b.leave();
    let dead = a.dead(second);
    assert!(dead.since(left) < LEASE, "it did not wait for the lease");
    a.homes(first.node, SHARDS.into());
    let b = Node::join("b", &urls);
    let again = b.serves();
    assert_eq!(again.node, second.node);
    assert!(again.incarnation > second.incarnation);
    let alive = |event: &Event| matches!(event, Event::Alive { address, .. } if *address == again).then_some(());
    a.told("that it is back", alive);
}

#[test]
fn a_name_that_is_taken_is_reported_and_free_when_its_node_has_left() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let a = Node::join("a", &urls);
    let first = a.serves();
    let second = Node::join("a", &urls);
    second.problem("registered already");
    assert!(!second.member().fence().answers(first.incarnation));
    a.leave();
    assert!(second.serves().incarnation > first.incarnation);
}

#[test]
fn another_number_of_shards_than_the_clusters_is_reported_and_not_served() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let a = Node::join("a", &urls);
    a.homes(a.serves().node, SHARDS.into());
    let b = Node::with(Settings { shards: 9, ..settings("b", &urls) }, |_| {});
    assert!(b.problem("shards").contains("8 shards in etcd, and 9"), "{:?}", b.events());
    assert!(!b.events().iter().any(|event| matches!(event, Event::Serve(_))));
}

#[test]
fn settings_that_are_not_allowed_are_an_error_at_once() {
    let wrong = Settings { etcd: vec!["https://etcd:2379".into()], ..settings("a", &[]) };
    let error = awase::membership::Member::join(wrong, |_| {}).err().expect("no TLS");
    assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
}
