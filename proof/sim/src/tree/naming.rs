//! Names: lookup, creation, removal, rename.

use libc::{EEXIST, EINVAL, EISDIR, EMLINK, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};

use super::attributes::plan_owner;
use super::inode::{Body, Directory};
use super::permission::{Credentials, SEARCH, WRITE};
use super::{Answer, SimTree};
use machine::Errno;
use machine::tree::{Creation, Kind, LINK_BYTES_MAX, Node, SetAttributes, SetTime, Time, TreeReply};

impl SimTree {
    pub(super) fn lookup(&self, cred: Credentials<'_>, dir: Node, name: &[u8]) -> Answer {
        let dir = self.find_directory(dir)?;
        Self::check_any_name(name)?;
        cred.check(&self.inodes[&dir], SEARCH)?;
        let number = match name {
            b"." => dir,
            b".." => self.directory(dir).parent,
            _ => self.directory(dir).get(name).ok_or(Errno(ENOENT))?.number,
        };
        Ok(self.node_reply(number))
    }

    pub(super) fn node_reply(&self, number: u64) -> TreeReply {
        TreeReply::Node(self.inodes[&number].node(), self.attributes(number))
    }

    /// The directory `dir`, for a change of `name`, and the number of the node that has the name.
    fn place(&self, cred: Credentials<'_>, dir: Node, name: &[u8]) -> Result<(u64, Option<u64>), Errno> {
        let dir = self.find_directory(dir)?;
        Self::check_name(name)?;
        cred.check(&self.inodes[&dir], SEARCH)?;
        Ok((dir, self.directory(dir).get(name).map(|slot| slot.number)))
    }

    pub(super) fn create(
        &mut self,
        cred: Credentials<'_>,
        (dir, name): (Node, &[u8]),
        how: Creation,
        attributes: SetAttributes,
    ) -> Answer {
        let (place, existing) = self.place(cred, dir, name)?;
        let attributes = match how {
            Creation::Exclusive { verifier } => {
                let (accessed, modified) = times_of(verifier);
                let (accessed, modified) = (Some(SetTime::To(accessed)), Some(SetTime::To(modified)));
                SetAttributes { accessed, modified, ..SetAttributes::default() }
            }
            Creation::Unchecked | Creation::Guarded => attributes,
        };
        match existing {
            Some(number) => self.take_existing(cred, number, how, attributes),
            None => {
                let body = self.new_bytes();
                self.make(cred, (place, name), Kind::File, body, attributes)
            }
        }
    }

    fn take_existing(
        &mut self,
        cred: Credentials<'_>,
        number: u64,
        how: Creation,
        attributes: SetAttributes,
    ) -> Answer {
        let inode = &self.inodes[&number];
        if inode.kind == Kind::Directory && how == Creation::Unchecked {
            return Err(Errno(EISDIR));
        }
        let taken = inode.kind == Kind::File
            && match how {
                Creation::Unchecked => true,
                Creation::Guarded => false,
                Creation::Exclusive { verifier } => (inode.stat.accessed, inode.stat.modified) == times_of(verifier),
            };
        if !taken {
            return Err(Errno(EEXIST));
        }
        if let (Creation::Unchecked, Some(_)) = (how, attributes.size) {
            let size_alone = SetAttributes { size: attributes.size, ..SetAttributes::default() };
            self.set_attributes(cred, number, size_alone)?;
        }
        Ok(self.node_reply(number))
    }

    pub(super) fn make_directory(
        &mut self,
        cred: Credentials<'_>,
        (dir, name): (Node, &[u8]),
        attributes: SetAttributes,
    ) -> Answer {
        let place = self.free_place(cred, dir, name)?;
        if self.inodes[&place].links >= self.config.links_max {
            return Err(Errno(EMLINK));
        }
        let body = Body::Directory(Directory::new(place));
        let reply = self.make(cred, (place, name), Kind::Directory, body, attributes)?;
        self.inode_mut(place).links += 1;
        Ok(reply)
    }

    pub(super) fn make_symbolic_link(
        &mut self,
        cred: Credentials<'_>,
        (dir, name): (Node, &[u8]),
        target: &[u8],
        attributes: SetAttributes,
    ) -> Answer {
        let place = self.free_place(cred, dir, name)?;
        if target.is_empty() {
            return Err(Errno(ENOENT));
        }
        if target.contains(&0) {
            return Err(Errno(EINVAL));
        }
        if target.len() > LINK_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let attributes = SetAttributes { mode: Some(0o777), ..attributes };
        let body = Body::SymbolicLink(target.to_vec());
        self.make(cred, (place, name), Kind::SymbolicLink, body, attributes)
    }

    pub(super) fn make_special(
        &mut self,
        cred: Credentials<'_>,
        (dir, name): (Node, &[u8]),
        kind: Kind,
        attributes: SetAttributes,
    ) -> Answer {
        let place = self.free_place(cred, dir, name)?;
        match kind {
            Kind::File | Kind::Directory | Kind::SymbolicLink => return Err(Errno(EINVAL)),
            Kind::BlockDevice(_) | Kind::CharacterDevice(_) if !cred.is_root() => return Err(Errno(EPERM)),
            _ => {}
        }
        self.make(cred, (place, name), kind, Body::Special, attributes)
    }

    fn free_place(&self, cred: Credentials<'_>, dir: Node, name: &[u8]) -> Result<u64, Errno> {
        match self.place(cred, dir, name)? {
            (_, Some(_)) => Err(Errno(EEXIST)),
            (place, None) => Ok(place),
        }
    }

    /// Makes a node at a free place. Kind, mode and owner come with its entry, the other attributes with a later
    /// change.
    fn make(
        &mut self,
        cred: Credentials<'_>,
        (dir, name): (u64, &[u8]),
        kind: Kind,
        body: Body,
        attributes: SetAttributes,
    ) -> Answer {
        if attributes.size.is_some() && kind != Kind::File {
            return Err(Errno(EINVAL));
        }
        cred.check(&self.inodes[&dir], WRITE | SEARCH)?;
        if self.inodes.len() as u64 >= self.config.nodes_max {
            return Err(Errno::NO_SPACE);
        }
        let inode = self.add_inode(cred, dir, kind, attributes.mode.unwrap_or(0), body);
        let number = inode.number;
        let mut later = SetAttributes { mode: None, ..attributes };
        if plan_owner(cred, &inode, &later, &mut inode.stat.clone()).is_err() {
            // A caller that may not have the requested owner or group gets its own, as from a Linux host.
            (later.uid, later.gid) = (None, None);
        }
        match self.planned_stat(cred, &inode, &later) {
            Err(errno) => {
                self.free.insert(number);
                return Err(errno);
            }
            Ok(mut stat) => {
                // The mode is set last, as on a Linux host: a change of the owner clears nothing of it.
                if cred.is_root() {
                    stat.mode = inode.stat.mode;
                }
                self.inodes.insert(number, inode);
                self.change_names(cred.time, [(dir, name.to_vec(), Some(number))], [], Vec::new());
                self.apply_attributes(number, stat, later.size);
            }
        }
        Ok(self.node_reply(number))
    }

    pub(super) fn remove(&mut self, cred: Credentials<'_>, (dir, name): (Node, &[u8])) -> Answer {
        let (dir, number) = self.occupied_place(cred, dir, name)?;
        if self.inodes[&number].kind == Kind::Directory {
            return Err(Errno(EISDIR));
        }
        self.change_names(cred.time, [(dir, name.to_vec(), None)], [number], Vec::new());
        self.lose_name(number, cred.time);
        Ok(self.node_reply(number))
    }

    pub(super) fn remove_directory(&mut self, cred: Credentials<'_>, (dir, name): (Node, &[u8])) -> Answer {
        let (dir, number) = self.occupied_place(cred, dir, name)?;
        let Some(directory) = self.inodes[&number].directory() else {
            return Err(Errno(ENOTDIR));
        };
        if !directory.is_empty() {
            return Err(Errno(ENOTEMPTY));
        }
        self.change_names(cred.time, [(dir, name.to_vec(), None)], [number], Vec::new());
        self.lose_name(number, cred.time);
        self.inode_mut(dir).links -= 1;
        Ok(TreeReply::Done)
    }

    /// A directory and the node of one of its names, which the caller may remove.
    fn occupied_place(&self, cred: Credentials<'_>, dir: Node, name: &[u8]) -> Result<(u64, u64), Errno> {
        let (dir, number) = self.place(cred, dir, name)?;
        let number = number.ok_or(Errno(ENOENT))?;
        cred.check_removal(&self.inodes[&dir], &self.inodes[&number])?;
        Ok((dir, number))
    }

    fn lose_name(&mut self, number: u64, time: Time) {
        let inode = self.inode_mut(number);
        inode.stat.changed = time;
        inode.links = if inode.kind == Kind::Directory { 0 } else { inode.links - 1 };
        if inode.links == 0 {
            self.nameless.insert(number);
        }
    }

    pub(super) fn link(&mut self, cred: Credentials<'_>, node: Node, (dir, name): (Node, &[u8])) -> Answer {
        let number = self.find(node)?;
        let place = self.free_place(cred, dir, name)?;
        cred.check(&self.inodes[&place], WRITE | SEARCH)?;
        let inode = &self.inodes[&number];
        if inode.kind == Kind::Directory {
            return Err(Errno(EPERM));
        }
        if inode.links >= self.config.links_max {
            return Err(Errno(EMLINK));
        }
        let after = self.unsynced_names_of(place);
        self.change_names(cred.time, [(place, name.to_vec(), Some(number))], [number], after);
        let inode = self.inode_mut(number);
        inode.links += 1;
        inode.stat.changed = cred.time;
        Ok(TreeReply::Attributes(self.attributes(number)))
    }

    pub(super) fn rename(
        &mut self,
        cred: Credentials<'_>,
        (from_dir, from_name): (Node, &[u8]),
        (to_dir, to_name): (Node, &[u8]),
    ) -> Answer {
        let (from, moved) = self.place(cred, from_dir, from_name)?;
        let (to, replaced) = self.place(cred, to_dir, to_name)?;
        let moved = moved.ok_or(Errno(ENOENT))?;
        if self.is_within(to, moved) {
            return Err(Errno(EINVAL));
        }
        if replaced.is_some_and(|replaced| self.is_within(from, replaced)) {
            return Err(Errno(ENOTEMPTY));
        }
        if replaced == Some(moved) {
            return Ok(TreeReply::Renamed(self.inodes[&moved].node(), None));
        }
        self.check_rename(cred, (from, to), moved, replaced)?;

        let is_directory = self.inodes[&moved].kind == Kind::Directory;
        let ordered = is_directory.then_some(moved).into_iter().chain(replaced);
        let entries = [(from, from_name.to_vec(), None), (to, to_name.to_vec(), Some(moved))];
        let after = if from == to { Vec::new() } else { self.unsynced_names_of(to) };
        self.change_names(cred.time, entries, ordered, after);
        self.inode_mut(moved).stat.changed = cred.time;
        if let Some(replaced) = replaced {
            self.lose_name(replaced, cred.time);
        }
        if is_directory {
            self.inode_mut(from).links -= 1;
            self.inode_mut(to).links += u32::from(replaced.is_none());
            self.directory_mut(moved).parent = to;
        }
        let replaced = replaced.map(|replaced| self.inodes[&replaced].node());
        Ok(TreeReply::Renamed(self.inodes[&moved].node(), replaced))
    }

    fn check_rename(
        &self,
        cred: Credentials<'_>,
        (from, to): (u64, u64),
        moved: u64,
        replaced: Option<u64>,
    ) -> Result<(), Errno> {
        let inode = &self.inodes[&moved];
        let to_inode = &self.inodes[&to];
        cred.check_removal(&self.inodes[&from], inode)?;
        let is_directory = inode.kind == Kind::Directory;
        match replaced.map(|replaced| &self.inodes[&replaced]) {
            None => cred.check(to_inode, WRITE | SEARCH)?,
            Some(replaced) => {
                cred.check_removal(to_inode, replaced)?;
                match (is_directory, replaced.directory()) {
                    (true, None) => return Err(Errno(ENOTDIR)),
                    (false, Some(_)) => return Err(Errno(EISDIR)),
                    (true, Some(directory)) if !directory.is_empty() => return Err(Errno(ENOTEMPTY)),
                    _ => {}
                }
            }
        }
        if is_directory && from != to {
            // Its `..` changes.
            cred.check(inode, WRITE)?;
            if replaced.is_none() && to_inode.links >= self.config.links_max {
                return Err(Errno(EMLINK));
            }
        }
        Ok(())
    }

    /// Whether the directory `inner` is the node `outer`, or below it.
    fn is_within(&self, inner: u64, outer: u64) -> bool {
        let mut at = inner;
        while at != outer {
            let parent = self.directory(at).parent;
            if parent == at {
                return false;
            }
            at = parent;
        }
        self.inodes[&outer].directory().is_some()
    }
}

/// A verifier is stored in the times of the file.
fn times_of(verifier: [u8; 8]) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let time = |bytes| Time { seconds: i64::from(u32::from_be_bytes(bytes)), nanoseconds: 0 };
    (time([a, b, c, d]), time([e, f, g, h]))
}
