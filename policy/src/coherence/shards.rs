//! Shards of the map: runs of adjacent pages that go to them in turn.

use std::ops::Range;

use super::{Config, Homes, PageNo, ShardNo};

impl Config {
    /// The part of the map in which a page is, where homes move.
    pub fn shard_of(&self, page: PageNo) -> ShardNo {
        ShardNo((page.0 / self.shard.max(1) % self.shards()) as u16)
    }

    fn shards(&self) -> u64 {
        let Homes::Mapped { shards } = self.homes else { return 1 };
        u64::from(shards.max(1))
    }

    /// Of each run of a shard in which there are pages of some set, in order, what begins with the first of those. `next`: the
    /// set's first page from a page on, which is asked for at most twice for each run of the shard: whatever else there is
    /// between two of them is passed over at once.
    pub fn runs_with(
        self,
        shard: ShardNo,
        mut next: impl FnMut(PageNo) -> Option<PageNo>,
    ) -> impl Iterator<Item = Range<PageNo>> {
        let mut from = PageNo(0);
        std::iter::from_fn(move || {
            loop {
                let page = next(from)?;
                let run = self.run_behind(shard, page);
                if run.contains(&page) {
                    from = run.end;
                    return Some(page..run.end);
                }
                from = run.start;
            }
        })
    }

    /// The first run of a shard that ends behind a page.
    fn run_behind(&self, shard: ShardNo, page: PageNo) -> Range<PageNo> {
        let (len, shards) = (self.shard.max(1), self.shards());
        let run = page.0 / len;
        let between = (u64::from(shard.0) + shards - run % shards) % shards;
        let start = (run + between) * len;
        PageNo(start)..PageNo(start + len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::{PageSet, Storage};
    use super::*;

    fn config(shards: u16, shard: u64) -> Config {
        let homes = Homes::Mapped { shards };
        let (timeout, storage) = (Duration::from_secs(1), Storage::Shared);
        Config { nodes: 2, pages: 1 << 20, homes, shard, storage, pages_max: 1 << 20, timeout }
    }

    proptest! {
        #[test]
        fn the_pages_of_a_shard_are_found_run_by_run(
            pages in prop::collection::btree_set(0..600_u64, 0..200),
            (shards, len) in (1..6_u16, 1..70_u64),
        ) {
            let config = config(shards, len);
            let mut set = PageSet::default();
            pages.iter().for_each(|page| set.insert(PageNo(*page)));
            let mut found = BTreeSet::new();
            for shard in (0..shards).map(ShardNo) {
                let mut asked = 0;
                let runs = config.runs_with(shard, |from| {
                    asked += 1;
                    set.within(from..PageNo(u64::MAX)).next()
                });
                for run in runs {
                    prop_assert!(run.end.0 - run.start.0 <= len && set.contains(run.start));
                    let of_it: Vec<PageNo> = set.within(run).collect();
                    prop_assert!(of_it.iter().all(|page| config.shard_of(*page) == shard));
                    found.extend(of_it.iter().map(|page| page.0));
                }
                prop_assert!(asked <= 2 * (600 / (len * u64::from(shards)) + 2), "{} times", asked);
            }
            prop_assert_eq!(found, pages);
        }
    }
}
