//! The first row of a range, or the last.
//!
//! Keys that are deleted stay in memory until a checkpoint has ended, and those that the transaction deletes until its own end:
//! there may be hundreds of thousands of them before the row. They are passed over some at a time, and others have
//! their turn in between.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use kernel::Processor;

use super::Transaction;
use crate::store::delta::{self, Bounds, Delta};
use crate::store::reads::Reads;
use crate::store::{FullKey, Key, Row, Sequence, State, StoreError, TableNo, tree};

/// Deleted keys that are passed over at a time, at most, which takes some ten µs.
const PASSED_AT_A_TIME_MAX: usize = 256;

/// What a search has found, and passed over.
pub(crate) struct Searched {
    pub row: Option<(Key, Row)>,
    /// Deleted keys that it has looked at.
    pub passed_over: usize,
}

/// What is in memory, from the begin of a range on.
#[derive(Default)]
struct InMemory {
    /// Keys that are deleted, in the order of the search.
    deleted: Vec<FullKey>,
    /// The row behind them.
    row: Option<(FullKey, Row)>,
    /// What is behind them was not looked at.
    is_cut: bool,
}

enum Looked {
    Found(Option<(FullKey, Row)>),
    /// There is nothing up to this key.
    Past(FullKey),
}

impl Transaction {
    /// The first row within `range`, or with `backwards` the last.
    ///
    /// # Errors
    /// If the volume cannot be read, or the transaction has read too much.
    pub async fn next(
        &mut self,
        cpu: &Processor,
        table: TableNo,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
    ) -> Result<Option<(Key, Row)>, StoreError> {
        Ok(self.search(cpu, table, range, backwards).await?.row)
    }

    /// As [`Transaction::next`].
    pub(crate) async fn search(
        &mut self,
        cpu: &Processor,
        table: TableNo,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
    ) -> Result<Searched, StoreError> {
        let key_of = |key: &[u8]| FullKey::new(table, key);
        let end = Bound::Excluded(FullKey::new(TableNo(table.0 + 1), &[]));
        let from = match range.0.map(key_of) {
            Bound::Unbounded => Bound::Included(key_of(&[])),
            from => from,
        };
        let to = match range.1.map(key_of) {
            Bound::Unbounded => end,
            to => to,
        };
        let (mut low, mut high) = (from.clone(), to.clone());
        let (mut at_a_time, mut passed_over) = (1, 0);
        let found = loop {
            let within = (low.as_ref(), high.as_ref());
            if delta::is_empty(within) {
                break None;
            }
            let key = match self.look(cpu, within, backwards, at_a_time, &mut passed_over).await? {
                Looked::Found(found) => break found,
                Looked::Past(key) => key,
            };
            if backwards {
                high = Bound::Excluded(key)
            } else {
                low = Bound::Excluded(key)
            }
            // Twice as many each time: where a row of the tree is before most of them, few are looked at in vain.
            if at_a_time < PASSED_AT_A_TIME_MAX { at_a_time *= 2 } else { cpu.yield_now().await }
        };
        let up_to_found = found.as_ref().map(|(key, _)| Bound::Included(key.clone()));
        let looked_at = match up_to_found {
            Some(found) if backwards => (found, to),
            Some(found) => (from, found),
            None => (from, to),
        };
        self.reads.add_range(looked_at)?;
        Ok(Searched { row: found.map(|(key, row)| (Key::from(&key[4..]), row)), passed_over })
    }

    /// Looks for the row, past no more than so many deleted keys.
    async fn look(
        &mut self,
        cpu: &Processor,
        range: Bounds<'_>,
        backwards: bool,
        at_a_time: usize,
        passed_over: &mut usize,
    ) -> Result<Looked, StoreError> {
        let (in_memory, tree) = {
            let state = self.database.state.read();
            self.reads.begin(&state);
            let in_memory = look_in_memory(&self.writes, &state, &mut self.reads, range, backwards, at_a_time);
            (in_memory, Arc::clone(&state.tree))
        };
        let InMemory { mut deleted, row, is_cut } = in_memory;
        *passed_over += deleted.len();
        let is_deleted = |key: &[u8]| {
            let compare = |deleted: &FullKey| if backwards { key.cmp(deleted) } else { (**deleted).cmp(key) };
            deleted.binary_search_by(compare).is_ok()
        };
        let pages = &self.database.pages;
        let stored = match tree.root {
            Some(root) if backwards => tree::last(pages, cpu, root, range.1.map(|key| &**key), is_deleted).await?,
            Some(root) => tree::first(pages, cpu, root, range.0.map(|key| &**key), is_deleted).await?,
            None => None,
        };
        let looked_up_to = row.as_ref().map(|(key, _)| key).or(deleted.last().filter(|_| is_cut));
        let counts = |key: &FullKey| {
            std::ops::RangeBounds::<FullKey>::contains(&range, key)
                && looked_up_to.is_none_or(|up_to| is_before(key, up_to, backwards))
        };
        let found = stored.filter(|(key, _)| counts(key)).or(row);
        let past = if is_cut { deleted.pop() } else { None };
        Ok(match (found, past) {
            (None, Some(past)) => Looked::Past(past),
            (found, _) => Looked::Found(found),
        })
    }
}

fn is_before(one: &FullKey, other: &FullKey, backwards: bool) -> bool {
    if backwards { one > other } else { one < other }
}

/// What a key has: a row or (`None`) that it is deleted, and the commit that wrote it.
type Written<'a> = (&'a FullKey, Option<&'a Row>, Sequence);

/// Looks through what the transaction has written, and what was committed, up to a row.
fn look_in_memory(
    writes: &BTreeMap<FullKey, Option<Row>>,
    state: &State,
    reads: &mut Reads,
    range: Bounds<'_>,
    backwards: bool,
    deleted_max: usize,
) -> InMemory {
    fn of<'a>(delta: &'a Delta, range: Bounds<'_>) -> impl DoubleEndedIterator<Item = Written<'a>> {
        delta.range(range).map(|(key, entry)| (key, entry.row.as_ref(), entry.at))
    }
    let own = writes.range::<FullKey, _>(range);
    let mut own = own.map(|(key, row)| (key, row.as_ref(), Sequence::default()));
    let mut recent = of(&state.recent, range);
    let mut frozen = state.frozen.iter().flat_map(|frozen| of(&frozen.delta, range));
    // In the order in which they count.
    let mut sources: [&mut dyn DoubleEndedIterator<Item = Written<'_>>; 3] = [&mut own, &mut recent, &mut frozen];
    let mut advance = |source: usize| if backwards { sources[source].next_back() } else { sources[source].next() };
    let mut heads = [0, 1, 2].map(&mut advance);
    let mut found = InMemory::default();
    while found.deleted.len() < deleted_max {
        let nearer = |one: Written<'_>, other: Written<'_>| is_before(other.0, one.0, backwards);
        let nearest = heads.into_iter().flatten().reduce(|one, other| if nearer(one, other) { other } else { one });
        let Some((key, row, at)) = nearest else { return found };
        reads.saw(at);
        if let Some(row) = row {
            found.row = Some((key.clone(), row.clone()));
            return found;
        }
        for (source, head) in heads.iter_mut().enumerate() {
            if head.is_some_and(|head| head.0 == key) {
                *head = advance(source);
            }
        }
        found.deleted.push(key.clone());
    }
    found.is_cut = true;
    found
}
