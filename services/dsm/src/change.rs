//! Making the changes of writers that wait for a page which this node may write.

use std::sync::Arc;

use kernel::volume::Change;
use kernel::{Processor, Volume};
use machine::Errno;
use policy::coherence::PageNo;

use crate::Shared;
use crate::core::{Core, block};
use crate::waiting::{Loaded, Pending, Wish, whole};

impl Shared {
    /// Makes the changes that wait for this page, which this node may write; returns their number. One that needs
    /// content which is neither cached nor `loaded` stays, with all after it.
    pub(crate) fn apply(
        &self,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        (mut loaded, mut is_lost): (Option<Loaded>, bool),
    ) -> usize {
        if !core.page(page).changes.is_empty() {
            self.take_from_all(core, page, None);
        }
        let entry = core.page(page);
        let mut changed = 0;
        while let Some(Pending { wish, job, group, since, deadline }) = entry.changes.pop_front() {
            let change = match wish {
                Wish::Change(Change::Part { .. }) if is_lost => {
                    group.done(page, Err(Errno::IO));
                    continue;
                }
                Wish::Change(change) => change,
                Wish::Again => {
                    changed += usize::from(volume.cached(block(page)).is_some());
                    group.done(page, Ok(()));
                    continue;
                }
            };
            let made = volume.change(block(page), change, job);
            let made = made.or_else(|change| match loaded.take() {
                Some(loaded) => whole(change, &loaded).and_then(|change| volume.change(block(page), change, job)),
                None => Err(change),
            });
            match made {
                Ok(()) => {
                    changed += 1;
                    is_lost = false;
                    group.done(page, Ok(()));
                }
                Err(change) => {
                    entry.changes.push_front(Pending { wish: Wish::Change(change), job, group, since, deadline });
                    break;
                }
            }
        }
        changed
    }

    /// Changes a page that this node may write; true if a writer waits less.
    pub(crate) fn write_held(&self, cpu: &Processor, core: &mut Core, volume: &Arc<Volume>, page: PageNo) -> bool {
        let was_dirty = core.node.is_dirty(page);
        let waiting = core.page(page).changes.len();
        core.written(page, cpu.now());
        let changed = self.apply(core, volume, page, (None, false));
        if changed == 0 && !was_dirty {
            let held = core.node.holds(page);
            held.into_iter().for_each(|(_, version)| core.node.unwritten(page, version));
        }
        core.page(page).changes.len() < waiting
    }
}
