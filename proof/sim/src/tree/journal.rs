//! Changes of names that are not durable, in order, and the effect of syncs on them.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::inode::{Inode, Slot, Stat};
use super::{ROOT, SimTree};
use machine::Errno;
use machine::tree::Time;

/// A change of one or more entries that survives as a whole or not at all.
#[derive(Debug)]
pub(super) struct NameChange {
    pub(super) change: u64,
    pub(super) time: Time,
    pub(super) entries: SmallVec<[EntryChange; 2]>,
    /// Other nodes whose changes it must not overtake (T7).
    pub(super) nodes: SmallVec<[u64; 2]>,
    /// Changes without which it cannot survive (T8).
    pub(super) after: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct EntryChange {
    pub(super) dir: u64,
    pub(super) name: Vec<u8>,
    pub(super) before: Option<Slot>,
    pub(super) after: Option<Slot>,
}

impl NameChange {
    /// Everything whose changes stay in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|entry| entry.dir).chain(self.nodes.iter().copied())
    }

    fn mentions(&self, number: u64) -> bool {
        let in_entry = |entry: &EntryChange| {
            let slots = [entry.before, entry.after];
            entry.dir == number || slots.iter().flatten().any(|slot| slot.number == number)
        };
        self.nodes.contains(&number) || self.entries.iter().any(in_entry)
    }
}

/// State of a node when its sync started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured {
    number: u64,
    generation: u32,
    stat: Stat,
    /// The latest change of the content.
    content: u64,
    /// The last one before which all are on the disk.
    on_disk: u64,
}

impl Captured {
    /// Its attributes alone.
    pub(super) fn without_content(self) -> Self {
        Captured { content: 0, ..self }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    as_of: u64,
    change: u64,
    pub(super) nodes: Vec<Captured>,
}

impl Coverage {
    /// The nodes of which it covers more than attributes.
    pub(super) fn numbers_with_content(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().filter(|node| node.content > 0).map(|node| node.number)
    }
}

impl SimTree {
    /// Changes entries atomically.
    pub(super) fn change_names(
        &mut self,
        time: Time,
        entries: impl IntoIterator<Item = (u64, Vec<u8>, Option<u64>)>,
        nodes: impl IntoIterator<Item = u64>,
        after: Vec<u64>,
    ) {
        let change = self.next_change();
        let mut changed = SmallVec::new();
        for (dir, name, number) in entries {
            let directory = self.directory_mut(dir);
            let before = directory.get(&name);
            let after = number.map(|number| {
                let cookie = before.map_or_else(|| directory.next_cookie(), |slot| slot.cookie);
                Slot { number, cookie }
            });
            directory.set(&name, after);
            let stat = &mut self.inode_mut(dir).stat;
            (stat.modified, stat.changed) = (time, time);
            changed.push(EntryChange { dir, name, before, after });
        }
        let nodes = nodes.into_iter().collect();
        self.unsynced.push(NameChange { change, time, entries: changed, nodes, after });
    }

    /// The changes, not durable, that named the directory `dir` and its parents.
    pub(super) fn unsynced_names_of(&self, dir: u64) -> Vec<u64> {
        let mut named_by = Vec::new();
        let mut at = dir;
        while at != ROOT {
            let names_it = |entry: &EntryChange| entry.after.is_some_and(|slot| slot.number == at);
            let latest = self.unsynced.iter().rev().find(|record| record.entries.iter().any(names_it));
            named_by.extend(latest.map(|record| record.change));
            at = self.directory(at).parent;
        }
        named_by
    }

    /// What a sync of `numbers` that starts now will cover.
    pub(super) fn capture(&mut self, numbers: &[u64]) -> Coverage {
        self.captures += 1;
        let capture = |number: &u64| {
            let inode = self.inodes.get(number)?;
            let content = inode.bytes().map_or(0, |bytes| bytes.latest_change());
            let on_disk = inode.committable.on_disk(content);
            Some(Captured { number: *number, generation: inode.generation, stat: inode.stat, content, on_disk })
        };
        Coverage { as_of: self.captures, change: self.changes, nodes: numbers.iter().filter_map(capture).collect() }
    }

    pub(super) fn make_durable(&mut self, coverage: &Coverage) {
        let synced: BTreeSet<u64> = coverage.nodes.iter().map(|node| node.number).collect();
        self.make_names_durable(&synced, coverage.change);
        for captured in &coverage.nodes {
            if let Some(inode) = self.captured(captured) {
                inode.make_durable(captured.stat, coverage.as_of, coverage.change);
                let committed = inode.committable.on_committed(captured.on_disk);
                if let Some(bytes) = inode.bytes_mut() {
                    bytes.flush(captured.content.max(committed));
                }
            }
        }
        self.forget_nameless();
    }

    /// The sync failed with `errno`. What is lost of files that only shared its journal, their next flushes tell.
    pub(super) fn drop_covered(&mut self, coverage: &Coverage, errno: Errno) {
        if !self.disk.config.faults.failed_flush_drops {
            return;
        }
        for captured in &coverage.nodes {
            if self.captured(captured).is_some_and(|inode| inode.bytes().is_some()) {
                let drop = |bytes: &mut super::Bytes, disk: &mut super::Drive| {
                    let covers = disk.dropped_by_failure(captured.content, bytes.latest_change());
                    bytes.drop_covered(covers, &mut disk.random)
                };
                // Fails only for other nodes than regular files.
                let has_lost = self.on_bytes(captured.number, drop) == Ok(true);
                if has_lost && captured.content == 0 {
                    self.inode_mut(captured.number).errors.add(errno);
                }
            }
        }
    }

    fn captured(&mut self, captured: &Captured) -> Option<&mut Inode> {
        self.inodes.get_mut(&captured.number).filter(|inode| inode.generation == captured.generation)
    }

    /// Makes the changes up to number `covers` of the entries of the directories `synced` durable, and all changes that
    /// they depend on.
    fn make_names_durable(&mut self, synced: &BTreeSet<u64>, covers: u64) {
        let mut needed: BTreeSet<u64> = BTreeSet::new();
        let mut needed_changes: BTreeSet<u64> = BTreeSet::new();
        let mut durable: Vec<NameChange> = Vec::new();
        let mut left: Vec<NameChange> = Vec::new();
        for record in std::mem::take(&mut self.unsynced).into_iter().rev() {
            let asked_for = self.config.journal || record.entries.iter().any(|entry| synced.contains(&entry.dir));
            let needed_by_others =
                needed_changes.contains(&record.change) || record.keys().any(|key| needed.contains(&key));
            if record.change <= covers && (asked_for || needed_by_others) {
                needed.extend(record.keys());
                needed_changes.extend(&record.after);
                durable.push(record);
            } else {
                left.push(record);
            }
        }
        left.reverse();
        self.unsynced = left;
        for record in durable.iter().rev() {
            self.note_durable(record);
        }
    }

    /// The times of a directory are at least as new as its entries.
    pub(super) fn note_durable(&mut self, record: &NameChange) {
        for entry in &record.entries {
            if let Some(inode) = self.inodes.get_mut(&entry.dir) {
                let stat = &mut inode.durable;
                stat.modified = stat.modified.max(record.time);
                stat.changed = stat.changed.max(record.time);
            }
        }
    }

    /// Drops nodes without a name that are not open and that no power cut can restore.
    pub(super) fn forget_nameless(&mut self) {
        for number in self.nameless.clone() {
            let may_return = self.unsynced.iter().any(|record| record.mentions(number));
            if may_return || self.inode_mut(number).is_open() {
                continue;
            }
            self.nameless.remove(&number);
            self.forget(number);
        }
    }

    pub(super) fn forget(&mut self, number: u64) {
        if let Some(inode) = self.inodes.remove(&number) {
            self.used -= inode.bytes().map_or(0, |bytes| bytes.allocated());
            self.free.insert(number);
        }
    }
}
