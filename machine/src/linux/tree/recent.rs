//! Nodes that were opened lately and stay open.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::tree::Node;

/// Descriptors by node, `max` at most. They are closed without the lock: the last one of a removed file has the host free
/// its blocks.
pub(super) struct Recent<T> {
    open: Mutex<VecDeque<(Node, Arc<T>)>>,
    max: usize,
}

impl<T> Recent<T> {
    pub(super) const fn new(max: usize) -> Self {
        Recent { open: Mutex::new(VecDeque::new()), max }
    }

    pub(super) fn get(&self, node: &Node) -> Option<Arc<T>> {
        let open = self.open.lock();
        open.iter().rev().find(|(of, _)| of == node).map(|(_, fd)| Arc::clone(fd))
    }

    /// The oldest gives way. A node that is open already stays as it is.
    pub(super) fn insert(&self, node: Node, fd: Arc<T>) {
        let mut open = self.open.lock();
        if open.iter().any(|(of, _)| *of == node) {
            return;
        }
        let oldest = if open.len() < self.max { None } else { open.pop_front() };
        open.push_back((node, fd));
        drop(open);
        drop(oldest);
    }

    pub(super) fn forget(&self, node: &Node) {
        let mut open = self.open.lock();
        let at = open.iter().position(|(of, _)| of == node);
        let forgotten = at.and_then(|at| open.remove(at));
        drop(open);
        drop(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        Node::new(&[number]).expect("a node")
    }

    /// Says so if it is dropped while the list is locked.
    struct Open(&'static Recent<Open>);

    impl Drop for Open {
        fn drop(&mut self) {
            assert!(!self.0.open.is_locked(), "closed with the lock");
        }
    }

    #[test]
    fn the_oldest_gives_way_and_nothing_is_closed_with_the_lock() {
        static RECENT: Recent<Open> = Recent::new(2);
        let has = || [1, 2, 3].map(|number| RECENT.get(&node(number)).is_some());
        for number in [1, 2, 1, 3] {
            RECENT.insert(node(number), Arc::new(Open(&RECENT)));
        }
        assert_eq!(has(), [false, true, true]);
        RECENT.forget(&node(2));
        assert_eq!(has(), [false, false, true]);
        RECENT.forget(&node(3));
    }
}
