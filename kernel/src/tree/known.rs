//! What is known of a file on the host, and whether what is cached of it is stale.

use std::time::Duration;

use machine::tree::{Attributes, SetAttributes, Time};
use policy::unit::Instant;

/// Attributes from the host are valid for this long.
pub const FRESH: Duration = Duration::from_millis(500);

/// Minimum interval of revalidations of a file that the host's processes write all the time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Longer than a step of the clock that a host gives files their times by: 1 to 10 ms.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Counts of changes by others, as reported so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) by_host: u64,
    pub(super) by_siblings: u64,
}

/// Counts of our writes to the host at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    pub(super) begun: u64,
    pub(super) ended: u64,
}

impl Writes {
    /// Was no write of ours in flight or begun between `self` and `later`?
    pub(super) fn were_none_until(self, later: Writes) -> bool {
        self.ended == self.begun && self.begun == later.begun
    }
}

/// A call of the host.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Instant,
    /// Clients are told of a change with its reply.
    pub(super) changes: bool,
}

/// What there was when the host was asked.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) asked: Asked,
    /// Our writes before; `None` where unknown.
    pub(super) writes: Option<Writes>,
    /// The changes by others reported before.
    pub(super) reported: Reported,
}

/// The file's known attributes.
pub(super) struct Known {
    /// The host's last reply.
    pub(super) host: Attributes,
    /// When it came. `None`: the host must be asked again.
    pub(super) answered: Option<Instant>,
    /// When it was asked for.
    asked: Instant,
    /// When the file was opened, or the host's reply to the last change by a client came: replies to what was asked before
    /// may be older.
    told: Instant,
    /// Our writes before the host was asked; `None` where unknown.
    pub(super) writes: Option<Writes>,
    /// The changes by others reported before that.
    pub(super) reported: Reported,
    /// When such a change was last found.
    found: Option<Instant>,
    /// Did others change the content since it was cached?
    pub(super) stale: Stale,
    /// Counts such findings.
    pub(super) found_stale: u64,
    /// As clients see it: the host changes its times when the cache writes back, not when the clients wrote.
    pub(super) modified: Time,
    pub(super) changed: Time,
}

/// Is the cache older than the host's file?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    No,
    /// A change since this time may have been ours or not.
    Perhaps(Instant),
    Yes,
}

impl Known {
    /// Of a file that was just opened, so there were no writes of ours.
    pub(super) fn new(host: Attributes, now: Instant, writes: Writes, reported: Reported) -> Self {
        Known {
            host,
            answered: Some(now),
            asked: now,
            told: now,
            writes: Some(writes),
            reported,
            found: None,
            stale: Stale::No,
            found_stale: 0,
            modified: host.modified,
            changed: host.changed,
        }
    }

    /// Clients were told of a change while the file was opened: what it was opened with may be older.
    pub(super) fn outdate(&mut self, told: Instant) {
        self.answered = None;
        self.told = told;
    }

    /// Did the host answer lately, and was no change `reported` since?
    pub(super) fn is_fresh(&self, now: Instant, reported: Reported) -> bool {
        let Some(answered) = self.answered else { return false };
        let age = now.since(answered);
        let is_current = match self.stale {
            Stale::No => true,
            Stale::Perhaps(since) => now.since(since) < FRESH,
            Stale::Yes => false,
        };
        is_current && age < FRESH && !self.is_due(now, reported)
    }

    /// Must the host be asked because of the changes `reported` since?
    pub(super) fn is_due(&self, now: Instant, reported: Reported) -> bool {
        let is_found_often = self.found.is_some_and(|found| now.since(found) < LOOK_AGAIN);
        let is_changed_by_host = reported.by_host != self.reported.by_host && !is_found_often;
        is_changed_by_host || reported.by_siblings != self.reported.by_siblings
    }

    /// Records attributes of the host. `until`: our writes by now; `is_watched`: the host reports changes by others.
    /// Returns false, and leaves the known ones, if the reply to a client's change came meanwhile: these may be older.
    pub(super) fn note(
        &mut self,
        now: Instant,
        host: Attributes,
        question: Question,
        (until, is_watched): (Writes, bool),
    ) -> bool {
        let is_in_passing = question.writes.is_none() && !question.asked.changes;
        if is_in_passing && question.asked.at < self.asked && self.told <= self.asked {
            // What is known was asked for later. Who asks for the content's sake must see each reply: the processors' clocks
            // differ by a turn.
            return true;
        }
        let is_alone = self.is_alone(until);
        let is_reported = question.reported != self.reported;
        let content = |attributes: &Attributes| (attributes.size, attributes.modified);
        let differs = content(&host) != content(&self.host);
        let is_changed = is_alone && differs || is_reported;
        if is_changed || differs && !is_watched {
            self.find_stale(now, is_changed);
        }
        let is_overtaken = question.asked.at < self.told;
        if question.asked.changes {
            self.told = now;
        }
        if is_overtaken {
            self.answered = None;
            return false;
        }
        if is_alone && host.changed != self.host.changed || is_reported {
            self.changed = later(self.changed, host.changed);
        }
        if is_changed {
            self.modified = if is_alone { host.modified } else { later(self.modified, host.modified) };
        }
        self.host = host;
        self.writes = question.writes.or(self.writes.filter(|_| is_alone));
        if is_reported {
            self.found = Some(now);
        }
        self.reported = question.reported;
        self.answered = Some(now);
        self.asked = self.asked.max(question.asked.at);
        true
    }

    /// Records the host's attributes after a client has set these. The rest is as in [`Known::note`].
    pub(super) fn adopt(
        &mut self,
        now: Instant,
        host: Attributes,
        set: &SetAttributes,
        question: Question,
        (until, is_watched): (Writes, bool),
    ) {
        let is_overtaken = question.asked.at < self.told;
        // Of two changes at the same time, the later one has left what is there.
        let host = if is_overtaken && host.changed < self.host.changed { self.host } else { host };
        let is_alone = self.is_alone(until);
        // A new size comes with a new time, and either hides a change by others.
        let sets_content = set.size.is_some() || set.modified.is_some();
        let differs =
            set.size.is_none() && host.size != self.host.size || !sets_content && host.modified != self.host.modified;
        let is_changed = is_alone && differs;
        if is_changed || (differs || sets_content) && !is_watched {
            self.find_stale(now, is_changed);
        }
        // Else clients have seen the time of their writes, which the host learns later, as another one.
        let was_written = self.modified != self.host.modified && host.modified == self.host.modified;
        if set.modified.is_some() || set.size.is_some() && !was_written || is_changed {
            self.modified = host.modified;
        }
        // Who has seen the time of before notices this change, also one in the same step of the host's clock.
        let is_none = *set == SetAttributes::default();
        self.changed = if is_none { self.changed.max(host.changed) } else { later(self.changed, host.changed) };
        self.host = host;
        self.writes = question.writes;
        self.answered = if is_overtaken { None } else { Some(now) };
        self.told = now;
    }

    /// Has nobody but others written since the last reply?
    pub(super) fn is_alone(&self, until: Writes) -> bool {
        self.writes.is_some_and(|before| before.were_none_until(until))
    }

    /// Others have changed the content, certainly or perhaps.
    pub(super) fn find_stale(&mut self, now: Instant, is_certain: bool) {
        if is_certain {
            self.stale = Stale::Yes;
        } else if self.stale == Stale::No {
            self.stale = Stale::Perhaps(now);
        }
        self.found_stale += 1;
    }
}

/// A time after `before`, so that clients notice a change; the host's if possible.
pub(super) fn later(before: Time, host: Time) -> Time {
    let next = match before.nanoseconds {
        999_999_999 => Time { seconds: before.seconds + 1, nanoseconds: 0 },
        nanoseconds => Time { nanoseconds: nanoseconds + 1, ..before },
    };
    host.max(next)
}

/// May a change after a read have left the time that the file had by the end of the read, being in the same step of the host's
/// clock? The read lasted from `began` to `ended`. A time further ahead was set by somebody; a change leaves another one.
pub(super) fn may_share_time(modified: Time, began: Time, ended: Time) -> bool {
    let ns = |time: Time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let step = CLOCK_STEP.as_nanos() as i128;
    (ns(began) - step..=ns(ended)).contains(&ns(modified))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_shares_the_time_of_changes_from_a_step_of_the_clock_before_it_to_its_end() {
        let time = |seconds, milliseconds: u32| Time { seconds, nanoseconds: milliseconds * 1_000_000 };
        let (began, ended) = (time(1_000, 5), time(1_007, 0));
        for (modified, shares) in [
            (time(999, 984), false),
            (time(999, 985), true),
            (time(1_003, 0), true),
            (time(1_007, 0), true),
            (time(1_007, 1), false),
            (time(i64::MIN, 0), false),
            (time(i64::MAX, 999), false),
        ] {
            assert_eq!(may_share_time(modified, began, ended), shares, "{modified:?}");
        }
    }
}
