//! Permissions for the content of files that the host granted lately.

use std::collections::HashMap;
use std::time::Duration;

use machine::tree::{Caller, Node};
use parking_lot::Mutex;
use policy::unit::Instant;

/// How long a grant by the host is valid.
pub(crate) const GRANT_AGE: Duration = Duration::from_secs(1);

/// Grants remembered, at most. Beyond, the older ones are dropped.
const GRANTS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Grants(Mutex<Known>);

#[derive(Default)]
struct Known {
    of: HashMap<Node, HashMap<Caller, Grant>>,
    count: usize,
}

#[derive(Clone, Copy)]
struct Grant {
    rights: u32,
    at: Instant,
}

impl Grants {
    pub(crate) fn find(&self, node: Node, caller: &Caller, now: Instant) -> u32 {
        let known = self.0.lock();
        let grant = known.of.get(&node).and_then(|of_node| of_node.get(caller));
        grant.filter(|grant| now.since(grant.at) < GRANT_AGE).map_or(0, |grant| grant.rights)
    }

    pub(crate) fn remember(&self, node: Node, caller: &Caller, rights: u32, now: Instant) {
        let mut known = self.0.lock();
        if known.count >= GRANTS_MAX {
            known.drop_older(now);
        }
        let before = known.of.entry(node).or_default().insert(caller.clone(), Grant { rights, at: now });
        known.count += usize::from(before.is_none());
    }

    /// To be called after a change of a node's attributes.
    pub(crate) fn forget(&self, node: Node) {
        let mut known = self.0.lock();
        let forgotten = known.of.remove(&node);
        known.count -= forgotten.map_or(0, |of_node| of_node.len());
    }
}

impl Known {
    /// Drops what has expired and, until half of the places are free, what soon will: so this is seldom done again.
    fn drop_older(&mut self, now: Instant) {
        let mut age = GRANT_AGE;
        while self.count > GRANTS_MAX / 2 {
            self.of.retain(|_, of_node| {
                of_node.retain(|_, grant| now.since(grant.at) < age);
                !of_node.is_empty()
            });
            self.count = self.of.values().map(HashMap::len).sum();
            age /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const RIGHT: u32 = 4;

    fn caller(uid: u32) -> Caller {
        Caller { uid, gid: uid, groups: Arc::from([]) }
    }

    fn node(number: u8) -> Node {
        Node::new(&[number]).expect("a node")
    }

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn a_grant_counts_for_its_caller_and_node_alone() {
        let grants = Grants::default();
        grants.remember(node(1), &caller(5), RIGHT, at(0));
        assert_eq!(grants.find(node(1), &caller(5), at(10)), RIGHT);
        assert_eq!(grants.find(node(2), &caller(5), at(10)), 0);
        assert_eq!(grants.find(node(1), &caller(6), at(10)), 0);
        let in_group = Caller { groups: Arc::from([7]), ..caller(5) };
        assert_eq!(grants.find(node(1), &in_group, at(10)), 0);
    }

    #[test]
    fn a_grant_ends_after_a_second_and_with_a_change() {
        let grants = Grants::default();
        grants.remember(node(1), &caller(5), RIGHT, at(0));
        assert_eq!(grants.find(node(1), &caller(5), at(999)), RIGHT);
        assert_eq!(grants.find(node(1), &caller(5), at(1000)), 0);
        grants.remember(node(1), &caller(5), RIGHT, at(1000));
        grants.forget(node(1));
        assert_eq!(grants.find(node(1), &caller(5), at(1000)), 0);
    }

    #[test]
    fn grants_have_a_bound() {
        let grants = Grants::default();
        for uid in 0..3 * GRANTS_MAX as u32 {
            grants.remember(node(1), &caller(uid), RIGHT, at(0));
            assert!(grants.0.lock().count <= GRANTS_MAX);
            assert_eq!(grants.find(node(1), &caller(uid), at(0)), RIGHT);
        }
    }

    #[test]
    fn a_change_of_a_node_leaves_the_grants_of_others() {
        let grants = Grants::default();
        [1, 2].into_iter().for_each(|number| grants.remember(node(number), &caller(5), RIGHT, at(0)));
        grants.forget(node(1));
        assert_eq!([1, 2].map(|number| grants.find(node(number), &caller(5), at(1))), [0, RIGHT]);
    }

    #[test]
    fn of_many_grants_the_latest_remain() {
        let grants = Grants::default();
        let latest = 3 * GRANTS_MAX as u32;
        for uid in 0..=latest {
            grants.remember(node(uid as u8 % 3), &caller(uid), RIGHT, at(uid.into()));
            let found = |ago: u32| grants.find(node((uid - ago) as u8 % 3), &caller(uid - ago), at(uid.into()));
            assert!((0..uid.min(900)).step_by(90).all(|ago| found(ago) == RIGHT), "{uid}");
        }
    }
}
