//! A file as its users see it now, and as a power cut would leave it.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ledger::SECTOR;
use crate::random::Random;

/// The content of a file.
#[derive(Default)]
pub struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that a flush would make durable.
    dirty: BTreeSet<usize>,
}

/// What a flush that is under way covers: the content at its start.
pub struct Flush {
    size: usize,
    sectors: Vec<(usize, Vec<u8>)>,
}

impl Content {
    pub fn size(&self) -> usize {
        self.live.len()
    }

    /// What is read: less where the file ends.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        let end = self.live.len().min(at.saturating_add(len));
        &self.live[at.min(end)..end]
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.set_size(self.live.len().max(end));
        self.live[at..end].copy_from_slice(bytes);
        self.soil(at..end);
    }

    /// Makes what lies within the file zeroes.
    pub fn zero(&mut self, range: Range<usize>) {
        let end = range.end.min(self.live.len());
        let range = range.start.min(end)..end;
        self.live[range.clone()].fill(0);
        self.soil(range);
    }

    /// Makes it longer by zeroes, or shorter.
    pub fn set_size(&mut self, size: usize) {
        let old = self.live.len();
        self.live.resize(size, 0);
        self.soil(old.min(size)..old.max(size));
    }

    fn soil(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.dirty.extend(range.start / SECTOR..range.end.div_ceil(SECTOR));
        }
    }

    /// Begins a flush, which covers what was done before (M2).
    pub fn begin_flush(&mut self) -> Flush {
        let dirty = std::mem::take(&mut self.dirty);
        let sector = |sector: usize| (sector, self.read(sector * SECTOR, SECTOR).to_vec());
        Flush { size: self.live.len(), sectors: dirty.into_iter().map(sector).collect() }
    }

    /// Ends it. When it has failed, all that was not durable up to now is as it is on a host that has marked its pages
    /// clean: it is read, but no later flush covers it (M7).
    pub fn end_flush(&mut self, flush: Flush, has_failed: bool) {
        if has_failed {
            self.dirty.clear();
            return;
        }
        self.durable.resize(flush.size, 0);
        for (sector, bytes) in flush.sectors {
            let at = (sector * SECTOR).min(flush.size);
            self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The power is cut: what no flush has covered is gone, or some of it, as a disk may have kept what it liked.
    pub fn cut(&mut self, keep: Option<&mut Random>) {
        if let Some(random) = keep {
            for &sector in &self.dirty {
                let at = sector * SECTOR;
                let end = (at + SECTOR).min(self.live.len()).min(self.durable.len());
                if at < end && random.chance(500) {
                    self.durable[at..end].copy_from_slice(&self.live[at..end]);
                }
            }
        }
        self.live.clone_from(&self.durable);
        self.dirty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(byte: u8) -> Content {
        let mut content = Content::default();
        content.write(0, &[byte; 2 * SECTOR]);
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        content
    }

    fn after_cut(mut content: Content) -> Vec<u8> {
        content.cut(None);
        content.read(0, usize::MAX).to_vec()
    }

    #[test]
    fn what_a_successful_flush_covered_stays_and_what_came_after_its_start_does_not() {
        let mut content = written(1);
        content.write(0, &[2; SECTOR]);
        let flush = content.begin_flush();
        content.write(SECTOR, &[3; 2 * SECTOR]);
        content.end_flush(flush, false);
        assert_eq!(content.size(), 3 * SECTOR);
        assert_eq!(after_cut(content), [[2; SECTOR], [1; SECTOR]].concat());
    }

    #[test]
    fn what_a_failed_flush_covered_is_read_and_not_covered_by_the_next() {
        let mut content = written(1);
        content.write(0, &[2; SECTOR]);
        let flush = content.begin_flush();
        content.zero(SECTOR..2 * SECTOR);
        content.end_flush(flush, true);
        assert_eq!(content.read(0, usize::MAX), [[2; SECTOR], [0; SECTOR]].concat());
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        assert_eq!(after_cut(content), [1; 2 * SECTOR]);
    }

    #[test]
    fn a_size_is_durable_with_the_content() {
        let mut content = written(1);
        content.set_size(SECTOR);
        content.set_size(3 * SECTOR);
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        assert_eq!(after_cut(content), [[1; SECTOR], [0; SECTOR], [0; SECTOR]].concat());
    }
}
