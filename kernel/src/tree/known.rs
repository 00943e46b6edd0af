//! What is known of a file on the host, and whether what is cached of it is stale.

use std::time::Duration;

use machine::tree::{Attributes, Time};
use policy::unit::Instant;

/// Attributes from the host are valid for this long.
pub const FRESH: Duration = Duration::from_millis(500);

/// Minimum interval of revalidations of a file that the host's processes write all the time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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

/// The file's known attributes.
pub(super) struct Known {
    /// The host's last reply; when is in `asked`.
    pub(super) host: Attributes,
    pub(super) asked: Instant,
    /// Our writes before the host was asked; `None` where unknown.
    pub(super) writes: Option<Writes>,
    /// The changes by others reported before that.
    pub(super) reported: Reported,
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
    /// `asked`: before the file was opened, so there were no writes of ours.
    pub(super) fn new(host: Attributes, asked: Instant, writes: Writes, reported: Reported) -> Self {
        Known {
            host,
            asked,
            writes: Some(writes),
            reported,
            stale: Stale::No,
            found_stale: 0,
            modified: host.modified,
            changed: host.changed,
        }
    }

    /// Was the host asked lately, and no change `reported` since?
    pub(super) fn is_fresh(&self, now: Instant, reported: Reported) -> bool {
        let age = now.since(self.asked);
        let is_current = match self.stale {
            Stale::No => true,
            Stale::Perhaps(since) => now.since(since) < FRESH,
            Stale::Yes => false,
        };
        let is_quiet = reported.by_host == self.reported.by_host || age < LOOK_AGAIN;
        is_current && age < FRESH && is_quiet && reported.by_siblings == self.reported.by_siblings
    }

    /// Records attributes of the host, read after our `writes`, where those are known, and after `reported` changes by
    /// others. `until`: our writes by now; `is_watched`: the host reports changes by others.
    pub(super) fn note(
        &mut self,
        now: Instant,
        host: Attributes,
        (writes, until): (Option<Writes>, Writes),
        (reported, is_watched): (Reported, bool),
    ) {
        let is_alone = self.writes.is_some_and(|before| before.were_none_until(until));
        let is_reported = reported != self.reported;
        let content = |attributes: &Attributes| (attributes.size, attributes.modified);
        let differs = content(&host) != content(&self.host);
        if is_alone && host.changed != self.host.changed || is_reported {
            self.changed = later(self.changed, host.changed);
        }
        if is_alone && differs || is_reported {
            self.modified = if is_alone { host.modified } else { later(self.modified, host.modified) };
            self.stale = Stale::Yes;
            self.found_stale += 1;
        } else if differs && !is_watched {
            if self.stale == Stale::No {
                self.stale = Stale::Perhaps(now);
            }
            self.found_stale += 1;
        }
        self.host = host;
        self.writes = writes.or(self.writes.filter(|_| is_alone));
        self.reported = reported;
        self.asked = now;
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
