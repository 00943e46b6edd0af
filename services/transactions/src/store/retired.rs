//! Trees that checkpoints have replaced, and their pages that the next tree does not have.

use std::collections::VecDeque;
use std::sync::Arc;

use super::checkpoint::Tree;
use super::layout::PageNo;

/// The oldest first.
#[derive(Default)]
pub(super) struct Retired(VecDeque<(Arc<Tree>, Vec<PageNo>)>);

impl Retired {
    pub(super) fn push(&mut self, tree: Arc<Tree>, replaced: Vec<PageNo>) {
        self.0.push_back((tree, replaced));
    }

    /// All pages that are not free yet.
    pub(super) fn pages(&self) -> impl Iterator<Item = PageNo> {
        self.0.iter().flat_map(|(_, pages)| pages.iter().copied())
    }

    /// Takes the pages that nobody reads any more. Those of a tree may be part of older trees, too, so none is taken behind
    /// the oldest tree that is read.
    pub(super) fn take_unread(&mut self) -> Vec<PageNo> {
        let unread = self.0.iter().take_while(|(tree, _)| Arc::strong_count(tree) == 1).count();
        self.0.drain(..unread).flat_map(|(_, pages)| pages).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_up_to_the_oldest_tree_that_is_read() {
        let trees = [0, 1, 2].map(|_| Arc::new(Tree::default()));
        let mut retired = Retired::default();
        trees.iter().zip(1..).for_each(|(tree, page)| retired.push(Arc::clone(tree), vec![PageNo(page)]));
        let [oldest, middle, newest] = trees;
        drop(newest);
        assert!(retired.take_unread().is_empty());
        drop(oldest);
        assert_eq!(retired.take_unread(), [PageNo(1)]);
        assert_eq!(retired.pages().collect::<Vec<_>>(), [PageNo(2), PageNo(3)]);
        drop(middle);
        assert_eq!(retired.take_unread(), [PageNo(2), PageNo(3)]);
    }
}
