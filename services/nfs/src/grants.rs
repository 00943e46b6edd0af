//! Permissions for the content of files that the host granted lately.

use std::collections::HashMap;
use std::time::Duration;

use machine::tree::{Caller, Node};
use parking_lot::Mutex;
use policy::unit::Instant;

/// How long a grant by the host is valid.
pub(crate) const GRANT_AGE: Duration = Duration::from_secs(1);

/// Grants remembered, at most. Beyond, all are dropped.
const GRANTS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Grants(Mutex<HashMap<(Node, Caller), Grant>>);

#[derive(Clone, Copy)]
struct Grant {
    rights: u32,
    at: Instant,
}

impl Grants {
    pub(crate) fn find(&self, node: Node, caller: &Caller, now: Instant) -> u32 {
        let grants = self.0.lock();
        let grant = grants.get(&(node, caller.clone())).copied();
        grant.filter(|grant| now.since(grant.at) < GRANT_AGE).map_or(0, |grant| grant.rights)
    }

    pub(crate) fn remember(&self, node: Node, caller: &Caller, rights: u32, now: Instant) {
        let mut grants = self.0.lock();
        if grants.len() >= GRANTS_MAX {
            grants.clear();
        }
        grants.insert((node, caller.clone()), Grant { rights, at: now });
    }

    /// To be called after a change of any node's attributes.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
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
        grants.forget();
        assert_eq!(grants.find(node(1), &caller(5), at(1000)), 0);
    }

    #[test]
    fn grants_have_a_bound() {
        let grants = Grants::default();
        for uid in 0..3 * GRANTS_MAX as u32 {
            grants.remember(node(1), &caller(uid), RIGHT, at(0));
            assert!(grants.0.lock().len() <= GRANTS_MAX);
            assert_eq!(grants.find(node(1), &caller(uid), at(0)), RIGHT);
        }
    }
}
