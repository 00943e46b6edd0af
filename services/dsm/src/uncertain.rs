//! What may not be durable, although its home has stored it: it is given to the next home once more.
//!
//! A home may fail to flush, so that the device drops what it had stored, and die before anybody hears of it; or give up its
//! shards, succeed the next time, and die. Nobody can tell, so nobody relies on it: what a node has written it retains in its
//! cache until a flush has covered it, as after any write ([`Volume::give_up`]), and what it is granted that its home has not
//! flushed yet, too ([`Volume::put`]), since whoever wrote that may be dead. Whatever of that a node holds when a
//! page gets another home it gives to that one, which stores it before it grants anything. There is nothing later than what
//! is held, so nothing old is stored. A flush of what this node has stored becomes one of all nodes if one has died that had
//! stored it: what this node holds no more because others have written it since those have got from it.
//!
//! If a home has given up its shards in order, it has flushed before, and said so: then there is nothing to give
//! ([`durable`](crate::durable)).
//!
//! Memory is bounded. Of what a node has written, as for unflushed blocks in general: write-back flushes as soon as there is
//! nothing more to write, or when they are an eighth of the cache. Of what others have written a twentieth of the cache is
//! retained, and each of its homes is asked to flush when it has been marked for a second, or when half of that is used, if its
//! flush makes room: one that cannot be reached and has most of it must not have the others flushed all the time. No flush of
//! this node waits for that, and none fails with it.
//!
//! Not found is what nobody holds: a block that one node has given up and another has not got yet, which will write it; what
//! was given up by mappings that were full, or came when no frame was free; what others have written beyond the limit, or
//! was read at a node that exports the disk read-only, if whoever has written it is dead or has given it up; what was held only
//! by nodes that have died, too; and what the next home fails to flush in the same way before that is flushed, which begins as
//! soon as it is stored, and again until it succeeds.
//!
//! Rejected: what was given up is retained although others may have written it since, as NFS clients retain what they
//! have written until it is committed. It may be given to the next home only if nothing later was ever stored, and who
//! has stored that may have had it flushed, and be dead. So a flush could not be answered before all who retain anything
//! older have confirmed that they do not any more.
//!
//! Rejected, too: a home that asks others to note that it is about to flush, so that its death then counts as a failure. It
//! costs a round trip for each flush, and the next flush of all nodes would fail whenever a home dies that is busy.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use kernel::volume::{Change, WrittenBy};
use kernel::{FrameRef, Processor, Volume};
use machine::Errno;
use policy::coherence::{Action, Actions, Address, Home, PageNo, ShardNo};
use policy::unit::JobId;

use crate::Shared;
use crate::core::{Core, block};
use crate::flush_moving::MOVED;
use crate::unflushed::Scope;
use crate::waiting::Durability;
use crate::wire::Mark;

/// Until a home is asked to flush what this node has marked: by then it has often done so for who has written it.
const DELAY: Duration = Duration::from_secs(1);

/// Until what was given to new homes is flushed again, if that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Why a page stays in the cache.
#[derive(Clone, Copy)]
pub(crate) enum Retained {
    /// This node has written it, and no flush has covered it.
    Own,
    /// Others have, and this home has not flushed it.
    Marked(Address),
}

impl Shared {
    /// Caches the content of a page that others have written.
    pub(crate) fn cache(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Volume,
        page: PageNo,
        (frame, durability): (FrameRef, Durability),
    ) {
        let may_be_marked = durability == Durability::Uncertain && self.config.shards.is_some();
        let home = core.node.home(page).map(|home| home.at).filter(|home| may_be_marked && *home != self.me);
        self.put(cpu, core, volume, page, (frame, home));
    }

    /// `home`: the one that has not flushed it.
    fn put(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Volume,
        page: PageNo,
        (frame, home): (FrameRef, Option<Address>),
    ) {
        if volume.put(block(page), frame, home.map(|_| WrittenBy::Others))
            && let Some(home) = home
        {
            if !core.flushes.marked.contains_key(&home) {
                self.flush_marked(cpu, home);
            }
            core.flushes.marked.entry(home).or_default().since_mut().insert(page);
        }
    }

    /// Why a page stays in the cache; `None`: it need not.
    pub(crate) fn retained(&self, core: &Core, volume: &Volume, page: PageNo) -> Option<Retained> {
        let is_dirty = core.node.is_dirty(page);
        let is_retained = is_dirty || volume.uncertain(block(page)).is_some();
        let marked = core.flushes.marked_at(page).filter(|_| !is_dirty && volume.is_marked(block(page)));
        is_retained.then(|| marked.map_or(Retained::Own, Retained::Marked))
    }

    /// What was taken out of the cache is there as before, whatever has become of its home. What is this node's own is written
    /// once more: a flush of it may have failed meanwhile.
    pub(crate) fn put_back(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Volume,
        page: PageNo,
        (frame, retained): (FrameRef, Retained),
    ) {
        match retained {
            Retained::Marked(home) => self.put(cpu, core, volume, page, (frame, Some(home))),
            // The whole of a block needs nothing that is cached: it is not refused.
            Retained::Own => drop(volume.change(block(page), Change::Whole(frame), JobId::default())),
        }
    }

    /// This node may not write the page any more, nor, unless `retain`, read it. Returns its content, if it is cached.
    pub(crate) fn give_up(&self, core: &mut Core, volume: &Volume, page: PageNo, retain: bool) -> Option<FrameRef> {
        if !retain {
            core.flushes.unmark(page);
        }
        volume.give_up(block(page), retain)
    }

    /// Has a home flush what is marked of its pages, as long as there is anything. That may fail, and is tried again: neither FUA
    /// nor write-back promises anything of what others have written. A FLUSH does, and is sound without it: it asks the present
    /// homes. Who was one before and lives has flushed before it gave up a shard, and told the next home of its failures, which
    /// tells this node before it answers; what one had stored that has died the next one has been given.
    fn flush_marked(&self, cpu: &Processor, home: Address) {
        let Some(shared) = self.this.upgrade() else { return };
        let here = cpu.clone();
        cpu.spawn(async move {
            let mut is_durable = true;
            while shared.until_marked_long(&here, home, is_durable).await {
                let stored = Mark { incarnation: home.incarnation, failures: 0 };
                let flushed = shared.ask_flush(&here, (home.node, Scope::Own), stored).await;
                is_durable = matches!(flushed, Ok((true, mark)) if mark.failures != MOVED);
                shared.end_flush_of_marked(home, is_durable);
            }
        });
    }

    /// Begins a flush when pages of this home have been marked for long, or sooner if too many are, and it makes room for others:
    /// not if many are of other homes, nor if the last one failed. False: there are none any more.
    async fn until_marked_long(&self, cpu: &Processor, home: Address, makes_room: bool) -> bool {
        let end = cpu.now() + DELAY;
        let has_many = || {
            let volume = self.volume().filter(|volume| makes_room && volume.has_many_marked());
            volume.is_some_and(|volume| self.core.lock().flushes.has_share_of_marked(home, volume.many_marked()))
        };
        loop {
            cpu.sleep(DELAY / 10).await;
            if cpu.now() >= end || has_many() {
                break;
            }
        }
        let marked = &mut self.core.lock().flushes.marked;
        let pages = marked.get_mut(&home).filter(|pages| !self.has_ended() && !pages.since().is_empty());
        match pages {
            Some(pages) => pages.begin(),
            None => {
                marked.remove(&home);
                return false;
            }
        }
        true
    }

    fn end_flush_of_marked(&self, home: Address, is_durable: bool) {
        let core = &mut *self.core.lock();
        let Some(marked) = core.flushes.marked.get_mut(&home) else { return };
        if !is_durable {
            return marked.failed();
        }
        let durable = marked.succeeded();
        let volume = self.volume();
        for page in durable.iter().filter(|page| !marked.since().contains(*page)) {
            volume.iter().for_each(|volume| volume.unmark(block(page)));
        }
    }

    /// Shards have new homes, which get what this node holds of theirs that may not be durable. It is retained from now on: a
    /// flush may end before the page is taken, and then the cache may evict it.
    pub(crate) fn give_again(&self, cpu: &Processor, core: &mut Core, moved: Vec<(ShardNo, Home)>) -> Actions {
        let volume = self.volume();
        let uncertain = RefCell::new(Vec::new());
        let is_uncertain = |page| {
            let content = volume.as_ref().and_then(|volume| volume.uncertain(block(page)));
            let is_uncertain = content.is_some();
            uncertain.borrow_mut().extend(content.map(|frame| (page, frame)));
            is_uncertain
        };
        let actions = core.node.on_homes(cpu.now(), moved, [], is_uncertain);
        // What it gives to itself counts as stored, which is to be done still.
        let stored: BTreeSet<PageNo> = actions.iter().filter_map(stored_by).collect();
        for (page, frame) in uncertain.into_inner() {
            if core.node.is_saving(page) || stored.contains(&page) {
                self.retain(core, page, Some(frame));
            }
        }
        if !stored.is_empty() || core.node.retains_earlier() {
            self.flush_given_again(cpu);
        }
        actions
    }

    /// Flushes what this node gives to new homes, when they have it: it has no copy any more.
    fn flush_given_again(&self, cpu: &Processor) {
        let (Some(shared), Some(shards)) = (self.this.upgrade(), self.config.shards) else { return };
        let here = cpu.clone();
        cpu.spawn(async move {
            loop {
                let is_given = shared.until_given_again(&here, shards).await.is_ok();
                let Some(volume) = shared.volume().filter(|_| !shared.has_ended()) else { return };
                if is_given && (volume.flush_changed(&here).await.is_ok() || volume.loss().is_some()) {
                    return;
                }
                drop(volume);
                here.sleep(RETRY).await;
            }
        });
    }

    /// Waits until each shard has a home that lives, and those have stored what this node had to give them. The timeout
    /// begins anew whenever they have stored more.
    pub(crate) async fn until_given_again(&self, cpu: &Processor, shards: u16) -> Result<(), Errno> {
        let is_homeless = |core: &Core, shard| {
            let home = core.node.shard_home(ShardNo(shard)).map(|home| home.at);
            home.is_none_or(|home| self.address_of(core, home.node) != home)
        };
        let left = |core: &Core| {
            let homeless = (0..shards).filter(|shard| is_homeless(core, *shard)).count();
            let is_given = homeless == 0 && !core.node.retains_earlier();
            if is_given { 0 } else { 1 + homeless + core.saving.len() }
        };
        self.until_none_left(cpu, left).await
    }
}

fn stored_by(action: &Action) -> Option<PageNo> {
    match action {
        Action::Store { page, .. } => Some(*page),
        _ => None,
    }
}
