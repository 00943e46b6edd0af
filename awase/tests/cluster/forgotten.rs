//! An etcd that has lost its data, or begins again with older data.

use awase::membership::{Event, now};
use policy::membership::{Address, Revision, StaleView};
use policy::unit::Instant;

use crate::fake::{Copied, Fake};
use crate::node::{LEASE, Node, SHARDS};

/// Waits until the node is told that it is over, which it is then, and returns when and why.
fn over(node: &Node, me: Address) -> (Instant, StaleView) {
    let told = node.told("that it is over", |event| if let Event::Over(why) = event { Some(*why) } else { None });
    assert!(!node.member().fence().answers(me.incarnation));
    told
}

/// Nothing was told after it.
fn has_ended(node: Node) {
    let events = node.events();
    assert!(matches!(events.last(), Some(Event::Over(_))), "{events:#?}");
    node.leave();
}

/// When it was told that it is alone, and when it served then.
fn waits(node: &Node) -> (Instant, Instant) {
    let alone = node.told("that it is alone", |event| matches!(event, Event::Alone(_)).then_some(())).0;
    (alone, node.told("to serve", |event| matches!(event, Event::Serve(_)).then_some(())).0)
}

#[test]
fn nodes_of_an_etcd_without_its_data_end_for_good_and_who_starts_waits_for_their_leases() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let (a, b) = (Node::join("a", &urls), Node::join("b", &urls));
    let (first, second) = (a.serves(), b.serves());
    b.homes(second.node, usize::from(SHARDS) / 2);
    let until = a.until();
    etcd.begin_again(Copied::nothing());
    let (again, other) = (Node::join("b", &urls), Node::join("c", &urls));
    let began = now();
    over(&a, first);
    over(&b, second);
    let ((alone, served), (_, at_other)) = (waits(&again), waits(&other));
    assert!(served.since(alone) >= LEASE && until < served, "nodes of before could serve");
    assert!(at_other.since(began) < 2 * LEASE, "both wait at the same time");
    again.homes(again.serves().node, usize::from(SHARDS) / 2);
    has_ended(a);
    has_ended(b);
    let began = now();
    Node::join("d", &urls).serves();
    assert!(now().since(began) < LEASE, "others are there");
}

#[test]
fn an_etcd_with_older_data_ends_those_who_have_seen_later_ones() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let a = Node::join("a", &urls);
    let first = a.serves();
    a.homes(first.node, SHARDS.into());
    let copy = etcd.copy();
    let b = Node::join("b", &urls);
    let second = b.serves();
    a.homes(second.node, usize::from(SHARDS) / 2);
    etcd.begin_again(copy);
    assert!(matches!(over(&a, first).1, StaleView::Revision { .. } | StaleView::Map(_)));
    over(&b, second);
    has_ended(a);
    has_ended(b);
}

#[test]
fn a_renewal_by_an_etcd_that_went_back_does_not_count() {
    let etcd = Fake::start(1);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let me = a.serves();
    a.homes(me.node, SHARDS.into());
    let until = a.until();
    // The stream of changes does not end.
    etcd.set_revision(2);
    let (at, why) = over(&a, me);
    assert!(matches!(why, StaleView::Revision { got: Revision(2), .. }) && at < until, "{why:?} at {at}");
    has_ended(a);
}

#[test]
fn an_etcd_in_which_another_node_has_the_number_is_seen_though_its_revisions_have_passed() {
    let etcd = Fake::start(1);
    let a = Node::join("a", std::slice::from_ref(&etcd.url));
    let me = a.serves();
    a.homes(me.node, SHARDS.into());
    let map = etcd.value("/awase/tests/map");
    etcd.hold("range");
    etcd.begin_again(Copied::nothing());
    etcd.set_revision(1000);
    etcd.put("/awase/tests/numbers/0", "z");
    etcd.put("/awase/tests/map", &map);
    etcd.go_on();
    assert_eq!(over(&a, me).1, StaleView::Number);
    has_ended(a);
}

#[test]
fn an_etcd_that_begins_again_with_all_its_data_is_not_noticed() {
    let etcd = Fake::start(1);
    let urls = [etcd.url.clone()];
    let a = Node::join("a", &urls);
    let first = a.serves();
    a.homes(first.node, SHARDS.into());
    etcd.begin_again(etcd.copy());
    let b = Node::join("b", &urls);
    let second = b.serves();
    a.homes(second.node, usize::from(SHARDS) / 2);
    assert!(a.member().fence().answers(first.incarnation));
    assert!(!a.events().iter().any(|event| matches!(event, Event::Over(_) | Event::Stop)), "{:?}", a.events());
}
