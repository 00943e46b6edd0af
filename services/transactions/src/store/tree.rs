//! Looking up in the tree of a checkpoint: a B+ tree whose pages are never changed, only replaced.

use std::ops::Bound;

use kernel::counters::Count;
use kernel::{FrameRef, Processor};
use smallvec::SmallVec;

use super::layout::{PageNo, Root};
use super::page::Page;
use super::pages::Pages;
use super::{FullKey, Row, StoreError};

pub(super) async fn get(pages: &Pages, cpu: &Processor, root: Root, key: &[u8]) -> Result<Option<Row>, StoreError> {
    cpu.count(Count::TreeSearches, 1);
    let (mut no, mut level) = (root.page, root.height);
    loop {
        let frame = pages.read(cpu, no).await?;
        let page = Page::check(&frame, pages.identity, no, level)?;
        if level == 0 {
            return Ok(page.get(key).map(Row::from));
        }
        (no, level) = (page.child(page.branch(key)), level - 1);
    }
}

/// A page on the way down, and the cell taken.
struct Step {
    no: PageNo,
    frame: FrameRef,
    index: usize,
}

/// The first row from `from` on that is not deleted.
pub(super) async fn first(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    from: Bound<&[u8]>,
    is_deleted: impl Fn(&[u8]) -> bool,
) -> Result<Option<(FullKey, Row)>, StoreError> {
    seek(pages, cpu, root, from, false, is_deleted).await
}

/// The last row up to `to` that is not deleted.
pub(super) async fn last(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    to: Bound<&[u8]>,
    is_deleted: impl Fn(&[u8]) -> bool,
) -> Result<Option<(FullKey, Row)>, StoreError> {
    seek(pages, cpu, root, to, true, is_deleted).await
}

async fn seek(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    bound: Bound<&[u8]>,
    backwards: bool,
    is_deleted: impl Fn(&[u8]) -> bool,
) -> Result<Option<(FullKey, Row)>, StoreError> {
    cpu.count(Count::TreeSearches, 1);
    let mut path: SmallVec<[Step; 4]> = SmallVec::new();
    // Below the branch that the bound leads to, the nearest cell; below its neighbours, the outermost.
    let (mut no, mut bound) = (root.page, Some(bound));
    loop {
        let level = root.height - path.len() as u8;
        let frame = pages.read(cpu, no).await?;
        let page = Page::check(&frame, pages.identity, no, level)?;
        if level > 0 {
            let index = match bound {
                Some(Bound::Included(key) | Bound::Excluded(key)) => page.branch(key),
                Some(Bound::Unbounded) | None => {
                    if backwards {
                        page.len().saturating_sub(1)
                    } else {
                        0
                    }
                }
            };
            let child = page.child(index);
            path.push(Step { no, frame, index });
            no = child;
            continue;
        }
        if let Some((key, row)) = nearest(page, bound, backwards, &is_deleted) {
            return Ok(Some((FullKey::from(key), Row::from(row))));
        }
        bound = None;
        let Some(next) = neighbour(pages, &mut path, root, backwards)? else { return Ok(None) };
        no = next;
    }
}

fn nearest<'a>(
    page: Page<'a>,
    bound: Option<Bound<&[u8]>>,
    backwards: bool,
    is_deleted: impl Fn(&[u8]) -> bool,
) -> Option<(&'a [u8], &'a [u8])> {
    // The cells before the bound.
    let before = match (bound.unwrap_or(Bound::Unbounded), backwards) {
        (Bound::Included(key), _) => page.before(key, backwards),
        (Bound::Excluded(key), _) => page.before(key, !backwards),
        (Bound::Unbounded, false) => 0,
        (Bound::Unbounded, true) => page.len(),
    };
    let is_there = |(key, _): &(&[u8], &[u8])| !is_deleted(key);
    let cell = |index| page.cell(index);
    if backwards { (0..before).rev().map(cell).find(is_there) } else { (before..page.len()).map(cell).find(is_there) }
}

/// The page beside the one that `path` has led to, one level below the last step that remains.
fn neighbour(
    pages: &Pages,
    path: &mut SmallVec<[Step; 4]>,
    root: Root,
    backwards: bool,
) -> Result<Option<PageNo>, StoreError> {
    while let Some(mut step) = path.pop() {
        let level = root.height - path.len() as u8;
        let page = Page::check(&step.frame, pages.identity, step.no, level)?;
        let index = if backwards { step.index.checked_sub(1) } else { Some(step.index + 1) };
        if let Some(index) = index.filter(|index| *index < page.len()) {
            let child = page.child(index);
            step.index = index;
            path.push(step);
            return Ok(Some(child));
        }
    }
    Ok(None)
}
