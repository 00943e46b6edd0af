//! Histories of blocks: what clients wrote and read, and when; and whether it can have been so.
//!
//! Every write has a value of its own, so each read says which write it saw. Then linearizability (Herlihy and Wing, *ACM
//! TOPLAS* 12, 1990) is decided by sorting (Gibbons and Korach, *Testing Shared Memories*, SIAM J. Comput. 26, 1997): a
//! write and the reads that saw it take effect one after the other, at the latest when the first of them ends and, in
//! whole, not before the last of them begins. If the latter is later, nothing else can be in between (a *forward zone*):
//! such zones must not overlap, and none of the others may lie within one of them.
//!
//! When a node crashes, writes that were not flushed may be undone. So a history is cut at crashes: what is read
//! afterwards without being written is one of the values from before, the same for all, and not older than what was
//! flushed.

use std::collections::{BTreeMap, BTreeSet};

/// Nanoseconds.
pub type Time = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Read,
    Write,
}

/// What one client did to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub block: u64,
    /// Another one for each process.
    pub node: usize,
    pub act: Act,
    /// What was read or written; 0 is what the block had at first.
    pub value: u64,
    pub begun: Time,
    /// `None`: it failed or has not ended; a write may have been done all the same.
    pub ended: Option<Time>,
}

/// A flush that succeeded: what the clients of all nodes had written before it began is durable, except that a crash
/// before it may have undone what other processes had written. Or a stable write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    pub node: usize,
    pub begun: Time,
    pub ended: Time,
    /// Of a stable write: only this value.
    pub only: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
    pub flushes: Vec<Flush>,
    /// In order.
    pub crashes: Vec<Time>,
}

/// A write and what saw it.
#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    first_end: Time,
    last_begin: Time,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

impl History {
    /// # Errors
    /// What cannot have been so.
    pub fn check(&self) -> Result<(), String> {
        let mut blocks: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
        for event in &self.events {
            blocks.entry(event.block).or_default().push(*event);
        }
        blocks
            .into_iter()
            .try_for_each(|(block, events)| self.check_block(&events).map_err(|what| format!("block {block}: {what}")))
    }

    fn check_block(&self, events: &[Event]) -> Result<(), String> {
        let mut writes: BTreeMap<u64, Event> = BTreeMap::new();
        for write in events.iter().filter(|event| event.act == Act::Write) {
            if write.value == 0 || writes.insert(write.value, *write).is_some() {
                return Err(format!("value {} is not that of one write", write.value));
            }
        }
        let durable: Vec<(Event, Flush)> =
            writes.values().filter_map(|write| self.first_flush(write).map(|flush| (*write, flush))).collect();
        let mut before: BTreeSet<u64> = BTreeSet::from([0]);
        let ends = self.crashes.iter().copied().chain([Time::MAX]);
        let mut start = 0;
        for end in ends {
            let part: Vec<Event> = events.iter().filter_map(|event| cut(event, start, end)).collect();
            check_part(&part, &before, (&writes, &durable), start)?;
            before.extend(part.iter().filter(|event| event.act == Act::Write).map(|event| event.value));
            start = end;
        }
        Ok(())
    }

    /// The flush that made a write durable, if one did.
    fn first_flush(&self, write: &Event) -> Option<Flush> {
        let ended = write.ended?;
        let is_undone = |flush: &Flush| self.crashes.iter().any(|crash| (ended..=flush.begun).contains(crash));
        let covers = |flush: &&Flush| {
            ended <= flush.begun
                && flush.only.is_none_or(|value| value == write.value)
                && (flush.node == write.node || !is_undone(flush))
        };
        self.flushes.iter().filter(covers).min_by_key(|flush| flush.ended).copied()
    }
}

/// `before`: values of earlier parts. `writes`: all, and those that were made durable.
fn check_part(
    part: &[Event],
    before: &BTreeSet<u64>,
    (writes, durable): (&BTreeMap<u64, Event>, &[(Event, Flush)]),
    start: Time,
) -> Result<(), String> {
    let written: BTreeMap<u64, &Event> =
        part.iter().filter(|event| event.act == Act::Write).map(|write| (write.value, write)).collect();
    let reads = || part.iter().filter(|event| event.act == Act::Read && event.ended.is_some());
    let mut at_first: Option<u64> = None;
    for read in reads().filter(|read| !written.contains_key(&read.value)) {
        if !before.contains(&read.value) {
            return Err(format!("{read:?} saw what nobody had written"));
        }
        if at_first.is_some_and(|value| value != read.value) {
            return Err(format!("{read:?} saw another earlier value than {at_first:?}"));
        }
        if at_first.replace(read.value).is_none() {
            check_durable(read, (writes, durable), start)?;
        }
    }
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    if let Some(value) = at_first {
        zones.insert(value, Zone { value, first_end: start, last_begin: start });
    }
    for (value, write) in &written {
        let first_end = write.ended.unwrap_or(Time::MAX);
        zones.insert(*value, Zone { value: *value, first_end, last_begin: write.begun });
    }
    for read in reads() {
        let Some(zone) = zones.get_mut(&read.value) else { continue };
        let (ended, begun) = (read.ended.unwrap_or(Time::MAX), read.begun);
        if written.get(&read.value).is_some_and(|write| ended < write.begun) {
            return Err(format!("{read:?} saw what was written later"));
        }
        zone.first_end = zone.first_end.min(ended);
        zone.last_begin = zone.last_begin.max(begun);
    }
    check_zones(zones.into_values().collect())
}

/// What was read after a crash is not older than what was flushed before it.
fn check_durable(
    read: &Event,
    (writes, durable): (&BTreeMap<u64, Event>, &[(Event, Flush)]),
    crash: Time,
) -> Result<(), String> {
    let seen_end = writes.get(&read.value).map_or(0, |write| write.ended.unwrap_or(Time::MAX));
    match durable.iter().find(|(later, flush)| seen_end < later.begun && flush.ended <= crash) {
        Some((later, flush)) => {
            Err(format!("{read:?} saw an older value than {later:?}, which {flush:?} had made durable"))
        }
        None => Ok(()),
    }
}

/// The part of an event between two crashes. A write that a crash interrupts may have been done before it or after it,
/// and undone or not; what a read saw that a crash interrupts says nothing.
fn cut(event: &Event, start: Time, end: Time) -> Option<Event> {
    let is_whole = event.begun >= start && event.ended.is_some_and(|ended| ended <= end);
    if is_whole && event.begun < end {
        return Some(*event);
    }
    let overlaps = event.begun < end && event.ended.is_none_or(|ended| ended >= start);
    (overlaps && event.act == Act::Write).then_some(Event { begun: event.begun.max(start), ended: None, ..*event })
}

fn check_zones(zones: Vec<Zone>) -> Result<(), String> {
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) = zones.into_iter().partition(Zone::is_forward);
    forward.sort_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(format!("value {} was seen before and after {} was", pair[0].value, pair[1].value));
        }
    }
    for zone in backward {
        // The last that begins before it: they do not overlap.
        let before = forward.partition_point(|outer| outer.first_end < zone.last_begin);
        let outer = before.checked_sub(1).map(|index| forward[index]);
        if let Some(outer) = outer.filter(|outer| zone.first_end < outer.last_begin) {
            return Err(format!("value {} was seen after {} had replaced it", outer.value, zone.value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(act: Act, value: u64, begun: Time, ended: Time) -> Event {
        Event { block: 0, node: 0, act, value, begun, ended: Some(ended) }
    }

    fn write(value: u64, begun: Time, ended: Time) -> Event {
        event(Act::Write, value, begun, ended)
    }

    fn read(value: u64, begun: Time, ended: Time) -> Event {
        event(Act::Read, value, begun, ended)
    }

    fn is_right(events: &[Event]) -> bool {
        History { events: events.to_vec(), ..History::default() }.check().is_ok()
    }

    #[test]
    fn what_happens_one_after_the_other_or_at_once_is_right() {
        assert!(is_right(&[]));
        assert!(is_right(&[read(0, 1, 2), write(1, 3, 4), read(1, 5, 6), write(2, 7, 8), read(2, 9, 10)]));
        assert!(is_right(&[write(1, 1, 9), read(0, 2, 3), read(1, 4, 5)]), "a write takes effect while it is made");
        assert!(is_right(&[write(1, 1, 9), write(2, 1, 9), read(2, 2, 3), read(1, 4, 5)]), "in either order");
        assert!(is_right(&[Event { ended: None, ..write(1, 1, 0) }, read(0, 2, 3), read(1, 90, 91)]), "or never ends");
    }

    #[test]
    fn wrong_histories_are_found() {
        for (what, events) in [
            ("a stale read", vec![write(1, 1, 2), read(0, 3, 4)]),
            ("an overwritten value", vec![write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]),
            ("a value that nobody wrote", vec![read(7, 1, 2)]),
            ("a value from the future", vec![read(1, 1, 2), write(1, 3, 4)]),
            ("new, then old", vec![write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)]),
            (
                "two orders of two writes",
                vec![write(1, 1, 9), write(2, 1, 9), read(1, 10, 11), read(2, 12, 13), read(1, 14, 15)],
            ),
            (
                "a value seen on both sides of another",
                vec![write(1, 1, 2), read(1, 3, 4), write(2, 5, 6), read(2, 7, 8), read(1, 9, 10)],
            ),
            ("one value written twice", vec![write(1, 1, 2), write(1, 3, 4)]),
            ("a lost write that was not flushed, without a crash", vec![write(1, 1, 2), read(1, 3, 4), read(0, 7, 8)]),
        ] {
            assert!(!is_right(&events), "{what} was not found");
        }
    }

    #[test]
    fn a_crash_may_undo_what_was_not_flushed_and_nothing_else() {
        let events = [write(1, 1, 2), write(2, 5, 6), read(2, 7, 8)];
        let flush = |begun| Flush { node: 0, begun, ended: begun + 1, only: None };
        let after = |value, flushes: &[Flush], more: &[Event]| {
            let events = [&events[..], &[read(value, 21, 22)], more].concat();
            History { events, flushes: flushes.to_vec(), crashes: vec![20] }.check().is_ok()
        };
        assert!(after(2, &[], &[]) && after(1, &[], &[]) && after(0, &[], &[]), "nothing was flushed");
        assert!(after(2, &[flush(3)], &[]) && after(1, &[flush(3)], &[]), "the first write was");
        assert!(!after(0, &[flush(3)], &[]), "it was durable");
        assert!(!after(1, &[flush(9)], &[]), "the second one was durable, too");
        assert!(!after(1, &[Flush { node: 1, ..flush(9) }], &[]), "another node's flush is of all writes");
        assert!(after(1, &[Flush { node: 1, ended: 21, ..flush(19) }], &[]), "it ended after the crash");
        assert!(after(0, &[Flush { only: Some(2), ..flush(3) }], &[]), "a stable write is only of itself");
        assert!(!after(0, &[Flush { only: Some(1), ..flush(3) }], &[]));
        assert!(!after(1, &[], &[read(2, 23, 24)]), "what was undone does not return");
        assert!(!after(1, &[], &[read(0, 23, 24)]));
        assert!(after(1, &[], &[write(3, 23, 24), read(3, 25, 26)]));
        assert!(!after(7, &[], &[]), "nobody wrote it");
    }

    #[test]
    fn a_flush_after_a_crash_is_of_what_other_processes_wrote_since() {
        let events =
            vec![write(1, 1, 2), read(1, 3, 4), write(2, 5, 6), read(1, 21, 22), write(3, 23, 24), read(1, 41, 42)];
        let check = |begun, node, events: &[Event]| {
            let flushes = vec![Flush { node, begun, ended: begun + 1, only: None }];
            History { events: events.to_vec(), flushes, crashes: vec![20, 40] }.check().is_ok()
        };
        assert!(check(22, 1, &events), "the first crash had undone the second value");
        assert!(!check(22, 0, &events), "the process that wrote it has flushed it");
        assert!(!check(25, 1, &events), "the third value was written after that crash");
    }

    #[test]
    fn what_a_crash_interrupts_is_done_before_or_after_it() {
        let interrupted = Event { ended: None, ..write(2, 15, 0) };
        for value in [1, 2] {
            let events = vec![write(1, 1, 2), interrupted, read(value, 21, 22)];
            let history = History { events, flushes: Vec::new(), crashes: vec![20] };
            assert_eq!(history.check(), Ok(()));
        }
    }
}
