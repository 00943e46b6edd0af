//! Pages that mappings are to be given ahead, in runs that were asked for in one step. No thread waits for them; one that
//! begins to is noted with its page.

use std::collections::BTreeMap;
use std::ops::Range;

use policy::coherence::PageNo;
use policy::unit::Instant;

use super::MappingNo;

/// Each page of one mapping at most: who else wants it is noted with its page. So there are no more of them than pages that were
/// asked for.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// By first page. Runs do not overlap.
    runs: BTreeMap<PageNo, Ahead>,
}

#[derive(Clone, Copy, Debug)]
struct Ahead {
    end: PageNo,
    no: MappingNo,
    deadline: Instant,
}

impl Expected {
    pub(crate) fn add(&mut self, pages: Range<PageNo>, no: MappingNo, deadline: Instant) {
        self.take(&pages);
        if pages.start < pages.end {
            self.runs.insert(pages.start, Ahead { end: pages.end, no, deadline });
        }
    }

    /// Takes out those of these pages that are expected.
    pub(crate) fn take(&mut self, pages: &Range<PageNo>) -> Vec<(Range<PageNo>, MappingNo, Instant)> {
        let mut taken = Vec::new();
        while let Some((&start, &run)) =
            self.runs.range(..pages.end).next_back().filter(|(_, run)| run.end > pages.start)
        {
            self.runs.remove(&start);
            if start < pages.start {
                self.runs.insert(start, Ahead { end: pages.start, ..run });
            }
            if pages.end < run.end {
                self.runs.insert(pages.end, run);
            }
            taken.push((start.max(pages.start)..run.end.min(pages.end), run.no, run.deadline));
        }
        taken.reverse();
        taken
    }

    /// A mapping is given nothing more.
    pub(crate) fn end(&mut self, no: MappingNo) {
        self.runs.retain(|_, run| run.no != no);
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.runs.retain(|_, run| run.deadline > now);
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    pub(crate) fn has(&self, page: PageNo) -> bool {
        self.runs.range(..=page).next_back().is_some_and(|(_, run)| run.end > page)
    }

    /// Pages.
    pub(crate) fn count(&self) -> usize {
        self.runs.iter().map(|(start, run)| (run.end.0 - start.0) as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_page_is_expected_by_whom_it_was_last_until_it_is_taken(
            changes in proptest::collection::vec((0..60_u64, 0..20_u64, 0..4_u32, 0..3_u8), 0..60),
        ) {
            let (mut expected, mut model) = (Expected::default(), BTreeMap::new());
            for (first, len, no, kind) in changes {
                let pages = PageNo(first)..PageNo(first + len);
                let at = Instant::from_ns(u64::from(no));
                match kind {
                    0 => {
                        expected.add(pages, MappingNo(no), at);
                        model.extend((first..first + len).map(|page| (page, no)));
                    }
                    1 => {
                        let taken = expected.take(&pages);
                        let each = taken.into_iter().flat_map(|(pages, no, _)| {
                            (pages.start.0..pages.end.0).map(move |page| (page, no.0))
                        });
                        let its: Vec<(u64, u32)> = model.range(first..first + len).map(|(page, no)| (*page, *no)).collect();
                        prop_assert_eq!(each.collect::<Vec<_>>(), its);
                        model.retain(|page, _| !(first..first + len).contains(page));
                    }
                    2 if len % 2 == 0 => {
                        expected.end(MappingNo(no));
                        model.retain(|_, of| *of != no);
                    }
                    _ => {
                        expected.expire(at);
                        model.retain(|_, of| *of > no);
                    }
                }
                prop_assert_eq!(expected.count(), model.len());
                prop_assert!((0..80).all(|page| expected.has(PageNo(page)) == model.contains_key(&page)));
            }
            expected.clear();
            prop_assert_eq!(expected.count(), 0);
        }
    }
}
