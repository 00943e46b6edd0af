//! Sets of pages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{NodeId, PageNo};
use crate::unflushed::Changes;

/// Pages that share a word of bits.
const WORD: u64 = 64;

/// The number of the word in which a page's bit is.
pub(super) fn word(page: PageNo) -> u64 {
    page.0 / WORD
}

/// The page's bit.
pub(super) fn place(page: PageNo) -> u64 {
    1 << (page.0 % WORD)
}

/// The parts of a run that are in one word each, with its number.
pub(super) fn within_words(pages: Range<PageNo>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let Range { start: PageNo(start), end: PageNo(end) } = pages;
    let words = if start < end { start / WORD..(end - 1) / WORD + 1 } else { 0..0 };
    words.map(move |word| (word, start.max(word * WORD)..end.min((word + 1).saturating_mul(WORD))))
}

/// Pages, a bit for each: neighbours, of which there are usually many, take no more memory than one.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    words: BTreeMap<u64, u64>,
}

impl PageSet {
    pub fn contains(&self, page: PageNo) -> bool {
        self.words.get(&word(page)).is_some_and(|bits| bits & place(page) != 0)
    }

    pub fn insert(&mut self, page: PageNo) {
        *self.words.entry(word(page)).or_default() |= place(page);
    }

    pub fn remove(&mut self, page: PageNo) {
        if let Some(bits) = self.words.get_mut(&word(page)) {
            *bits &= !place(page);
            if *bits == 0 {
                self.words.remove(&word(page));
            }
        }
    }

    /// Sets the bits of a word that are in `all` as in `bits`.
    pub(super) fn set_bits(&mut self, word: u64, all: u64, bits: u64) {
        let before = self.words.get(&word).copied().unwrap_or_default();
        match before & !all | bits {
            0 => _ = self.words.remove(&word),
            now => _ = self.words.insert(word, now),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Counts no further.
    pub fn has_at_least(&self, pages: u64) -> bool {
        let mut counted = 0;
        let mut counts = self.words.values().map(|bits| {
            counted += u64::from(bits.count_ones());
            counted
        });
        pages == 0 || counts.any(|counted| counted >= pages)
    }

    /// With nodes of the tree half full.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 2 * (size_of::<u64>() + size_of::<u64>())
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = PageNo> + '_ {
        self.words.iter().flat_map(pages_of)
    }

    /// Those among these, in order.
    pub fn within(&self, pages: Range<PageNo>) -> impl Iterator<Item = PageNo> + '_ {
        let words = self.words.range(word(pages.start)..).flat_map(pages_of);
        words.skip_while(move |page| *page < pages.start).take_while(move |page| *page < pages.end)
    }

    pub fn retain(&mut self, stays: impl Fn(PageNo) -> bool) {
        let gone: Vec<PageNo> = self.iter().filter(|page| !stays(*page)).collect();
        gone.into_iter().for_each(|page| self.remove(page));
    }
}

/// The pages whose bits a word has, in order.
fn pages_of((word, bits): (&u64, &u64)) -> impl Iterator<Item = PageNo> + use<> {
    let (word, bits) = (*word, *bits);
    (0..WORD).filter(move |at| bits >> at & 1 == 1).map(move |at| PageNo(word * WORD + at))
}

impl Changes for PageSet {
    type Part = PageNo;

    fn remove(&mut self, page: PageNo) {
        PageSet::remove(self, page);
    }

    fn append(&mut self, newer: PageSet) {
        newer.words.into_iter().for_each(|(word, bits)| *self.words.entry(word).or_default() |= bits);
    }
}

/// Pages that one node may write, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Exclusive(BTreeMap<NodeId, Own>);

#[derive(Clone, Debug, Default)]
struct Own {
    pages: PageSet,
    count: usize,
}

impl Exclusive {
    pub(super) fn change(&mut self, page: PageNo, before: Option<NodeId>, now: Option<NodeId>) {
        if before == now {
            return;
        }
        if let Some(own) = before.and_then(|node| self.0.get_mut(&node)) {
            own.pages.remove(page);
            own.count -= 1;
        }
        if let Some(own) = now.map(|node| self.0.entry(node).or_default()) {
            own.pages.insert(page);
            own.count += 1;
        }
    }

    /// Of all nodes that are meant.
    pub(super) fn of(&self, is_meant: impl Fn(NodeId) -> bool) -> Vec<PageNo> {
        let meant = self.0.iter().filter(|(node, _)| is_meant(**node));
        meant.flat_map(|(_, own)| own.pages.iter()).collect()
    }

    pub(super) fn count_of(&self, node: NodeId) -> usize {
        self.0.get(&node).map_or(0, |own| own.count)
    }

    pub(super) fn retain(&mut self, stays: impl Fn(PageNo) -> bool) {
        for own in self.0.values_mut() {
            own.pages.retain(&stays);
            own.count = own.pages.iter().count();
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.values().map(|own| own.pages.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_are_in_the_set_from_their_insertion_to_their_removal(
            changes in proptest::collection::vec((0..300_u64, any::<bool>()), 0..300),
        ) {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            for (page, is_in) in changes {
                if is_in {
                    set.insert(PageNo(page));
                    model.insert(page);
                } else {
                    set.remove(PageNo(page));
                    model.remove(&page);
                }
                prop_assert_eq!(set.contains(PageNo(page)), is_in);
                prop_assert_eq!(set.is_empty(), model.is_empty());
                let len = model.len() as u64;
                prop_assert!(set.has_at_least(0) && set.has_at_least(len) && !set.has_at_least(len + 1));
            }
            set.retain(|page| page.0 % 3 > 0);
            model.retain(|page| page % 3 > 0);
            prop_assert_eq!(set.iter().map(|page| page.0).collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }
}
