//! How hosts and processors end, and what is left of them.

use super::change::Change;
use super::operation::Operation;
use super::world::{HostId, Inner, World};

impl World {
    /// The process on `host` dies (`kill -9`). Its machines do nothing from now on. What it wrote stays in the disks'
    /// caches; each write under way may or may not have landed, or is torn. Its connections are closed: peers receive
    /// what was sent, then the end, or a reset if it had not received everything.
    ///
    /// Memory of operations under way is not touched any more. [`World::machine`] may be called again.
    pub fn kill(&self, host: HostId) {
        let mut inner = self.0.borrow_mut();
        inner.note(|| format!("kill {host:?}"));
        for (disk, changes) in inner.stop_processors(host) {
            inner.disks[disk].abandon(&changes);
        }
        inner.close_all(host);
    }

    /// The power of `host` goes and comes back. As [`kill`](Self::kill), but its disks lose what was not durable, as
    /// the [module](super) says, and its peers' connections are reset, with what was on its way lost.
    pub fn power_cut(&self, host: HostId) {
        let mut inner = self.0.borrow_mut();
        inner.note(|| format!("power cut of {host:?}"));
        for (disk, changes) in inner.stop_processors(host) {
            inner.disks[disk].power_cut(changes);
        }
        inner.cut_all(host);
    }
}

impl Inner {
    /// Ends all processors of `host`. Returns what was under way on each of its disks, by index.
    fn stop_processors(&mut self, host: HostId) -> Vec<(usize, Vec<Change>)> {
        let mut lost: Vec<(usize, Vec<Change>)> = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            if disk.host == host {
                lost.push((index, Vec::new()));
            }
        }
        for index in self.alive.clone() {
            if self.processors[index].host != host {
                continue;
            }
            let died = self.stop_processor(index);
            for (disk, change) in self.changes_under_way(&died) {
                if let Some((_, changes)) = lost.iter_mut().find(|(index, _)| *index == disk) {
                    changes.push(change);
                }
            }
        }
        lost
    }

    fn stop_processor(&mut self, index: usize) -> Vec<Operation> {
        self.alive.retain(|&other| other != index);
        self.processors[index].die();
        let died = self.operations.remove_all(index);
        for operation in &died {
            self.end_use(operation);
        }
        self.mix(index as u64);
        died
    }

    /// The machine of one processor was dropped: its operations under way are abandoned, its connections stay.
    pub(super) fn drop_processor(&mut self, index: usize) {
        let died = self.stop_processor(index);
        for (disk, change) in self.changes_under_way(&died) {
            let disk = &mut self.disks[disk];
            disk.content.abandon(&[change], &mut disk.random);
        }
    }
}
