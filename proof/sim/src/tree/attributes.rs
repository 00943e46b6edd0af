//! Attributes, access, listings and limits.

use libc::{EACCES, EFBIG, EISDIR, EPERM};

use super::inode::{Body, COOKIE_PARENT, COOKIE_SELF, Inode, Stat};
use super::permission::{Credentials, READ, SEARCH, SET_GID, SET_UID, WRITE};
use super::{Answer, ROOT, SimTree};
use machine::Errno;
use machine::tree::{
    Attributes, Entry, InodeNo, Kind, Limits, NAME_BYTES_MAX, Node, SetAttributes, SetTime, Space, TreeReply,
};

/// The size of a directory in its attributes, in bytes.
const DIRECTORY_BYTES: u64 = 4096;

/// First number of simulated file systems.
const FILE_SYSTEMS: u64 = 0x5eed_0000;

impl SimTree {
    pub(super) fn attributes(&self, number: u64) -> Attributes {
        let inode = &self.inodes[&number];
        let (size, used) = match &inode.body {
            Body::File(bytes) => (bytes.size(), bytes.allocated()),
            Body::Directory(_) => (DIRECTORY_BYTES, DIRECTORY_BYTES),
            Body::SymbolicLink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        let Stat { mode, uid, gid, accessed, modified, changed } = inode.stat;
        let file_system = FILE_SYSTEMS + u64::from(self.id);
        let (kind, links) = (inode.kind, inode.links);
        Attributes {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            used,
            file_system,
            number: InodeNo(number),
            accessed,
            modified,
            changed,
        }
    }

    pub(super) fn access(&self, cred: Credentials<'_>, node: Node, wanted: u32) -> Answer {
        let number = self.find(node)?;
        let inode = &self.inodes[&number];
        let mut allowed = cred.allowed(inode, wanted & (READ | WRITE | SEARCH));
        let is_stored = matches!(inode.kind, Kind::File | Kind::Directory | Kind::SymbolicLink);
        if self.config.read_only && is_stored {
            allowed &= !WRITE;
        }
        Ok(TreeReply::Access(allowed, self.attributes(number)))
    }

    pub(super) fn read_link(&self, node: Node) -> Answer {
        match &self.inodes[&self.find(node)?].body {
            Body::SymbolicLink(target) => Ok(TreeReply::Bytes(target.clone())),
            _ => Err(Errno::INVALID),
        }
    }

    pub(super) fn set_attributes(
        &mut self,
        cred: Credentials<'_>,
        number: u64,
        attributes: SetAttributes,
    ) -> Result<(), Errno> {
        let stat = self.planned_stat(cred, &self.inodes[&number], &attributes)?;
        self.apply_attributes(number, stat, attributes.size);
        Ok(())
    }

    /// The attributes of `inode` after `cred` has set these.
    pub(super) fn planned_stat(
        &self,
        cred: Credentials<'_>,
        inode: &Inode,
        attributes: &SetAttributes,
    ) -> Result<Stat, Errno> {
        let mut stat = inode.stat;
        if *attributes == SetAttributes::default() {
            return Ok(stat);
        }
        // To a Linux host, it means that the owner stays.
        if [attributes.uid, attributes.gid].contains(&Some(u32::MAX)) {
            return Err(Errno::INVALID);
        }
        self.check_size(cred, inode, attributes)?;
        plan_owner(cred, inode, attributes, &mut stat)?;
        if attributes.drops_set_id {
            if !cred.owns(&inode.stat) {
                return Err(Errno(EPERM));
            }
            strip_privileges(inode.kind, &mut stat);
        }
        // Symbolic links have no permissions.
        if let Some(mode) = attributes.mode.filter(|_| inode.kind != Kind::SymbolicLink) {
            if !cred.owns(&inode.stat) {
                return Err(Errno(EPERM));
            }
            stat.mode = cred.granted_mode(mode, stat.gid);
        }
        if attributes.size.is_some() {
            stat.modified = cred.time;
            if !cred.is_root() {
                strip_privileges(inode.kind, &mut stat);
            }
        }
        plan_times(cred, inode, attributes, &mut stat)?;
        stat.changed = cred.time;
        Ok(stat)
    }

    fn check_size(&self, cred: Credentials<'_>, inode: &Inode, attributes: &SetAttributes) -> Result<(), Errno> {
        let Some(size) = attributes.size else {
            return Ok(());
        };
        match inode.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno(EISDIR)),
            _ => return Err(Errno::INVALID),
        }
        if !cred.owns(&inode.stat) {
            cred.check(inode, WRITE)?;
        }
        if size > self.config.file_bytes_max { Err(Errno(EFBIG)) } else { Ok(()) }
    }

    pub(super) fn apply_attributes(&mut self, number: u64, stat: Stat, size: Option<u64>) {
        if let Some(size) = size {
            // Fails only for other nodes than regular files, which was checked.
            let _ = self.on_bytes(number, |bytes, _| bytes.set_size(size));
        }
        if self.inodes[&number].stat != stat {
            let change = self.next_change();
            let inode = self.inode_mut(number);
            inode.stat = stat;
            inode.note_version(change);
        }
    }

    pub(super) fn list(
        &self,
        cred: Credentials<'_>,
        dir: Node,
        cookie: u64,
        entries_max: usize,
        with_nodes: bool,
    ) -> Answer {
        let number = self.find_directory(dir)?;
        let inode = &self.inodes[&number];
        cred.check(inode, READ)?;
        // Without permission to search, only names are visible.
        let with_nodes = with_nodes && cred.allowed(inode, SEARCH) == SEARCH;
        let directory = self.directory(number);
        let own = [(COOKIE_SELF, b".".as_slice(), number), (COOKIE_PARENT, b"..", directory.parent)];
        let own = own.into_iter().filter(|(own, ..)| *own > cookie);
        let others = directory.behind(cookie).map(|(name, slot)| (slot.cookie, name, slot.number));
        let mut rest = own.chain(others);
        let entry = |(cookie, name, number): (u64, &[u8], u64)| {
            let node = with_nodes.then(|| (self.inodes[&number].node(), self.attributes(number)));
            Entry { name: name.to_vec(), number: InodeNo(number), cookie, node }
        };
        let entries: Vec<Entry> = rest.by_ref().take(entries_max.max(1)).map(entry).collect();
        Ok(TreeReply::Entries(entries, rest.next().is_none()))
    }

    pub(super) fn space_reply(&self) -> TreeReply {
        let nodes = self.config.nodes_max;
        TreeReply::Space(Space {
            bytes: self.space(),
            bytes_free: self.room(),
            bytes_available: self.room(),
            nodes,
            nodes_free: nodes.saturating_sub(self.inodes.len() as u64),
        })
    }

    pub(super) fn limits(&self, node: Node) -> Answer {
        self.find(node)?;
        Ok(TreeReply::Limits(Limits {
            links_max: self.config.links_max,
            name_bytes_max: NAME_BYTES_MAX as u32,
            file_bytes_max: self.config.file_bytes_max,
            time_granularity_ns: self.config.tick_ns,
            case_insensitive: false,
        }))
    }

    pub(super) fn root(&self) -> TreeReply {
        self.node_reply(ROOT)
    }
}

pub(super) fn plan_owner(
    cred: Credentials<'_>,
    inode: &Inode,
    attributes: &SetAttributes,
    stat: &mut Stat,
) -> Result<(), Errno> {
    if attributes.uid.is_none() && attributes.gid.is_none() {
        return Ok(());
    }
    let uid = attributes.uid.unwrap_or(stat.uid);
    let gid = attributes.gid.unwrap_or(stat.gid);
    let may_set = cred.is_root()
        || (cred.uid() == inode.stat.uid && uid == inode.stat.uid && (gid == inode.stat.gid || cred.is_in(gid)));
    if !may_set {
        return Err(Errno(EPERM));
    }
    (stat.uid, stat.gid) = (uid, gid);
    strip_privileges(inode.kind, stat);
    Ok(())
}

/// A change of owner or content clears the privileges that the mode gives to those who run the file.
fn strip_privileges(kind: Kind, stat: &mut Stat) {
    if kind == Kind::Directory {
        return;
    }
    stat.mode &= !SET_UID;
    if stat.mode & 0o010 != 0 {
        stat.mode &= !SET_GID;
    }
}

fn plan_times(cred: Credentials<'_>, inode: &Inode, attributes: &SetAttributes, stat: &mut Stat) -> Result<(), Errno> {
    let wanted = [attributes.accessed, attributes.modified];
    if wanted.iter().any(|time| matches!(time, Some(SetTime::To(_)))) && !cred.owns(&inode.stat) {
        return Err(Errno(EPERM));
    }
    let may_touch = cred.owns(&inode.stat) || cred.allowed(inode, WRITE) == WRITE;
    if wanted.iter().any(Option::is_some) && !may_touch {
        return Err(Errno(EACCES));
    }
    let valid = |time: &Option<SetTime>| !matches!(time, Some(SetTime::To(time)) if time.nanoseconds >= 1_000_000_000);
    if !wanted.iter().all(valid) {
        return Err(Errno::INVALID);
    }
    let moment = |time: SetTime| match time {
        SetTime::Now => cred.time,
        SetTime::To(time) => time,
    };
    stat.accessed = attributes.accessed.map_or(stat.accessed, moment);
    stat.modified = attributes.modified.map_or(stat.modified, moment);
    Ok(())
}
