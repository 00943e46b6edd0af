//! The names and nodes of a [`super::FailingDisk`].

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo, Request};

use super::content::Content;
use crate::ledger::SECTOR;

pub struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

pub struct Node {
    pub attributes: FileAttr,
    kind: Kind,
    parent: u64,
}

enum Kind {
    File(Content),
    Directory(BTreeMap<OsString, u64>),
}

impl Tree {
    pub fn new() -> Tree {
        let root = Node::new(INodeNo::ROOT.0, FileType::Directory, 0o755, (0, 0), INodeNo::ROOT.0);
        Tree { nodes: HashMap::from([(INodeNo::ROOT.0, root)]), next: INodeNo::ROOT.0 + 1 }
    }

    /// The contents of all files.
    pub fn contents(&mut self) -> impl Iterator<Item = &mut Content> {
        self.nodes.values_mut().filter_map(|node| match &mut node.kind {
            Kind::File(content) => Some(content),
            Kind::Directory(_) => None,
        })
    }

    pub fn node(&mut self, number: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::ENOENT)
    }

    pub fn file(&mut self, inode: INodeNo) -> Result<&mut Content, Errno> {
        match &mut self.node(inode.0)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(Errno::EISDIR),
        }
    }

    pub fn directory(&mut self, inode: INodeNo) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        match &mut self.node(inode.0)?.kind {
            Kind::Directory(entries) => Ok(entries),
            Kind::File(_) => Err(Errno::ENOTDIR),
        }
    }

    pub fn attributes(&mut self, number: u64) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let mut attributes = node.attributes;
        if let Kind::File(content) = &node.kind {
            attributes.size = content.size() as u64;
            attributes.blocks = attributes.size.div_ceil(SECTOR as u64);
        }
        Ok(attributes)
    }

    pub fn find(&mut self, parent: INodeNo, name: &OsStr) -> Result<u64, Errno> {
        match name.as_encoded_bytes() {
            // The kernel resolves file handles by these names. A node without a link is stale.
            b"." if self.node(parent.0)?.attributes.nlink > 0 => Ok(parent.0),
            b"." => Err(Errno::ENOENT),
            b".." => Ok(self.node(parent.0)?.parent),
            _ => self.directory(parent)?.get(name).copied().ok_or(Errno::ENOENT),
        }
    }

    pub fn make(
        &mut self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        if self.directory(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        let node = Node::new(number, kind, mode as u16 & 0o7777, (request.uid(), request.gid()), parent.0);
        self.nodes.insert(number, node);
        self.directory(parent)?.insert(name.to_owned(), number);
        self.touch(parent)?;
        self.attributes(number)
    }

    pub fn remove(&mut self, parent: INodeNo, name: &OsStr, is_directory: bool) -> Result<(), Errno> {
        let number = self.find(parent, name)?;
        match (&self.node(number)?.kind, is_directory) {
            (Kind::File(_), true) => return Err(Errno::ENOTDIR),
            (Kind::Directory(_), false) => return Err(Errno::EISDIR),
            (Kind::Directory(entries), true) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.directory(parent)?.remove(name);
        let attributes = &mut self.node(number)?.attributes;
        attributes.nlink = if is_directory { 0 } else { attributes.nlink - 1 };
        attributes.ctime = SystemTime::now();
        self.touch(parent)
    }

    pub fn rename(&mut self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), replaces: bool) -> Result<(), Errno> {
        let number = self.find(from.0, from.1)?;
        if let Ok(old) = self.find(to.0, to.1) {
            if !replaces {
                return Err(Errno::EEXIST);
            }
            if old == number {
                return Ok(());
            }
            let is_directory = matches!(self.node(old)?.kind, Kind::Directory(_));
            if is_directory != matches!(self.node(number)?.kind, Kind::Directory(_)) {
                return Err(if is_directory { Errno::EISDIR } else { Errno::ENOTDIR });
            }
            self.remove(to.0, to.1, is_directory)?;
        }
        self.directory(from.0)?.remove(from.1);
        self.directory(to.0)?.insert(to.1.to_owned(), number);
        let node = self.node(number)?;
        (node.parent, node.attributes.ctime) = (to.0.0, SystemTime::now());
        self.touch(from.0)?;
        self.touch(to.0)
    }

    pub fn touch(&mut self, inode: INodeNo) -> Result<(), Errno> {
        let attributes = &mut self.node(inode.0)?.attributes;
        attributes.mtime = SystemTime::now();
        attributes.ctime = attributes.mtime;
        Ok(())
    }
}

impl Node {
    fn new(number: u64, kind: FileType, perm: u16, (uid, gid): (u32, u32), parent: u64) -> Node {
        let now = SystemTime::now();
        let is_directory = kind == FileType::Directory;
        let attributes = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm,
            nlink: if is_directory { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let kind = if is_directory { Kind::Directory(BTreeMap::new()) } else { Kind::File(Content::default()) };
        Node { attributes, kind, parent }
    }
}
