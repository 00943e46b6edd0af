//! Errors of a file's write-back: each is told once to each opening, as the host's kernel does it (`errseq_t`).
//!
//! What fails in the background fails when nobody waits for it. It is kept with a number, and every opening remembers the
//! number up to which it was told. What nobody was told of yet, the next opening is told, too. What fails stays in the cache
//! and is tried again: until something is stored again, that is one error, however often it fails.

use machine::Errno;
use parking_lot::Mutex;

/// What has failed so far. Of several errors since an opening was last told, it is told the last.
#[derive(Default)]
pub(crate) struct Errors(Mutex<State>);

#[derive(Default)]
struct State {
    count: u64,
    last: Option<Errno>,
    /// Nothing was stored since the last one.
    is_failing: bool,
    /// The errors up to this one were told to somebody.
    told: u64,
}

/// The errors that an opening was told: as many of the first.
#[derive(Debug)]
pub(crate) struct Told(u64);

impl Errors {
    pub fn note(&self, errno: Errno) {
        let mut state = self.0.lock();
        if !state.is_failing || state.last != Some(errno) {
            state.count += 1;
        }
        (state.last, state.is_failing) = (Some(errno), true);
    }

    /// What was answered is lost: a new error, also after the same one.
    pub fn note_lost(&self, errno: Errno) {
        let mut state = self.0.lock();
        state.count += 1;
        (state.last, state.is_failing) = (Some(errno), true);
    }

    /// Something that was written is durable.
    pub fn on_stored(&self) {
        self.0.lock().is_failing = false;
    }

    /// Was nothing stored since the last one?
    pub fn is_failing(&self) -> bool {
        self.0.lock().is_failing
    }

    /// The last one, if nobody was told of it.
    pub fn untold(&self) -> Option<Errno> {
        let state = self.0.lock();
        state.last.filter(|_| state.told < state.count)
    }

    /// For an opening that begins now.
    pub fn begin(&self) -> Told {
        Told(self.0.lock().told)
    }

    /// What an opening was not told yet; from now on it was.
    pub fn take(&self, told: &mut Told) -> Option<Errno> {
        let mut state = self.0.lock();
        let is_new = told.0 < state.count;
        (told.0, state.told) = (state.count, state.count);
        state.last.filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Errno = Errno(libc::ENOSPC);

    #[test]
    fn an_error_is_told_once_to_each_opening() {
        let errors = Errors::default();
        let mut openings = [errors.begin(), errors.begin()];
        let mut told = || openings.each_mut().map(|told| errors.take(told));
        assert_eq!(told(), [None, None]);
        errors.note(FULL);
        assert_eq!(told(), [Some(FULL), Some(FULL)]);
        assert_eq!(told(), [None, None]);
    }

    #[test]
    fn what_is_lost_is_a_new_error_each_time() {
        let errors = Errors::default();
        let mut told = errors.begin();
        for _ in 0..2 {
            errors.note_lost(FULL);
            assert_eq!(errors.untold(), Some(FULL));
            assert_eq!(errors.take(&mut told), Some(FULL));
            assert_eq!(errors.untold(), None);
        }
    }

    #[test]
    fn what_is_tried_again_in_vain_is_no_new_error() {
        let errors = Errors::default();
        let mut told = errors.begin();
        errors.note(FULL);
        assert_eq!(errors.take(&mut told), Some(FULL));
        errors.note(FULL);
        assert_eq!(errors.take(&mut told), None);
        errors.note(Errno::IO);
        assert_eq!(errors.take(&mut told), Some(Errno::IO), "another one");
        errors.on_stored();
        errors.note(Errno::IO);
        assert_eq!(errors.take(&mut told), Some(Errno::IO), "again");
    }

    #[test]
    fn who_opens_after_somebody_was_told_is_not_told() {
        let errors = Errors::default();
        let mut before = errors.begin();
        errors.note(FULL);
        errors.take(&mut before);
        assert_eq!(errors.take(&mut errors.begin()), None);
    }

    #[test]
    fn what_nobody_was_told_the_next_opening_is() {
        let errors = Errors::default();
        errors.note(FULL);
        errors.note(Errno::IO);
        let (mut first, mut second) = (errors.begin(), errors.begin());
        assert_eq!(errors.take(&mut first), Some(Errno::IO), "the last");
        assert_eq!(errors.take(&mut second), Some(Errno::IO), "it was open before anybody was told");
        assert_eq!(errors.take(&mut errors.begin()), None);
    }
}
