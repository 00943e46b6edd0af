//! The keys that the newest commits have written.
//!
//! Most transactions are so short that only few others commit meanwhile. Whether one of those has changed what was read is
//! found by comparing with their few keys. Looking up again all that was read had the state locked for so long that two
//! processors, with 27 rows read in each transaction, spent a seventh of their time waiting for each other.

use std::collections::VecDeque;

use super::{FullKey, Sequence};

/// Keys that are remembered: comparing with so many costs less than looking one up.
const KEYS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct LastWritten {
    keys: VecDeque<(Sequence, FullKey)>,
    /// The newest commit of which a key is remembered no more.
    forgotten: Sequence,
}

impl LastWritten {
    pub(super) fn push(&mut self, at: Sequence, key: &FullKey) {
        if self.keys.len() == KEYS_MAX
            && let Some((at, _)) = self.keys.pop_front()
        {
            self.forgotten = at;
        }
        self.keys.push_back((at, key.clone()));
    }

    /// Those written after `since`. `None`: not all of them are remembered.
    pub(super) fn after(&self, since: Sequence) -> Option<impl Iterator<Item = &FullKey>> {
        let newer = self.keys.iter().rev().take_while(move |(at, _)| *at > since).map(|(_, key)| key);
        (self.forgotten <= since).then_some(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_all_of_what_was_written_since_or_nothing() {
        let mut written = LastWritten::default();
        let key = |number: u64| FullKey::from(number.to_be_bytes().as_slice());
        let commits = KEYS_MAX as u64;
        // Two keys each.
        for number in 0..2 * commits {
            written.push(Sequence(1 + number / 2), &key(number));
        }
        let after = |since| written.after(Sequence(since)).map(|keys| keys.cloned().collect::<Vec<_>>());
        assert_eq!(after(commits), Some(vec![]));
        assert_eq!(after(commits - 1), Some(vec![key(2 * commits - 1), key(2 * commits - 2)]));
        assert_eq!(after(commits / 2).map(|keys| keys.len()), Some(KEYS_MAX));
        assert_eq!(after(commits / 2 - 1), None);
        // Only one key of commit `commits / 2 + 1` is left.
        written.push(Sequence(commits + 1), &key(0));
        assert_eq!(written.after(Sequence(commits / 2)).map(Iterator::count), None);
        assert_eq!(written.after(Sequence(commits / 2 + 1)).map(Iterator::count), Some(KEYS_MAX - 1));
    }
}
