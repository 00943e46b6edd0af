//! What has changed and no flush has made durable: a flush covers what had changed before it began, and only if it succeeds.

/// A set of changes.
pub trait Changes: Default {
    /// Some of what may have changed.
    type Part: Copy;

    fn remove(&mut self, part: Self::Part);

    /// Adds changes made since.
    fn append(&mut self, newer: Self);
}

/// Flushes do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Unflushed<S> {
    /// Since the last flush began.
    since: S,
    /// Before the flush in flight began; otherwise empty.
    covered: S,
}

impl<S: Changes> Unflushed<S> {
    pub const fn since(&self) -> &S {
        &self.since
    }

    /// For what changes now.
    pub const fn since_mut(&mut self) -> &mut S {
        &mut self.since
    }

    pub const fn covered(&self) -> &S {
        &self.covered
    }

    /// All that may not be durable.
    pub const fn both(&self) -> [&S; 2] {
        [&self.since, &self.covered]
    }

    /// It need not be made durable any more.
    pub fn remove(&mut self, part: S::Part) {
        self.since.remove(part);
        self.covered.remove(part);
    }

    pub fn begin(&mut self) {
        self.covered = std::mem::take(&mut self.since);
    }

    /// What the flush covered is durable, and returned.
    pub fn succeeded(&mut self) -> S {
        std::mem::take(&mut self.covered)
    }

    /// What the flush covered is left to the next one.
    pub fn failed(&mut self) {
        let newer = std::mem::take(&mut self.since);
        self.since = std::mem::take(&mut self.covered);
        self.since.append(newer);
    }

    /// A flush has failed which may have lost all that was there: it is returned, and to be changed again.
    pub fn take(&mut self) -> S {
        self.failed();
        std::mem::take(&mut self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    impl Changes for BTreeSet<u32> {
        type Part = u32;

        fn remove(&mut self, part: u32) {
            BTreeSet::remove(self, &part);
        }

        fn append(&mut self, mut newer: Self) {
            BTreeSet::append(self, &mut newer);
        }
    }

    type Set = BTreeSet<u32>;

    fn set<const N: usize>(parts: [u32; N]) -> Set {
        parts.into()
    }

    /// 1 and 2 were there before a flush began, 3 since.
    fn flushing() -> Unflushed<Set> {
        let mut unflushed: Unflushed<Set> = Unflushed::default();
        unflushed.since_mut().extend([1, 2]);
        unflushed.begin();
        unflushed.since_mut().insert(3);
        unflushed
    }

    #[test]
    fn what_changes_during_a_flush_is_left_to_the_next_one() {
        let mut unflushed = flushing();
        assert_eq!(unflushed.succeeded(), set([1, 2]));
        assert_eq!(unflushed.both(), [&set([3]), &set([])]);
        unflushed.begin();
        assert_eq!(unflushed.succeeded(), set([3]));
    }

    #[test]
    fn so_is_what_changed_before_one_that_fails() {
        let mut unflushed = flushing();
        unflushed.failed();
        assert_eq!(unflushed.both(), [&set([1, 2, 3]), &set([])]);
        let mut unflushed = flushing();
        assert_eq!(unflushed.take(), set([1, 2, 3]));
        assert_eq!(unflushed.both(), [&set([]), &set([])]);
    }

    #[test]
    fn what_is_removed_no_flush_returns() {
        let mut unflushed = flushing();
        [1, 3].into_iter().for_each(|part| unflushed.remove(part));
        assert_eq!(unflushed.succeeded(), set([2]));
        assert_eq!(unflushed.take(), set([]));
    }
}
