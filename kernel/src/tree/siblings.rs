//! Aliases: one file that is open in several trees, by hard links or bind mounts in two exports. Each has its own
//! cache, and the host does not report a process's own changes to it, so aliases report changes to each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use machine::tree::InodeNo;
use parking_lot::Mutex;

/// File system and inode number on the host.
type Name = (u64, InodeNo);

#[derive(Default)]
pub(crate) struct Siblings(Mutex<BTreeMap<Name, Arc<Family>>>);

#[derive(Default)]
struct Family {
    /// One counter of changes by others for each open alias.
    members: Mutex<Vec<Arc<AtomicU64>>>,
    count: AtomicUsize,
}

/// One open alias.
pub(super) struct Sibling {
    all: Arc<Siblings>,
    name: Name,
    family: Arc<Family>,
    changes: Arc<AtomicU64>,
}

impl Siblings {
    pub(super) fn join(self: &Arc<Self>, name: Name) -> Sibling {
        let changes = Arc::new(AtomicU64::new(0));
        let mut families = self.0.lock();
        let family = Arc::clone(families.entry(name).or_default());
        family.change(|members| members.push(Arc::clone(&changes)));
        Sibling { all: Arc::clone(self), name, family, changes }
    }
}

impl Family {
    /// Returns the number of members left.
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<AtomicU64>>)) -> usize {
        let mut members = self.members.lock();
        change(&mut members);
        self.count.store(members.len(), Ordering::SeqCst);
        members.len()
    }
}

impl Sibling {
    /// Counts changes by the other aliases.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Is the file open in other trees, too?
    pub(super) fn has_others(&self) -> bool {
        self.family.count.load(Ordering::SeqCst) > 1
    }

    /// Reports a change by this alias to the others.
    pub(super) fn report(&self) {
        if self.has_others() {
            let members = self.family.members.lock();
            for other in members.iter().filter(|member| !Arc::ptr_eq(member, &self.changes)) {
                other.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        let mut families = self.all.0.lock();
        let left = self.family.change(|members| members.retain(|member| !Arc::ptr_eq(member, &self.changes)));
        if left == 0 {
            families.remove(&self.name);
        }
    }
}
