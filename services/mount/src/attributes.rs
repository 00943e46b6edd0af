//! Attributes of files, as the server says them.

use nfs3_types::nfs3::{fattr3, ftype3, nfstime3, pre_op_attr, wcc_data};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Block,
    Character,
    Socket,
    Fifo,
}

/// A time of the server's. Ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub seconds: u32,
    pub nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes on the disk.
    pub used: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    /// Of the file system, whose objects have numbers of their own.
    pub fs_id: u64,
    pub file_id: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
}

/// What identifies a state of a file's content: another state has other ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub size: u64,
    pub modified: Time,
    pub changed: Time,
}

impl Attributes {
    /// Of an object of which only number and kind are known.
    pub fn bare(file_id: u64, kind: Kind) -> Self {
        let time = Time::default();
        Attributes {
            kind,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            device: (0, 0),
            fs_id: 0,
            file_id,
            accessed: time,
            modified: time,
            changed: time,
        }
    }

    pub fn version(&self) -> Version {
        Version { size: self.size, modified: self.modified, changed: self.changed }
    }
}

/// `wcc_data`: a file's state before and after a call that changed it, as far as the server says them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub before: Option<Version>,
    pub after: Option<Attributes>,
}

impl From<nfstime3> for Time {
    fn from(time: nfstime3) -> Self {
        Time { seconds: time.seconds, nanoseconds: time.nseconds }
    }
}

impl From<Time> for nfstime3 {
    fn from(time: Time) -> Self {
        nfstime3 { seconds: time.seconds, nseconds: time.nanoseconds }
    }
}

impl From<&fattr3> for Attributes {
    fn from(wire: &fattr3) -> Self {
        Attributes {
            kind: match wire.type_ {
                ftype3::NF3REG => Kind::File,
                ftype3::NF3DIR => Kind::Directory,
                ftype3::NF3LNK => Kind::Symlink,
                ftype3::NF3BLK => Kind::Block,
                ftype3::NF3CHR => Kind::Character,
                ftype3::NF3SOCK => Kind::Socket,
                ftype3::NF3FIFO => Kind::Fifo,
            },
            mode: wire.mode & 0o7777,
            links: wire.nlink,
            uid: wire.uid,
            gid: wire.gid,
            // Nothing can be longer here.
            size: wire.size.min(i64::MAX as u64),
            used: wire.used,
            device: (wire.rdev.specdata1, wire.rdev.specdata2),
            fs_id: wire.fsid,
            file_id: wire.fileid,
            accessed: wire.atime.into(),
            modified: wire.mtime.into(),
            changed: wire.ctime.into(),
        }
    }
}

impl From<&wcc_data> for Change {
    fn from(wire: &wcc_data) -> Self {
        let before = match &wire.before {
            pre_op_attr::Some(before) => {
                Some(Version { size: before.size, modified: before.mtime.into(), changed: before.ctime.into() })
            }
            pre_op_attr::None => None,
        };
        let after = match &wire.after {
            nfs3_types::nfs3::post_op_attr::Some(after) => Some(Attributes::from(after)),
            nfs3_types::nfs3::post_op_attr::None => None,
        };
        Change { before, after }
    }
}
