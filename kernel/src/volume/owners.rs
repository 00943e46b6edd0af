//! The number of a volume's dirty blocks that each job wrote (WS-7).
//!
//! The writer of each single block is not recorded. Where several jobs write to one volume, what is written out is
//! attributed to them in proportion to their dirty blocks: exact for a volume with one writer, as most have, and right
//! on average for others, since write-back passes over the whole volume.

use smallvec::SmallVec;

use super::{State, Volume};
use crate::request::JobId;

type Shares = SmallVec<[(JobId, u64); 2]>;

/// Dirty blocks of each job, including those being written.
#[derive(Debug, Default)]
pub(super) struct Owners {
    shares: Shares,
    last: JobId,
}

impl Owners {
    fn add(&mut self, job: JobId, blocks: u64) {
        self.last = job;
        match self.shares.iter_mut().find(|(of, _)| *of == job) {
            Some((_, count)) => *count += blocks,
            None if blocks > 0 => self.shares.push((job, blocks)),
            None => {}
        }
    }

    /// `blocks` were written: removes them from the shares and returns the part attributed to each job.
    fn take(&mut self, blocks: u64) -> Shares {
        let total: u64 = self.shares.iter().map(|(_, count)| count).sum();
        let blocks = blocks.min(total);
        let part = |count: u64| (u128::from(count) * u128::from(blocks) / u128::from(total.max(1))) as u64;
        let mut taken: Shares = self.shares.iter().map(|(job, count)| (*job, part(*count))).collect();
        let mut left = blocks - taken.iter().map(|(_, part)| part).sum::<u64>();
        for ((_, count), (_, part)) in self.shares.iter_mut().zip(&mut taken) {
            let more = left.min(*count - *part);
            (left, *part) = (left - more, *part + more);
            *count -= *part;
        }
        self.shares.retain(|(_, count)| *count > 0);
        taken
    }

    /// The job to charge for writing: the one with most dirty blocks, or else the last writer.
    pub(super) fn payer(&self) -> JobId {
        self.shares.iter().max_by_key(|(_, count)| *count).map_or(self.last, |(job, _)| *job)
    }
}

impl Volume {
    /// The job has made `blocks` more blocks dirty.
    pub(super) fn note_dirty(&self, state: &mut State, job: JobId, blocks: u64) {
        state.owners.add(job, blocks);
        self.jobs.add_dirty(job, blocks);
        self.memory.add_dirty(blocks);
    }

    /// `blocks` are no longer dirty. The caller must then wake the waiters with `Memory::subtract_dirty`.
    pub(super) fn note_clean(&self, state: &mut State, blocks: u64) {
        for (job, blocks) in state.owners.take(blocks) {
            self.jobs.subtract_dirty(job, blocks);
        }
    }

    /// The job to charge for write-back of this volume.
    pub(super) fn payer(&self) -> JobId {
        self.state.lock().owners.payer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_shared_among_those_who_wrote_it_and_none_is_lost() {
        let (one, other) = (JobId(1), JobId(2));
        let mut owners = Owners::default();
        owners.add(one, 300);
        owners.add(other, 100);
        assert_eq!((owners.payer(), owners.take(40).as_slice()), (one, [(one, 30), (other, 10)].as_slice()));
        let mut left = [270, 90];
        for blocks in [1, 2, 3, 7, 100, 1, 246] {
            for ((job, part), of) in owners.take(blocks).into_iter().zip([one, other]) {
                assert_eq!(job, of);
                left[(job.0 - 1) as usize] -= part;
            }
        }
        assert_eq!((left, owners.take(5).len()), ([0, 0], 0));
        assert_eq!(owners.payer(), other, "the last one");
        owners.add(one, 0);
        assert!(owners.take(1).is_empty());
    }
}
