//! Merging what was committed into a new tree: pages that change are written anew, elsewhere (copy on write), and so is
//! the path to them; all others are shared with the old tree.

use kernel::Processor;

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

/// Key and value of a cell.
type Cell = (FullKey, Row);

impl Merge<'_> {
    /// The tree of `root` with these changes, which are in the order of their keys.
    ///
    /// # Errors
    /// If there is no space, or the volume fails: then what was `written` is of no use.
    pub(super) async fn run(&mut self, root: Option<Root>, changes: &[Change<'_>]) -> Result<Option<Root>, StoreError> {
        let (mut children, mut level) = match root {
            Some(root) => (self.page(root.page, root.height, changes).await?, root.height),
            None => (self.leaves(Vec::new(), changes).await?, 0),
        };
        while children.len() > 1 {
            level += 1;
            children = self.write(level, children.iter().map(cell_of).collect()).await?;
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
        let cells = self.take(no, level).await?;
        if level == 0 {
            return self.leaves(cells, changes).await;
        }
        let children = Box::pin(self.children(cells, level, changes)).await?;
        self.write(level, children.iter().map(cell_of).collect()).await
    }

    /// The leaves with these cells and changes. Many changes are merged a part after another, so that others run meanwhile.
    async fn leaves(&mut self, mut cells: Vec<Cell>, changes: &[Change<'_>]) -> Result<Vec<Child>, StoreError> {
        let mut children = Vec::new();
        let mut parts = changes.chunks(ENTRIES_A_SLICE).peekable();
        while let Some(part) = parts.next() {
            let ends = parts.peek().map_or(cells.len(), |next| cells.partition_point(|(key, _)| key < next[0].0));
            let later = cells.split_off(ends);
            self.spread.on_merged(part.len());
            children.extend(self.write(0, merged(cells, part)).await?);
            cells = later;
        }
        Ok(children)
    }

    /// The children of an inner page, with changes.
    async fn children(
        &mut self,
        cells: Vec<Cell>,
        level: u8,
        mut changes: &[Change<'_>],
    ) -> Result<Vec<Child>, StoreError> {
        let mut children = Vec::with_capacity(cells.len());
        for (index, (first, value)) in cells.iter().enumerate() {
            let page = child_of(value);
            let count = match cells.get(index + 1) {
                Some((next, _)) => changes.partition_point(|(key, _)| *key < next),
                None => changes.len(),
            };
            let (mine, others) = changes.split_at(count);
            changes = others;
            if mine.is_empty() {
                children.push(Child { first: first.clone(), page, bytes: None });
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
                    let mut cells = Vec::new();
                    for page in last.into_iter().chain([child.page]) {
                        cells.extend(self.take(page, level).await?);
                    }
                    joined.extend(self.write(level, cells).await?);
                }
                _ => joined.push(child),
            }
        }
        Ok(joined)
    }

    /// The cells of a page that is about to be replaced.
    async fn take(&mut self, no: PageNo, level: u8) -> Result<Vec<Cell>, StoreError> {
        let frame = self.database.pages.read(self.cpu, no).await?;
        let page = Page::check(&frame, self.database.pages.identity, no, level)?;
        let cells = page.cells().map(|(key, value)| (FullKey::from(key), Row::from(value))).collect();
        self.replaced.push(no);
        self.spread.on_page().await;
        Ok(cells)
    }

    /// Writes cells to as many pages as they need.
    async fn write(&mut self, level: u8, cells: Vec<Cell>) -> Result<Vec<Child>, StoreError> {
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
                let cells = piece.iter().map(|(key, value)| (&**key, &**value));
                page::fill(bytes, (self.database.pages.identity, page, level), cells);
            }
            self.database.pages.write(self.cpu, page, frame).await?;
            let bytes = piece.iter().map(|(key, value)| cell_bytes(key, value)).sum();
            children.push(Child { first: first.clone(), page, bytes: Some(bytes) });
            self.spread.on_written().await;
        }
        Ok(children)
    }
}

fn cell_of(child: &Child) -> Cell {
    (child.first.clone(), Row::from(child.page.0.to_le_bytes().as_slice()))
}

fn child_of(value: &[u8]) -> PageNo {
    PageNo(super::bytes::u64_at(value, 0))
}

fn upserts(changes: &[Change<'_>]) -> Vec<Cell> {
    changes.iter().filter_map(|(key, row)| row.map(|row| ((*key).clone(), row.clone()))).collect()
}

fn merged(cells: Vec<Cell>, changes: &[Change<'_>]) -> Vec<Cell> {
    let mut result = Vec::with_capacity(cells.len() + changes.len());
    let mut changes = changes.iter().peekable();
    for cell in cells {
        while let Some((key, row)) = changes.next_if(|(key, _)| **key < cell.0) {
            result.extend(row.map(|row| ((*key).clone(), row.clone())));
        }
        match changes.next_if(|(key, _)| **key == cell.0) {
            Some((key, row)) => result.extend(row.map(|row| ((*key).clone(), row.clone()))),
            None => result.push(cell),
        }
    }
    result.extend(upserts(&changes.copied().collect::<Vec<_>>()));
    result
}
