//! What a transaction has read: whether it still is so when it commits.

use std::ops::{Bound, RangeBounds as _};

use super::delta::Delta;
use super::{FullKey, Sequence, State, StoreError, TRANSACTION_BYTES_MAX};

pub(super) type Range = (Bound<FullKey>, Bound<FullKey>);

#[derive(Debug, Default)]
pub(super) struct Reads {
    /// The last commit when it began to read.
    since: Option<Sequence>,
    keys: Vec<FullKey>,
    /// What was looked through, whether something was found or not (so that phantoms are noticed).
    ranges: Vec<Range>,
    /// The newest commit of which it has seen a row.
    pub newest: Sequence,
    bytes: usize,
}

/// What was read up to some time.
pub(super) struct Mark {
    since: Option<Sequence>,
    keys: usize,
    ranges: usize,
    newest: Sequence,
    bytes: usize,
}

impl Reads {
    pub(super) fn mark(&self) -> Mark {
        let Reads { since, newest, bytes, .. } = *self;
        Mark { since, keys: self.keys.len(), ranges: self.ranges.len(), newest, bytes }
    }

    pub(super) fn roll_back(&mut self, to: Mark) {
        let Mark { since, keys, ranges, newest, bytes } = to;
        self.keys.truncate(keys);
        self.ranges.truncate(ranges);
        (self.since, self.newest, self.bytes) = (since, newest, bytes);
    }

    pub(super) fn begin(&mut self, state: &State) {
        self.since.get_or_insert(state.commits);
    }

    pub(super) fn saw(&mut self, at: Sequence) {
        self.newest = self.newest.max(at);
    }

    pub(super) fn add_key(&mut self, key: FullKey) -> Result<(), StoreError> {
        self.add_bytes(key.len())?;
        self.keys.push(key);
        Ok(())
    }

    pub(super) fn add_range(&mut self, range: Range) -> Result<(), StoreError> {
        let len = |bound: &Bound<FullKey>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        self.add_bytes(len(&range.0) + len(&range.1))?;
        self.ranges.push(range);
        Ok(())
    }

    fn add_bytes(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.bytes += bytes;
        if self.bytes > TRANSACTION_BYTES_MAX { Err(StoreError::TransactionTooLong) } else { Ok(()) }
    }

    /// Has any of it changed since?
    pub(super) fn have_changed(&self, state: &State) -> bool {
        let Some(since) = self.since.filter(|since| *since < state.commits) else { return false };
        if let Some(mut written) = state.last_written.after(since) {
            let have_changed = written.any(|key| self.has(key));
            if since >= state.merged {
                debug_assert_eq!(have_changed, self.have_changed_in_memory(state, since), "since {since:?}");
            }
            return have_changed;
        }
        // What was merged since left no trace in memory: a transaction that took as long as a checkpoint, in which more was
        // written than is remembered, is refused without need.
        since < state.merged || self.have_changed_in_memory(state, since)
    }

    fn have_changed_in_memory(&self, state: &State, since: Sequence) -> bool {
        self.have_changed_in(&state.recent, since)
            || state.frozen.as_ref().is_some_and(|frozen| self.have_changed_in(&frozen.delta, since))
    }

    fn has(&self, key: &FullKey) -> bool {
        self.keys.contains(key) || self.ranges.iter().any(|range| range.contains(key))
    }

    fn have_changed_in(&self, delta: &Delta, since: Sequence) -> bool {
        let is_newer = |key: &FullKey| delta.get(key).is_some_and(|entry| entry.at > since);
        let has_newer =
            |(from, to): &Range| delta.range((from.as_ref(), to.as_ref())).any(|(_, entry)| entry.at > since);
        self.keys.iter().any(is_newer) || self.ranges.iter().any(has_newer)
    }
}
