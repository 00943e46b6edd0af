//! What is left of a tree after a power cut.

use std::collections::{BTreeMap, BTreeSet};

use super::errseq::Errors;
use super::journal::NameChange;
use super::{Inode, ROOT, SimTree};
use machine::tree::Kind;

impl SimTree {
    /// Its processes died: all their files are closed.
    pub(super) fn close_all(&mut self) {
        self.disk.restart();
        self.inodes.values_mut().for_each(|inode| inode.open.clear());
        self.forget_nameless();
    }

    /// The power failed: decides what is left.
    pub(crate) fn power_cut(&mut self) {
        self.disk.restart();
        let survivors = self.decide_names();
        for record in &survivors {
            self.note_durable(record);
        }
        self.count_links();
        let SimTree { inodes, disk, .. } = self;
        for inode in inodes.values_mut() {
            let mut stat = disk.random.pick(&inode.possible_stats());
            if inode.kind == Kind::Directory {
                stat.modified = stat.modified.max(inode.durable.modified);
                stat.changed = stat.changed.max(inode.durable.changed);
            }
            inode.restore(stat);
            inode.committable.on_power_cut();
            inode.failing.clear();
            inode.errors = Errors::default();
            if let Some(bytes) = inode.bytes_mut() {
                bytes.power_cut(&disk.config.faults, &mut disk.random);
            }
        }
        self.used = self.inodes.values().filter_map(Inode::bytes).map(|bytes| bytes.allocated()).sum();
    }

    /// Undoes the changes of names that do not survive; returns those that do.
    fn decide_names(&mut self) -> Vec<NameChange> {
        // With even chances for each change, losing or retaining them all would hardly ever happen.
        let keep = match self.disk.random.below(5) {
            0 => 0,
            1 => 1000,
            2 => 900,
            _ => self.disk.random.below(1001) as u32,
        };
        let mut cut: BTreeSet<u64> = BTreeSet::new();
        let mut lost_changes: BTreeSet<u64> = BTreeSet::new();
        let (mut survivors, mut lost) = (Vec::new(), Vec::new());
        for record in std::mem::take(&mut self.unsynced) {
            let impossible = record.keys().any(|key| cut.contains(&key))
                || record.after.iter().any(|change| lost_changes.contains(change));
            let is_beyond = self.config.journal && !lost.is_empty();
            if !impossible && !is_beyond && self.disk.random.permille(keep) {
                survivors.push(record);
            } else {
                cut.extend(record.keys());
                lost_changes.insert(record.change);
                lost.push(record);
            }
        }
        for record in lost.iter().rev() {
            for entry in record.entries.iter().rev() {
                self.directory_mut(entry.dir).set(&entry.name, entry.before);
            }
        }
        survivors
    }

    /// Recounts the names of all nodes, and drops those without any.
    fn count_links(&mut self) {
        let mut links: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 2)]);
        let mut parents: Vec<(u64, u64)> = Vec::new();
        let mut unvisited = vec![ROOT];
        while let Some(dir) = unvisited.pop() {
            for (_, slot) in self.directory(dir).iter() {
                if self.inodes[&slot.number].kind == Kind::Directory {
                    *links.entry(dir).or_default() += 1;
                    links.insert(slot.number, 2);
                    parents.push((slot.number, dir));
                    unvisited.push(slot.number);
                } else {
                    *links.entry(slot.number).or_default() += 1;
                }
            }
        }
        for (dir, parent) in parents {
            self.directory_mut(dir).parent = parent;
        }
        self.nameless.clear();
        for number in self.inodes.keys().copied().collect::<Vec<_>>() {
            match links.get(&number) {
                Some(&count) => self.inode_mut(number).links = count,
                None => self.forget(number),
            }
        }
    }

    /// The durable names: for each directory its entries.
    pub(super) fn durable_names(&self) -> BTreeMap<u64, BTreeMap<Vec<u8>, u64>> {
        let entries = |inode: &Inode| {
            let names = inode.directory()?.iter();
            Some((inode.number, names.map(|(name, slot)| (name.to_vec(), slot.number)).collect()))
        };
        let mut all: BTreeMap<u64, BTreeMap<Vec<u8>, u64>> = self.inodes.values().filter_map(entries).collect();
        for entry in self.unsynced.iter().rev().flat_map(|record| record.entries.iter().rev()) {
            let names = all.entry(entry.dir).or_default();
            match entry.before {
                Some(slot) => names.insert(entry.name.clone(), slot.number),
                None => names.remove(&entry.name),
            };
        }
        all
    }
}
