//! What a registered node does about what it sees and about its lease.

use std::time::Duration;

use policy::membership::homes::{Home, Map, Release};
use policy::membership::{
    Action, Address, Ask, Change, Config, EpochError, Incarnation, Members, Membership, NodeId, Reply, Revision,
    StaleView,
};
use policy::unit::Instant;

const NOW: Instant = Instant::ZERO;
const LEASE: Duration = Duration::from_secs(2);
const ME: Address = address(0, 10);
const OTHER: Address = address(1, 12);

const fn address(node: u16, epoch: u32) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation(epoch) }
}

fn map(homes: [Address; 2]) -> Map {
    Map(homes.map(|at| Home { at, since: Incarnation(1) }).to_vec())
}

fn members(of: impl IntoIterator<Item = Address>) -> Members {
    of.into_iter().map(|member| (member.node, member.incarnation)).collect()
}

/// Node 0, which sees these and has a lease.
fn leased(revision: u64, of: impl IntoIterator<Item = Address>) -> Membership {
    let mut membership = Membership::new(Config::new(ME.node, 2, LEASE));
    assert_eq!(membership.on_tick(NOW), [Action::Ask(Ask::Grant)]);
    membership.on_snapshot(NOW, Revision(revision), members(of), None);
    membership.on_reply(NOW, NOW, Reply::Leased(LEASE));
    membership
}

/// Node 0 in epoch 10 and node 1 in epoch 12; the map has version 14.
fn registered() -> Membership {
    let mut membership = leased(8, [address(1, 7)]);
    assert_eq!(membership.on_reply(NOW, NOW, Reply::Registered(ME.incarnation)), []);
    let actions =
        membership.on_snapshot(NOW, Revision(20), members([ME, OTHER]), Some((Revision(14), map([ME, OTHER]))));
    assert!(actions.contains(&Action::Serve(ME)), "{actions:?}");
    assert!(actions.contains(&Action::Alive(OTHER)) && !actions.contains(&Action::Alive(ME)), "{actions:?}");
    membership
}

#[test]
fn of_a_node_that_has_registered_anew_the_old_epoch_is_dead_and_its_shards_get_a_home() {
    let mut membership = registered();
    let new = address(1, 22);
    let changes = [(Revision(21), Change::Left(OTHER.node)), (Revision(22), Change::Joined(new))];
    let actions = membership.on_changes(NOW, Revision(22), changes);
    assert_eq!(actions[..2], [Action::Dead(OTHER), Action::Alive(new)]);
    let [Action::Ask(Ask::Propose { version: Revision(14), map })] = &actions[2..] else { panic!("{actions:?}") };
    assert_eq!(map.0.iter().map(|home| home.at).collect::<Vec<_>>(), [ME, new]);
}

#[test]
fn changes_older_than_what_was_seen_are_ignored() {
    let mut membership = registered();
    assert_eq!(membership.on_changes(NOW, Revision(18), [(Revision(18), Change::Left(OTHER.node))]), []);
    assert!(membership.answers(NOW));
    let left = [(Revision(21), Change::Left(OTHER.node))];
    assert_eq!(
        membership.on_changes(NOW, Revision(21), left).first(),
        Some(&Action::Dead(OTHER)),
        "it was a member still"
    );
}

/// It does nothing more, whatever comes.
fn is_over(mut membership: Membership, actions: &[Action], stale: StaleView) {
    assert_eq!(actions, [Action::Over(stale)]);
    let later = NOW + 10 * LEASE;
    assert_eq!((membership.answers(NOW), membership.address(), membership.next()), (false, None, None));
    assert_eq!(membership.on_reply(NOW, NOW, Reply::Leased(LEASE)), []);
    assert_eq!((membership.on_tick(later), membership.on_leave(later)), (vec![], vec![]));
}

#[test]
fn whoever_sees_that_the_arbiter_went_back_is_over_for_good() {
    let (seen, got) = (Revision(20), Revision(19));
    let stale = StaleView::Revision { seen, got };
    let mut membership = registered();
    let actions = membership.on_snapshot(NOW, got, members([ME, OTHER]), Some((Revision(14), map([ME, OTHER]))));
    is_over(membership, &actions, stale);

    // The revision may have passed what was seen; the map cannot be an earlier one, nor another of one version.
    for map in [None, Some((Revision(13), map([ME, OTHER]))), Some((Revision(14), map([OTHER, ME])))] {
        let mut membership = registered();
        let actions = membership.on_snapshot(NOW, Revision(21), members([ME, OTHER]), map);
        is_over(membership, &actions, StaleView::Map(Revision(14)));
    }

    let mut membership = registered();
    let renew = membership.next().expect("a renewal");
    assert_eq!(membership.on_tick(renew), [Action::Ask(Ask::Renew { seen })]);
    let actions = membership.on_reply(renew, renew, Reply::Stale(stale));
    is_over(membership, &actions, stale);

    let mut membership = leased(8, [OTHER]);
    let actions = membership.on_reply(NOW, NOW, Reply::Stale(StaleView::Number));
    is_over(membership, &actions, StaleView::Number);
}

#[test]
fn a_node_that_is_alone_registers_after_a_lease_and_at_once_when_another_appears() {
    let seen = Revision(8);
    // The key of its own earlier life is none of another.
    let mut membership = Membership::new(Config::new(ME.node, 2, LEASE));
    membership.on_tick(NOW);
    assert_eq!(membership.on_reply(NOW, NOW, Reply::Leased(LEASE)), [], "it knows nobody yet");
    let later = NOW + LEASE / 8;
    assert_eq!(membership.on_snapshot(later, seen, members([address(0, 3)]), None), [Action::Alone]);
    let mut other = membership.clone();
    let (mut now, mut actions) = (later, Vec::new());
    while actions.is_empty() {
        now = membership.next().expect("it goes on").max(now);
        actions = membership.on_tick(now);
        if let [Action::Ask(Ask::Renew { .. })] = actions[..] {
            actions = membership.on_reply(now, now, Reply::Leased(LEASE));
        }
    }
    assert_eq!(actions, [Action::Ask(Ask::Register { seen })]);
    assert_eq!(now, NOW + LEASE, "since it has its lease");

    let changes = [(Revision(9), Change::Joined(address(1, 9)))];
    let actions = other.on_changes(later, Revision(9), changes);
    assert!(actions.contains(&Action::Ask(Ask::Register { seen: Revision(9) })), "{actions:?}");
}

#[test]
fn a_node_whose_lease_was_lost_with_all_others_waits_again() {
    let mut membership = registered();
    let late = NOW + 3 * LEASE;
    let actions = membership.on_snapshot(late, Revision(23), members([]), Some((Revision(14), map([ME, OTHER]))));
    assert!(actions.contains(&Action::Stop) && actions.contains(&Action::Alone), "{actions:?}");
    assert_eq!(membership.on_reply(late, late, Reply::Leased(LEASE)), []);
    let mut actions = membership.on_tick(late + LEASE);
    if let [Action::Ask(Ask::Renew { .. })] = actions[..] {
        actions = membership.on_reply(late + LEASE, late + LEASE, Reply::Leased(LEASE));
    }
    assert_eq!(actions, [Action::Ask(Ask::Register { seen: Revision(23) })]);
}

#[test]
fn it_stops_at_the_margin_and_when_it_sees_its_own_key_deleted() {
    let mut membership = registered();
    let config = Config::new(ME.node, 2, LEASE);
    let until = NOW + (LEASE - config.margin(LEASE));
    assert_eq!(membership.until(), Some(until));
    assert!(config.margin(LEASE) >= LEASE / 8 && config.margin(LEASE) < LEASE / 4);
    assert!(!membership.answers(until));
    assert_eq!(membership.on_tick(until).first(), Some(&Action::Stop));

    let mut membership = registered();
    let actions = membership.on_changes(NOW, Revision(21), [(Revision(21), Change::Left(ME.node))]);
    assert_eq!(actions, [Action::Stop, Action::Ask(Ask::Grant)]);
    assert_eq!((membership.answers(NOW), membership.address()), (false, None));
}

#[test]
fn a_lease_renewed_after_the_margin_but_in_time_keeps_the_epoch() {
    let mut membership = registered();
    let late = NOW + LEASE;
    assert_eq!(membership.on_tick(late), [Action::Stop, Action::Ask(Ask::Renew { seen: Revision(20) })]);
    assert_eq!(membership.on_reply(late, late, Reply::Leased(LEASE)), [Action::Serve(ME)]);
    assert!(membership.answers(late));
}

#[test]
fn a_name_that_is_taken_is_reported_once_and_tried_again() {
    let mut membership = leased(8, [OTHER]);
    assert_eq!(membership.on_reply(NOW, NOW, Reply::Occupied), [Action::Occupied]);
    let next = membership.next().expect("it goes on");
    assert_eq!(membership.on_tick(next), [Action::Ask(Ask::Register { seen: Revision(8) })]);
    assert_eq!(membership.on_reply(next, next, Reply::Occupied), []);
    let next = membership.next().expect("it goes on");
    let renewing = membership.on_tick(next);
    assert!(matches!(renewing[..], [Action::Ask(Ask::Renew { .. } | Ask::Register { .. })]), "{renewing:?}");
}

#[test]
fn who_leaves_stops_before_it_deregisters_and_does_nothing_more() {
    let mut membership = registered();
    // Its question is answered first.
    let renew = membership.next().expect("a renewal");
    assert_eq!(membership.on_tick(renew), [Action::Ask(Ask::Renew { seen: Revision(20) })]);
    assert_eq!(membership.on_leave(renew), [Action::Stop]);
    assert_eq!(membership.on_reply(renew, renew, Reply::Leased(LEASE)), [Action::Ask(Ask::Deregister)]);
    assert_eq!(membership.on_reply(renew, renew, Reply::Deregistered), [Action::Left]);
    assert_eq!(membership.next(), None);
    assert_eq!(membership.on_tick(renew + 10 * LEASE), []);
}

/// Found by the seeds: the release of an earlier epoch was taken for that of the current one.
#[test]
fn a_release_asked_for_in_an_earlier_epoch_gives_up_nothing_in_a_later_one() {
    let mut membership = registered();
    let release = |actions: &[Action]| {
        let found =
            actions.iter().find_map(|action| if let Action::Release(release) = action { Some(*release) } else { None });
        found.expect("one shard is too many")
    };
    let both = [(Revision(21), Change::Map(map([ME, ME])))];
    let early = release(&membership.on_changes(NOW, Revision(21), both));
    membership.on_changes(NOW, Revision(22), [(Revision(22), Change::Left(ME.node))]);
    membership.on_reply(NOW, NOW, Reply::Leased(LEASE));
    let again = address(0, 23);
    membership.on_reply(NOW, NOW, Reply::Registered(again.incarnation));
    let changes = [(Revision(23), Change::Joined(again)), (Revision(24), Change::Map(map([again, again])))];
    let late = release(&membership.on_changes(NOW, Revision(24), changes));
    assert_eq!(early.shard, late.shard);
    let proposes = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Ask(Ask::Propose { .. })));
    // Whatever was asked meanwhile is answered.
    membership.on_reply(NOW, NOW, Reply::Proposed);
    assert!(!proposes(&membership.on_released(NOW, early)));
    let actions = membership.on_released(NOW, Release { number: early.number + 7, ..late });
    assert!(!proposes(&actions), "{actions:?}");
    assert!(proposes(&membership.on_released(NOW, late)));
}

#[test]
fn a_revision_beyond_what_messages_carry_is_an_error() {
    assert_eq!(Revision(7).epoch(), Ok(Incarnation(7)));
    assert_eq!(Revision(1 << 32).epoch(), Err(EpochError(1 << 32)));
}
