//! What is known of a file: its attributes, how long they hold, and which state of its content the caches have.
//!
//! Attributes hold for a time that doubles while the file does not change, within the bounds of the mount, as with the
//! host's own client. A state of the content that is neither the one known nor explained by our own changes is somebody
//! else's: what is cached of the content is stale. While our own writes are in flight, replies say nothing about that: who
//! writes a file at the same time as others do must lock it. Before the first of them the server is asked: most do not say in
//! their reply to a write what was before it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::unit::Instant;

use crate::attributes::{Attributes, Change, Version};

/// Before a write, what was known this long ago may be older than a change by others. One that was made since then, or while
/// writes of ours are in flight, counts as made at the same time.
const LOOKS_AFTER: Duration = Duration::from_millis(100);

/// How long attributes hold, at least and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: Duration,
    pub max: Duration,
}

pub(crate) struct Known {
    bounds: Bounds,
    state: Mutex<State>,
}

struct State {
    attributes: Attributes,
    /// When they were asked for, or our own change that said them had ended: answers to what was asked later count more,
    /// whatever the server's clock says. Those to what was asked before may come in any order, by which its clock decides.
    asked: Instant,
    /// From then on.
    holds: Duration,
    /// Of the content that the caches have.
    version: Version,
    is_stale: bool,
    /// Our own change was not described: the next state is taken to be its result.
    adopts: Adopts,
    writes_begun: u64,
    writes_in_flight: u64,
    /// Of a write, or of a change that was not described.
    last_change_ended: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopts {
    Nothing,
    /// A change that leaves size and time of modification, as of the number of names.
    Changed,
    Any,
}

impl Known {
    pub fn new(asked: Instant, attributes: Attributes, bounds: Bounds) -> Arc<Known> {
        let state = State {
            attributes,
            asked,
            holds: bounds.min,
            version: attributes.version(),
            is_stale: false,
            adopts: Adopts::Nothing,
            writes_begun: 0,
            writes_in_flight: 0,
            last_change_ended: Instant::ZERO,
        };
        Arc::new(Known { bounds, state: Mutex::new(state) })
    }

    pub fn attributes(&self) -> Attributes {
        self.state.lock().attributes
    }

    /// How long the attributes still hold.
    pub fn holds(&self, now: Instant) -> Duration {
        let state = self.state.lock();
        state.holds.saturating_sub(now.since(state.asked))
    }

    /// The server's answer to a question that was `asked` then.
    pub fn note(&self, asked: Instant, attributes: Attributes) {
        let mut state = self.state.lock();
        if asked < state.asked && attributes.changed <= state.attributes.changed {
            return;
        }
        let version = attributes.version();
        let is_quiet = state.writes_in_flight == 0 && state.last_change_ended <= asked;
        if version == state.version {
            if asked.since(state.asked) >= state.holds {
                state.holds = (2 * state.holds).clamp(self.bounds.min, self.bounds.max);
            }
            // Our change has left it as it was, as coarse times do. The next state is somebody else's.
            if is_quiet && state.adopts == Adopts::Any {
                state.adopts = Adopts::Nothing;
            }
        } else {
            state.holds = self.bounds.min;
            let is_ours = match state.adopts {
                Adopts::Nothing => false,
                Adopts::Changed => (version.size, version.modified) == (state.version.size, state.version.modified),
                Adopts::Any => true,
            };
            if is_quiet {
                state.is_stale |= !is_ours;
                state.adopts = Adopts::Nothing;
            }
            state.version = version;
        }
        // What the server's clock shows to be newer is so, whenever it was asked for: what is older stays older.
        (state.attributes, state.asked) = (attributes, asked.max(state.asked));
    }

    /// Is the server to be asked before a write?
    pub fn is_to_be_asked(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.writes_in_flight == 0 && now.since(state.asked) > LOOKS_AFTER
    }

    /// A write of ours begins, or a change of a directory's names.
    pub fn begin_write(&self, now: Instant) -> Writing<'_> {
        let mut state = self.state.lock();
        let is_alone = state.writes_in_flight == 0;
        state.writes_begun += 1;
        state.writes_in_flight += 1;
        Writing { known: self, asked: now, began: state.writes_begun, is_alone, version: state.version }
    }

    /// We have changed the file by a call of then, and the server said this of it.
    pub fn on_own_change(&self, now: Instant, asked: Instant, change: Change) {
        let mut state = self.state.lock();
        if change.before.is_some_and(|before| before != state.version) && state.adopts == Adopts::Nothing {
            state.is_stale = true;
        }
        let Some(after) = change.after else {
            state.adopts = Adopts::Any;
            state.holds = Duration::ZERO;
            state.last_change_ended = now;
            return;
        };
        // What is written makes a file longer: of two states of one time that is the later one.
        let is_before = (after.changed, after.size) < (state.attributes.changed, state.attributes.size);
        if asked < state.asked && is_before {
            return;
        }
        (state.attributes, state.version) = (after, after.version());
        state.adopts = Adopts::Nothing;
        (state.asked, state.holds) = (now, self.bounds.min);
    }

    /// We have given the file another name, or taken one away.
    pub fn on_renamed(&self) {
        let mut state = self.state.lock();
        if state.adopts == Adopts::Nothing {
            state.adopts = Adopts::Changed;
        }
        state.holds = Duration::ZERO;
    }

    /// We have removed one of the file's names. Returns whether it was the last, as far as we know.
    pub fn on_name_removed(&self) -> bool {
        self.on_renamed();
        let links = &mut self.state.lock().attributes.links;
        *links = links.saturating_sub(1);
        *links == 0
    }

    /// Is what is cached of the content stale?
    pub fn is_stale(&self) -> bool {
        self.state.lock().is_stale
    }

    /// Others are seen to have changed the content, by something else than its version.
    pub fn begin_stale(&self) {
        self.state.lock().is_stale = true;
    }

    /// Nothing is cached any more that was before this version.
    pub fn end_stale(&self, version: Version) {
        let mut state = self.state.lock();
        state.is_stale = state.version != version;
    }
}

/// A write of ours in flight, until dropped.
pub(crate) struct Writing<'a> {
    known: &'a Known,
    asked: Instant,
    began: u64,
    is_alone: bool,
    /// When it began.
    version: Version,
}

impl Writing<'_> {
    /// The server has done it.
    pub fn end(self, now: Instant, change: Change) {
        // What was before it is known only if nothing of ours was written meanwhile.
        let (begun, present) = {
            let state = self.known.state.lock();
            (state.writes_begun, state.version)
        };
        let is_alone = self.is_alone && begun == self.began;
        // A question that was answered meanwhile may have shown its result already.
        let shows_ours = change.after.is_some_and(|after| after.version() == present);
        let before = change.before.filter(|before| is_alone && !(*before == self.version && shows_ours));
        self.known.on_own_change(now, self.asked, Change { before, ..change });
        let mut state = self.known.state.lock();
        state.last_change_ended = now;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.known.state.lock().writes_in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Kind, Time};

    const BOUNDS: Bounds = Bounds { min: Duration::from_secs(3), max: Duration::from_secs(60) };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn file(size: u64, changed: u32) -> Attributes {
        let time = Time { seconds: changed, nanoseconds: 0 };
        Attributes {
            size,
            used: size,
            accessed: time,
            modified: time,
            changed: time,
            ..Attributes::bare(5, Kind::File)
        }
    }

    #[test]
    fn attributes_hold_longer_while_nothing_changes() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        assert_eq!(known.holds(at(1)), Duration::from_secs(2));
        let mut now = 3;
        for held in [6, 12, 24, 48, 60, 60] {
            known.note(at(now), file(1, 1));
            assert_eq!(known.holds(at(now)), Duration::from_secs(held));
            now += held;
        }
        known.note(at(now), file(2, 2));
        assert_eq!(known.holds(at(now)), BOUNDS.min);
    }

    #[test]
    fn attributes_hold_from_when_they_were_asked_for() {
        let known = Known::new(at(1), file(1, 1), BOUNDS);
        known.note(at(7), file(1, 1));
        assert_eq!(known.holds(at(9)), Duration::from_secs(4));
    }

    #[test]
    fn what_others_change_makes_the_content_stale() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.note(at(1), file(1, 1));
        assert!(!known.is_stale());
        known.note(at(2), file(1, 2));
        assert!(known.is_stale());
        known.end_stale(known.attributes().version());
        assert!(!known.is_stale());
    }

    #[test]
    fn what_we_write_does_not() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        let (writing, during) = (known.begin_write(at(1)), at(1));
        writing.end(at(2), Change { before: None, after: Some(file(9, 2)) });
        known.note(during, file(9, 3));
        known.note(at(4), file(9, 3));
        assert!(!known.is_stale());
        known.begin_write(at(4)).end(at(5), Change { before: Some(file(9, 4).version()), after: Some(file(9, 5)) });
        assert!(known.is_stale(), "somebody else was before us");
    }

    #[test]
    fn the_result_of_our_change_may_be_seen_before_its_reply() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        let writing = known.begin_write(at(0));
        known.note(at(1), file(9, 2));
        writing.end(at(3), Change { before: Some(file(1, 1).version()), after: Some(file(9, 2)) });
        assert!(!known.is_stale());
    }

    #[test]
    fn what_others_write_right_after_us_makes_the_content_stale_if_it_is_seen_before_our_reply() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        let writing = known.begin_write(at(0));
        known.note(at(1), file(12, 3));
        writing.end(at(3), Change { before: Some(file(1, 1).version()), after: Some(file(9, 2)) });
        assert!(known.is_stale());
    }

    #[test]
    fn the_server_is_asked_before_a_write_after_a_pause() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        assert!(!known.is_to_be_asked(at(0)) && known.is_to_be_asked(at(1)));
        let writing = known.begin_write(at(1));
        assert!(!known.is_to_be_asked(at(1)), "what comes between two of ours is written at the same time");
        writing.end(at(2), Change { before: None, after: Some(file(9, 2)) });
        assert!(!known.is_to_be_asked(at(2)) && known.is_to_be_asked(at(3)));
    }

    #[test]
    fn what_others_change_while_stale_content_is_dropped_is_stale_again() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.note(at(1), file(2, 2));
        let followed = known.attributes().version();
        known.note(at(2), file(3, 3));
        known.end_stale(followed);
        assert!(known.is_stale());
    }

    #[test]
    fn an_older_answer_that_comes_later_is_ignored() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        let early = at(1);
        known.note(at(2), file(7, 3));
        known.note(early, file(1, 1));
        assert_eq!(known.attributes().size, 7);
    }

    #[test]
    fn an_older_answer_is_ignored_also_after_a_newer_one_that_was_asked_for_before_it() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.begin_write(at(3)).end(at(4), Change { before: None, after: Some(file(100, 3)) });
        known.note(at(1), file(200, 4));
        known.note(at(2), file(50, 2));
        assert_eq!(known.attributes().size, 200);
    }

    #[test]
    fn what_a_server_says_whose_clock_was_set_back_counts_if_it_was_asked_later() {
        let known = Known::new(at(0), file(1, 100), BOUNDS);
        let change = Change { before: Some(file(1, 100).version()), after: Some(file(9, 50)) };
        known.begin_write(at(1)).end(at(2), change);
        assert_eq!(known.attributes().size, 9);
        known.note(at(3), file(9, 40));
        assert_eq!(known.attributes().changed.seconds, 40);
    }

    #[test]
    fn what_comes_after_a_write_that_changes_no_time_is_somebody_elses() {
        let undescribed = Change::default();
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.begin_write(at(1)).end(at(2), undescribed);
        known.note(at(1), file(1, 1));
        known.note(at(2), file(1, 2));
        assert!(!known.is_stale(), "the first answer was of before");
        known.begin_write(at(3)).end(at(4), undescribed);
        known.note(at(4), file(1, 2));
        known.note(at(5), file(1, 3));
        assert!(known.is_stale());
    }

    #[test]
    fn what_was_asked_before_an_undescribed_change_is_not_its_result() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.on_own_change(at(2), at(1), Change::default());
        known.note(at(1), file(1, 1));
        known.note(at(2), file(1, 2));
        assert!(!known.is_stale());
    }

    #[test]
    fn of_writes_at_one_time_the_longest_file_is_the_last_whatever_reply_comes_first() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        let [first, second] = [known.begin_write(at(1)), known.begin_write(at(1))];
        second.end(at(2), Change { before: None, after: Some(file(9, 2)) });
        first.end(at(3), Change { before: None, after: Some(file(5, 2)) });
        assert_eq!(known.attributes().size, 9);
        known.note(at(1), file(5, 2));
        assert_eq!(known.attributes().size, 9, "it was asked meanwhile");
        assert!(!known.is_stale());
    }

    #[test]
    fn a_file_that_is_cut_at_the_time_of_a_write_is_shorter() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.begin_write(at(1)).end(at(2), Change { before: None, after: Some(file(9, 2)) });
        let asked = at(2);
        known.on_own_change(at(3), at(3), Change { before: None, after: Some(file(0, 2)) });
        known.note(asked, file(9, 2));
        assert_eq!(known.attributes().size, 0);
    }

    #[test]
    fn another_name_leaves_the_content_as_it_is() {
        let known = Known::new(at(0), file(1, 1), BOUNDS);
        known.on_renamed();
        assert_eq!(known.holds(at(0)), Duration::ZERO);
        let renamed = Attributes { changed: Time { seconds: 2, nanoseconds: 0 }, ..file(1, 1) };
        known.note(at(1), renamed);
        assert!(!known.is_stale());
        known.note(at(2), file(1, 3));
        assert!(known.is_stale());
    }
}
