//! The end of hosts and processors, and its effects.

use crate::change::Change;
use crate::ids::HostId;
use crate::operation::Operation;
use crate::tree::SimTree;
use crate::world::{Inner, World};

impl World {
    /// The process on `host` dies (`kill -9`). Its machines do nothing from now on. What it wrote stays in the disks'
    /// caches and its trees; each change in flight may or may not have landed, or is torn. Its connections are closed:
    /// peers receive what was sent, then the end, or a reset if it had not received everything.
    ///
    /// On Linux such a change may land later, but before a successor has the locks, which the requests, rings and threads of
    /// the dead process hold until then (`machine/src/linux/uring/locks.rs`): whoever starts here has them at once.
    ///
    /// Memory of operations in flight is not accessed any more. [`World::machine`] may be called again.
    pub fn kill(&self, host: HostId) {
        let mut inner = self.0.borrow_mut();
        inner.note(|| format!("kill {host:?}"));
        let died = inner.stop_processors(host);
        for (disk, changes) in inner.changes_on_disks(host, &died) {
            inner.disks[disk].abandon(&changes);
        }
        inner.abandon_in_trees(&died);
        inner.close_files(host);
        inner.close_all(host);
    }

    /// The [power fails](Self::power_cut), or the process is [killed](Self::kill).
    pub fn crash(&self, host: HostId, is_power_cut: bool) {
        if is_power_cut { self.power_cut(host) } else { self.kill(host) }
    }

    /// The power of `host` fails and returns. As [`kill`](Self::kill), but its disks lose what was not durable, as
    /// documented in the [module](super), and its peers' connections are reset, with bytes in flight lost.
    pub fn power_cut(&self, host: HostId) {
        let mut inner = self.0.borrow_mut();
        inner.note(|| format!("power cut of {host:?}"));
        let died = inner.stop_processors(host);
        for (disk, changes) in inner.changes_on_disks(host, &died) {
            inner.disks[disk].power_cut(changes);
        }
        inner.abandon_in_trees(&died);
        inner.close_files(host);
        inner.trees.iter_mut().filter(|tree| tree.host == host).for_each(SimTree::power_cut);
        inner.cut_all(host);
    }
}

impl Inner {
    /// Ends all processors of `host`. Returns their operations.
    fn stop_processors(&mut self, host: HostId) -> Vec<Operation> {
        let mut died = Vec::new();
        self.hosts[usize::from(host.0)].is_paused = false;
        for index in self.alive.clone() {
            if self.processors[index].host == host {
                died.extend(self.stop_processor(index));
            }
        }
        died
    }

    /// The changes that `died` would have made on each of the disks of `host`, by index.
    fn changes_on_disks(&self, host: HostId, died: &[Operation]) -> Vec<(usize, Vec<Change>)> {
        let disks = self.disks.iter().enumerate().filter(|(_, disk)| disk.host == host);
        let mut lost: Vec<(usize, Vec<Change>)> = disks.map(|(index, _)| (index, Vec::new())).collect();
        for (disk, change) in self.changes_in_flight(died) {
            if let Some((_, changes)) = lost.iter_mut().find(|(index, _)| *index == disk) {
                changes.push(change);
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

    /// The machine of one processor was dropped: its operations in flight are abandoned, its connections stay.
    pub(crate) fn drop_processor(&mut self, index: usize) {
        let died = self.stop_processor(index);
        for (disk, change) in self.changes_in_flight(&died) {
            let disk = &mut self.disks[disk];
            disk.bytes.content.abandon(&[change], &mut disk.drive.random);
        }
        self.abandon_in_trees(&died);
    }
}
