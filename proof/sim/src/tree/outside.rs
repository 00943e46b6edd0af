//! A test's access to a tree: from outside the processors, without time and faults.

use std::sync::Arc;

use super::journal::Coverage;
use super::{ROOT, SimTree, TreeConfig, TreeCounters, files};
use crate::change::{Change, Payload};
use crate::config::DiskConfig;
use crate::disk::DiskCounters;
use crate::faults::{DiskFaults, OpClass};
use crate::ids::{HostId, TreeId};
use crate::random::Random;
use crate::world::{EventKind, World};
use machine::Errno;
use machine::tree::{Attributes, Caller, Node, OpenTree, Tree, TreeCall, TreeReply};
use policy::unit::{ByteOffset, DiskNo};
use std::rc::Rc;

/// First stream number of the random numbers of trees.
const TREE_STREAMS: u64 = 1 << 33;

/// Paths are names between slashes; an empty path or a slash alone is the root. Links are not followed.
impl World {
    /// Adds an empty directory tree to `host`; all users may search its root, only root may change it (mode 0755).
    ///
    /// # Panics
    /// When `config` is inconsistent.
    pub fn add_tree(&self, host: HostId, config: TreeConfig) -> TreeId {
        let mut inner = self.0.borrow_mut();
        let id = TreeId(inner.trees.len() as u16);
        let random = Random::new(inner.seed, TREE_STREAMS + u64::from(id.0));
        let mut tree = SimTree::new(host, id.0, config, random);
        tree.clock_steps = inner.clock_steps;
        inner.trees.push(tree);
        id
    }

    /// Opens a tree. It stays open when its host dies, for the restarted process; its open files do not.
    pub fn open_tree(&self, id: TreeId) -> OpenTree {
        let TreeConfig { disk: DiskConfig { rotational, transfer_bytes_max, .. }, journal, .. } =
            self.tree(id, |tree| tree.config.clone());
        let (tree, disk) = (Tree(u32::from(id.0)), DiskNo(files::DISKS + u64::from(id.0)));
        OpenTree { tree, disk, rotational, transfer_bytes_max, syncs_as_a_whole: journal, owner: Arc::new(()) }
    }

    /// Makes the next `count` operations of `class` that start in the tree fail with `errno`: calls, syncs, and those
    /// on its files. Calls for the same class are served in order.
    pub fn fail_next_in_tree(&self, id: TreeId, class: OpClass, count: u32, errno: Errno) {
        self.tree(id, |tree| tree.disk.injections.fail_next(class, count, errno));
    }

    /// Sets the random faults of the tree. Syncs fail and lie as flushes do.
    pub fn set_tree_faults(&self, id: TreeId, faults: DiskFaults) {
        self.tree(id, |tree| tree.disk.config.faults = faults);
    }

    /// Removes all faults of the tree, requested and random.
    pub fn heal_tree(&self, id: TreeId) {
        self.tree(id, |tree| {
            tree.disk.injections.clear();
            tree.disk.config.faults = DiskFaults::default();
        });
    }

    /// Writes that would make the files take more than `bytes` in total are shortened or fail with `ENOSPC`; `None`
    /// removes the limit.
    pub fn limit_tree_space(&self, id: TreeId, bytes: Option<u64>) {
        self.tree(id, |tree| tree.disk.space_max = bytes);
    }

    /// Calls on the tree so far, and operations on its files.
    pub fn tree_counters(&self, id: TreeId) -> (TreeCounters, DiskCounters) {
        self.tree(id, |tree| (tree.counters, tree.disk.counters))
    }

    /// Performs `call` as another process on the host, at once. Its changes are not durable.
    ///
    /// # Errors
    /// As the operation would.
    pub fn call_tree(&self, id: TreeId, caller: Option<&Caller>, call: &TreeCall) -> Result<TreeReply, Errno> {
        let done = self.0.borrow_mut().perform_at_once(usize::from(id.0), caller, call);
        if let (Ok(_), TreeCall::SetAttributes { node, attributes, .. }) = (&done, call)
            && attributes.size.is_some()
        {
            let number = self.tree(id, |tree| tree.find(*node))?;
            self.report(id, number);
        }
        done
    }

    pub fn tree_node(&self, id: TreeId, path: &str) -> Option<Node> {
        self.tree(id, |tree| Some(tree.inodes[&tree.walk(path)?].node()))
    }

    pub fn tree_attributes(&self, id: TreeId, path: &str) -> Option<Attributes> {
        self.tree(id, |tree| Some(tree.attributes(tree.walk(path)?)))
    }

    /// The names in the directory at `path`, sorted; `None` when there is no such directory.
    pub fn tree_names(&self, id: TreeId, path: &str) -> Option<Vec<String>> {
        self.tree(id, |tree| {
            let number = tree.walk(path)?;
            let names = tree.inodes[&number].directory()?.iter();
            Some(names.map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect())
        })
    }

    /// The durable names in the directory at `path`.
    pub fn tree_durable_names(&self, id: TreeId, path: &str) -> Option<Vec<String>> {
        self.tree(id, |tree| {
            let number = tree.walk_durable(path)?;
            let names = tree.durable_names().remove(&number)?;
            Some(names.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
        })
    }

    pub fn tree_content(&self, id: TreeId, path: &str) -> Option<Vec<u8>> {
        self.tree(id, |tree| Some(tree.inodes[&tree.walk(path)?].bytes()?.live()))
    }

    /// The durable content at `path`: name, size and bytes.
    pub fn tree_durable_content(&self, id: TreeId, path: &str) -> Option<Vec<u8>> {
        self.tree(id, |tree| Some(tree.inodes.get(&tree.walk_durable(path)?)?.bytes()?.durable()))
    }

    /// Writes `bytes` to the regular file at `path` as another process, at once. Not durable. It is reported soon after.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn write_tree(&self, id: TreeId, path: &str, at: ByteOffset, bytes: &[u8]) {
        self.write_mapped_tree(id, path, at, bytes);
        let number = self.tree(id, |tree| tree.walk(path)).expect("just written");
        self.report(id, number);
    }

    /// As [`World::write_tree`], through a shared mapping, which nobody is told of.
    ///
    /// # Panics
    /// As [`World::write_tree`].
    pub fn write_mapped_tree(&self, id: TreeId, path: &str, at: ByteOffset, bytes: &[u8]) {
        let now = self.now().ns();
        let change = Change { at: at.0, len: bytes.len() as u64, payload: Payload::Bytes(Rc::new(bytes.to_vec())) };
        self.tree(id, |tree| {
            let number = tree.walk(path).unwrap_or_else(|| panic!("`{path}` is not there"));
            let written = tree.on_bytes(number, |bytes, _| bytes.write(&change, false));
            assert!(written.is_ok(), "`{path}` is no regular file");
            tree.note_modified(number, now);
        });
    }

    /// The host begins to execute the regular file at `path`.
    ///
    /// # Errors
    /// `ETXTBSY`: it is open for writing.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn execute_in_tree(&self, id: TreeId, path: &str) -> Result<(), Errno> {
        self.tree(id, |tree| {
            let number = tree.walk(path).unwrap_or_else(|| panic!("`{path}` is not there"));
            let inode = tree.inode_mut(number);
            if inode.is_open_to_write() {
                return Err(Errno(libc::ETXTBSY));
            }
            inode.is_executed = true;
            Ok(())
        })
    }

    /// The host stops executing the file at `path`.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn end_execution_in_tree(&self, id: TreeId, path: &str) {
        self.tree(id, |tree| {
            let number = tree.walk(path).unwrap_or_else(|| panic!("`{path}` is not there"));
            tree.inode_mut(number).is_executed = false;
        });
    }

    /// Makes everything in the tree durable, at once.
    pub fn sync_tree(&self, id: TreeId) {
        self.tree(id, |tree| {
            let all: Vec<u64> = tree.inodes.keys().copied().collect();
            let coverage: Coverage = tree.capture(&all);
            tree.make_durable(&coverage);
        });
    }

    /// Reports that another process has changed the content of a file.
    fn report(&self, id: TreeId, number: u64) {
        let late_ns = self.tree(id, |tree| tree.queue_report(number));
        let mut inner = self.0.borrow_mut();
        let at = inner.now + late_ns;
        inner.schedule(at, EventKind::Reports);
    }

    fn tree<T>(&self, id: TreeId, act: impl FnOnce(&mut SimTree) -> T) -> T {
        act(&mut self.0.borrow_mut().trees[usize::from(id.0)])
    }
}

impl SimTree {
    fn walk(&self, path: &str) -> Option<u64> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(ROOT, |dir, name| {
            let directory = self.inodes[&dir].directory()?;
            directory.get(name.as_bytes()).map(|slot| slot.number)
        })
    }

    fn walk_durable(&self, path: &str) -> Option<u64> {
        let all = self.durable_names();
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(ROOT, |dir, name| all.get(&dir)?.get(name.as_bytes()).copied())
    }
}
