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

/// The first row from `from` on.
pub(super) async fn first(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    from: Bound<&[u8]>,
) -> Result<Option<(FullKey, Row)>, StoreError> {
    seek(pages, cpu, root, from, false).await
}

/// The last row up to `to`.
pub(super) async fn last(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    to: Bound<&[u8]>,
) -> Result<Option<(FullKey, Row)>, StoreError> {
    seek(pages, cpu, root, to, true).await
}

async fn seek(
    pages: &Pages,
    cpu: &Processor,
    root: Root,
    bound: Bound<&[u8]>,
    backwards: bool,
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
        if let Some(index) = nearest(page, bound, backwards) {
            let (key, row) = page.cell(index);
            return Ok(Some((FullKey::from(key), Row::from(row))));
        }
        bound = None;
        let Some(next) = neighbour(pages, &mut path, root, backwards)? else { return Ok(None) };
        no = next;
    }
}

fn nearest(page: Page<'_>, bound: Option<Bound<&[u8]>>, backwards: bool) -> Option<usize> {
    let index = match (bound.unwrap_or(Bound::Unbounded), backwards) {
        (Bound::Included(key), false) => page.before(key, false),
        (Bound::Excluded(key), false) => page.before(key, true),
        (Bound::Unbounded, false) => 0,
        (Bound::Included(key), true) => page.before(key, true).checked_sub(1)?,
        (Bound::Excluded(key), true) => page.before(key, false).checked_sub(1)?,
        (Bound::Unbounded, true) => page.len().checked_sub(1)?,
    };
    (index < page.len()).then_some(index)
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
