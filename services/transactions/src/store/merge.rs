//! Merging what was committed into a new tree: pages that change are written anew, elsewhere (copy on write), and so is
//! the path to them; all others are shared with the old tree.

use kernel::{FrameRef, Processor};

use super::layout::{PageNo, Root};
use super::page::{self, CAPACITY, Page, cell_bytes};
use super::spread::{ENTRIES_A_SLICE, Spread};
use super::{Database, FullKey, Row, StoreError};

/// A page with fewer bytes of cells is joined with its neighbour.
const SPARSE_BYTES: usize = CAPACITY / 4;

/// A change of one key; `None`: it is deleted.
pub(super) type Change<'a> = (&'a FullKey, Option<&'a Row>);

pub(super) struct Merge<'a> {
    pub cpu: &'a Processor,
    pub database: &'a Database,
    pub spread: Spread<'a>,
    /// Pages that the new tree does not have any more.
    pub replaced: Vec<PageNo>,
    /// Pages that only the new tree has.
    pub written: Vec<PageNo>,
}

/// A page of the new tree, as its parent refers to it.
#[derive(Clone, Debug)]
struct Child {
    first: FullKey,
    page: PageNo,
    /// Bytes of its cells; `None`: it is as it was, and was not looked at.
    bytes: Option<usize>,
}

/// Key and value of a cell, where they are: in the frame of a page that is replaced, or among the changes. Most cells of a page
/// stay as they are: a copy of each on the heap would be made to be written once.
type Cell<'a> = (&'a [u8], &'a [u8]);

impl Merge<'_> {
    /// The tree of `root` with these changes, which are in the order of their keys.
    ///
    /// # Errors
    /// If there is no space, or the volume fails: then what was `written` is of no use.
    pub(super) async fn run(&mut self, root: Option<Root>, changes: &[Change<'_>]) -> Result<Option<Root>, StoreError> {
        let (mut children, mut level) = match root {
            Some(root) => (self.page(root.page, root.height, changes).await?, root.height),
            None => (self.leaves(&[], changes).await?, 0),
        };
        while children.len() > 1 {
            level += 1;
            children = self.write_inner(level, &children).await?;
        }
        let Some(top) = children.pop() else { return Ok(None) };
        let mut root = Root { page: top.page, height: level };
        while root.height > 0 {
            let frame = self.database.pages.read(self.cpu, root.page).await?;
            let page = Page::check(&frame, self.database.pages.identity, root.page, root.height)?;
            if page.len() > 1 {
                break;
            }
            self.replaced.push(root.page);
            root = Root { page: page.child(0), height: root.height - 1 };
        }
        Ok(Some(root))
    }

    /// What replaces a page.
    async fn page(&mut self, no: PageNo, level: u8, changes: &[Change<'_>]) -> Result<Vec<Child>, StoreError> {
        let frame = self.take(no).await?;
        let page = Page::check(&frame, self.database.pages.identity, no, level)?;
        if level == 0 {
            let cells: Vec<Cell<'_>> = page.cells().collect();
            return self.leaves(&cells, changes).await;
        }
        let children = Box::pin(self.children(page, level, changes)).await?;
        self.write_inner(level, &children).await
    }

    /// The leaves with these cells and changes. Many changes are merged a part after another, so that others run meanwhile.
    async fn leaves(&mut self, mut cells: &[Cell<'_>], changes: &[Change<'_>]) -> Result<Vec<Child>, StoreError> {
        let mut children = Vec::new();
        let mut parts = changes.chunks(ENTRIES_A_SLICE).peekable();
        while let Some(part) = parts.next() {
            let ends = parts.peek().map_or(cells.len(), |next| before(cells, next[0].0));
            let (now, later) = cells.split_at(ends);
            self.spread.on_merged(part.len());
            children.extend(self.write(0, &merged(now, part)).await?);
            cells = later;
        }
        Ok(children)
    }

    /// The children of an inner page, with changes.
    async fn children(
        &mut self,
        of: Page<'_>,
        level: u8,
        mut changes: &[Change<'_>],
    ) -> Result<Vec<Child>, StoreError> {
        let mut children = Vec::with_capacity(of.len());
        for index in 0..of.len() {
            let (first, page) = (of.cell(index).0, of.child(index));
            let count = match index + 1 {
                next if next < of.len() => changes.partition_point(|(key, _)| key.as_slice() < of.cell(next).0),
                _ => changes.len(),
            };
            let (mine, others) = changes.split_at(count);
            changes = others;
            if mine.is_empty() {
                children.push(Child { first: FullKey::from(first), page, bytes: None });
            } else {
                children.extend(self.page(page, level - 1, mine).await?);
            }
        }
        self.join_sparse(children, level - 1).await
    }

    /// Joins pages that became nearly empty with a neighbour.
    async fn join_sparse(&mut self, children: Vec<Child>, level: u8) -> Result<Vec<Child>, StoreError> {
        let is_sparse = |child: &Child| child.bytes.is_some_and(|bytes| bytes < SPARSE_BYTES);
        let mut joined: Vec<Child> = Vec::with_capacity(children.len());
        for child in children {
            match joined.last() {
                Some(last) if is_sparse(last) || is_sparse(&child) => {
                    let last = joined.pop().map(|last| last.page);
                    let mut frames = Vec::new();
                    for page in last.into_iter().chain([child.page]) {
                        frames.push((page, self.take(page).await?));
                    }
                    let mut cells: Vec<Cell<'_>> = Vec::new();
                    for (page, frame) in &frames {
                        cells.extend(Page::check(frame, self.database.pages.identity, *page, level)?.cells());
                    }
                    joined.extend(self.write(level, &cells).await?);
                }
                _ => joined.push(child),
            }
        }
        Ok(joined)
    }

    /// A page that is about to be replaced.
    async fn take(&mut self, no: PageNo) -> Result<FrameRef, StoreError> {
        let frame = self.database.pages.read(self.cpu, no).await?;
        self.replaced.push(no);
        self.spread.on_page().await;
        Ok(frame)
    }

    /// Writes the inner pages above these.
    async fn write_inner(&mut self, level: u8, children: &[Child]) -> Result<Vec<Child>, StoreError> {
        let pages: Vec<_> = children.iter().map(|child| child.page.0.to_le_bytes()).collect();
        let cells: Vec<Cell<'_>> =
            children.iter().zip(&pages).map(|(child, page)| (&*child.first, page.as_slice())).collect();
        self.write(level, &cells).await
    }

    /// Writes cells to as many pages as they need.
    async fn write(&mut self, level: u8, cells: &[Cell<'_>]) -> Result<Vec<Child>, StoreError> {
        let ends = page::divide(cells.iter().map(|(key, value)| cell_bytes(key, value)));
        let mut children = Vec::with_capacity(ends.len());
        let mut start = 0;
        for end in ends {
            let piece = &cells[start..end];
            start = end;
            let Some((first, _)) = piece.first() else { continue };
            let page = self.database.space.lock().allocate().ok_or(StoreError::Full)?;
            self.written.push(page);
            let mut frames = self.cpu.kernel().allocate(self.cpu, 1).await;
            let Some(mut frame) = frames.pop() else { return Err(StoreError::Full) };
            if let Some(bytes) = frame.bytes_mut() {
                page::fill(bytes, (self.database.pages.identity, page, level), piece.iter().copied());
            }
            self.database.pages.write(self.cpu, page, frame).await?;
            let bytes = piece.iter().map(|(key, value)| cell_bytes(key, value)).sum();
            children.push(Child { first: FullKey::from(*first), page, bytes: Some(bytes) });
            self.spread.on_written().await;
        }
        Ok(children)
    }
}

/// The number of cells whose key is before `key`.
fn before(cells: &[Cell<'_>], key: &[u8]) -> usize {
    cells.partition_point(|(own, _)| *own < key)
}

fn merged<'a>(mut cells: &[Cell<'a>], changes: &[Change<'a>]) -> Vec<Cell<'a>> {
    let mut result = Vec::with_capacity(cells.len() + changes.len());
    for (key, row) in changes {
        let (unchanged, rest) = cells.split_at(before(cells, key));
        result.extend_from_slice(unchanged);
        result.extend(row.map(|row| (key.as_slice(), &**row)));
        let is_replaced = rest.first().is_some_and(|(own, _)| *own == key.as_slice());
        cells = &rest[usize::from(is_replaced)..];
    }
    result.extend_from_slice(cells);
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::TableNo;
    use super::*;

    #[test]
    fn cells_with_changes_are_as_a_map_with_them() {
        let key = |number: u8| FullKey::new(TableNo(1), &[number]);
        let row = Row::from([7].as_slice());
        // Each key from 1 to 3 is there or not, and is left, written or deleted; before, between and behind them are others.
        for state in 0..6_u32.pow(3) {
            let of = |number: u8| (state / 6_u32.pow(u32::from(number) - 1)) % 6;
            let keys: Vec<(u8, FullKey)> = (0..5).map(|number| (number, key(number))).collect();
            let is_there = |number: u8| !(1..4).contains(&number) || of(number) % 2 == 1;
            let cells: Vec<Cell<'_>> =
                keys.iter().filter(|(number, _)| is_there(*number)).map(|(_, key)| (&**key, [].as_slice())).collect();
            let changed = keys.iter().filter(|(number, _)| (1..4).contains(number) && of(*number) >= 2);
            let changes: Vec<Change<'_>> =
                changed.map(|(number, key)| (key, Some(&row).filter(|_| of(*number) >= 4))).collect();
            let mut expected: BTreeMap<&[u8], &[u8]> = cells.iter().copied().collect();
            for (key, row) in &changes {
                match row {
                    Some(row) => expected.insert(key, row),
                    None => expected.remove(key.as_slice()),
                };
            }
            assert_eq!(merged(&cells, &changes), expected.into_iter().collect::<Vec<_>>(), "{state}");
        }
    }
}
