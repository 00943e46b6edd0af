//! Attributes of nodes and of their file system.

use std::os::fd::{AsFd, BorrowedFd};

use super::HostTree;
use super::call;
use super::identity::Identity;
use super::node::Found;
use super::permission::WRITE;
use super::status::{self, MODE, kind_of};
use crate::Errno;
use crate::linux::file_system::FileSystem;
use crate::tree::{Caller, Kind, Limits, NAME_BYTES_MAX, Node, SetAttributes, SetTime, Space, Time, TreeReply};

/// Those that are cleared when the owner changes, or, in directories, at creation.
const SET_ID: u32 = 0o6000;

/// The mode of a new node.
pub(super) fn new_mode(attributes: &SetAttributes) -> u32 {
    attributes.mode.unwrap_or(0) & MODE
}

impl HostTree {
    pub(super) fn attributes(&self, node: &Node) -> Result<TreeReply, Errno> {
        Ok(TreeReply::Attributes(self.find(node)?.attributes()))
    }

    pub(super) fn access(&self, caller: Option<&Caller>, node: &Node, wanted: u32) -> Result<TreeReply, Errno> {
        let found = self.find(node)?;
        self.access_to(caller, found.fd(), &found.status, wanted)
    }

    /// As [`HostTree::access`], to an open node.
    pub(super) fn access_to(
        &self,
        caller: Option<&Caller>,
        fd: BorrowedFd,
        status: &libc::statx,
        wanted: u32,
    ) -> Result<TreeReply, Errno> {
        let wanted = self.rights(caller, status, wanted);
        let _acting = self.identity.act_as(caller)?;
        let mut granted = 0;
        for bit in [libc::R_OK, libc::W_OK, libc::X_OK].map(|bit| bit as u32) {
            let asked = wanted & bit != 0 && !(self.read_only && bit == libc::W_OK as u32);
            if asked && call::may(fd, bit)? {
                granted |= bit;
            }
        }
        Ok(TreeReply::Access(granted, status::attributes(status)))
    }

    pub(super) fn set_attributes(
        &self,
        caller: Option<&Caller>,
        node: &Node,
        attributes: &SetAttributes,
        guard: Option<Time>,
    ) -> Result<TreeReply, Errno> {
        // Of two callers that saw the same time only one may succeed.
        let _one_at_a_time = guard.map(|_| self.guarded.lock());
        let mut found = self.find(node)?;
        if guard.is_some_and(|guard| guard != found.attributes().changed) {
            return Ok(TreeReply::GuardFailed);
        }
        self.require_setting(caller, &found, attributes)?;
        if let Some(size) = attributes.size {
            // What is cut off is lost: first what the host would refuse afterwards.
            self.require_owner(caller, &found, attributes)?;
            self.set_size(caller, &found, size)?;
        }
        let _modes = self.modes.lock();
        let acting = self.identity.act_as(caller)?;
        // The host drops these bits, and no others, for whoever sets an owner, also one that stays.
        if attributes.uid.is_some() || attributes.gid.is_some() || attributes.drops_set_id {
            call::chown(found.fd(), attributes.uid, attributes.gid)?;
        }
        // After the owner, whose change clears bits. Symbolic links have no permissions.
        if let Some(mode) = attributes.mode.filter(|_| found.kind() != libc::S_IFLNK) {
            call::chmod(found.fd(), mode & MODE)?;
        }
        match set_times(found.fd(), attributes) {
            // Linux lets who may write set both times to the present, but not one of them. A client does that to open and
            // empty a file.
            Err(Errno(libc::EPERM)) if is_one_now(attributes) && !self.is_owner(caller, &found) => {
                let may_write = call::may(found.fd(), WRITE)?;
                drop(acting);
                if !may_write {
                    return Err(Errno(libc::EACCES));
                }
                set_one_now(found.fd(), attributes)?;
            }
            done => {
                drop(acting);
                done?;
            }
        }
        found.refresh()?;
        Ok(TreeReply::Attributes(found.attributes()))
    }

    /// Sets the size. The owner may, whatever the mode: a process that made a file without permission to write and
    /// still has it open expects that (and could give itself the permission).
    pub(super) fn set_size(&self, caller: Option<&Caller>, found: &Found, size: u64) -> Result<(), Errno> {
        match found.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno::INVALID),
        }
        let as_caller = {
            let _acting = self.identity.act_as(caller)?;
            self.require(caller, found.fd(), WRITE).and_then(|()| call::truncate(found.fd(), size))
        };
        match as_caller {
            Err(Errno(libc::EACCES)) if caller.is_none_or(|caller| caller.uid == found.status.stx_uid) => {
                self.as_owner(found, || call::truncate(found.fd(), size))
            }
            other => other,
        }
    }

    pub(super) fn space(&self) -> Result<TreeReply, Errno> {
        let found = call::usage(self.root.as_fd())?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.block);
        Ok(TreeReply::Space(Space {
            bytes: bytes(found.blocks),
            bytes_free: bytes(found.blocks_free),
            bytes_available: bytes(found.blocks_available),
            nodes: found.nodes,
            nodes_free: found.nodes_free,
        }))
    }

    pub(super) fn limits(&self, node: &Node) -> Result<TreeReply, Errno> {
        let found = self.find(node)?;
        let host = call::usage(found.fd())?;
        let in_directory = || self.reopen(&found, libc::O_RDONLY).is_ok_and(|fd| call::folds_case(fd.as_fd()));
        Ok(TreeReply::Limits(Limits {
            links_max: call::links_max(found.fd()),
            name_bytes_max: host.name_bytes_max.min(NAME_BYTES_MAX as u64) as u32,
            file_bytes_max: self.file_bytes_max(&found, &host),
            time_granularity_ns: 1,
            case_insensitive: host.kind.ignores_case() || (found.is_directory() && in_directory()),
        }))
    }
}

impl HostTree {
    /// The largest file. The host has no call for it, but refuses to seek beyond it in an open file: in this one, or in
    /// one without a name.
    fn file_bytes_max(&self, found: &Found, host: &call::Usage) -> u64 {
        if found.kind() == libc::S_IFREG {
            return self.reopen(found, libc::O_RDONLY).map_or_else(|_| guess(host), |file| self.end_max(file.as_fd()));
        }
        let known = self.file_bytes_max.get_or_init(|| {
            let nameless = libc::O_TMPFILE | libc::O_WRONLY;
            let file = (!self.read_only).then(|| call::open_at(self.root.as_fd(), c".", nameless, 0));
            file.and_then(Result::ok).map(|file| self.end_max(file.as_fd()))
        });
        known.unwrap_or_else(|| guess(host))
    }
}

/// The largest file, where none can be tried: file systems other than ext4 mostly reach the largest offset, or report
/// `EFBIG` earlier.
fn guess(host: &call::Usage) -> u64 {
    let end = i64::MAX as u64;
    // ext4 counts the blocks of a file in 32 bits.
    if host.kind == FileSystem::Ext { u64::from(u32::MAX).saturating_mul(host.block).min(end) } else { end }
}

/// Sets on a new, open node what it could not be created with.
///
/// Unless both caller and server are root, a refusal of the owner or group is ignored: clients send what they expect it
/// to be, and knfsd ignores it, too.
pub(super) fn complete(
    new: BorrowedFd,
    identity: &Identity,
    caller: Option<&Caller>,
    attributes: &SetAttributes,
) -> Result<(), Errno> {
    let may_give_away = identity.acts_for_others() && caller.is_none_or(|caller| caller.uid == 0);
    let mut changed = false;
    if attributes.uid.is_some() || attributes.gid.is_some() {
        match call::chown(new, attributes.uid, attributes.gid) {
            Err(Errno(libc::EPERM)) if !may_give_away => {}
            other => {
                other?;
                changed = true;
            }
        }
    }
    let mode = new_mode(attributes);
    let directory = || call::status(new).is_ok_and(|status| kind_of(&status) == Kind::Directory);
    if mode & SET_ID != 0 && (changed || directory()) {
        call::chmod(new, mode)?;
    }
    set_times(new, attributes)
}

fn set_times(fd: BorrowedFd, attributes: &SetAttributes) -> Result<(), Errno> {
    if attributes.accessed.is_none() && attributes.modified.is_none() {
        return Ok(());
    }
    call::set_times(fd, &[time_to_set(attributes.accessed)?, time_to_set(attributes.modified)?])
}

/// Is one of the times set to the present, and the other left?
fn is_one_now(attributes: &SetAttributes) -> bool {
    matches!((attributes.accessed, attributes.modified), (Some(SetTime::Now), None) | (None, Some(SetTime::Now)))
}

/// Sets it as the server. Where that is not the owner, either, the time of access goes with that of the content.
fn set_one_now(fd: BorrowedFd, attributes: &SetAttributes) -> Result<(), Errno> {
    match set_times(fd, attributes) {
        Err(Errno(libc::EPERM)) if attributes.accessed.is_none() => {
            set_times(fd, &SetAttributes { accessed: Some(SetTime::Now), ..*attributes })
        }
        done => done,
    }
}

fn time_to_set(time: Option<SetTime>) -> Result<libc::timespec, Errno> {
    let special = |tv_nsec| Ok(libc::timespec { tv_sec: 0, tv_nsec });
    match time {
        None => special(libc::UTIME_OMIT),
        Some(SetTime::Now) => special(libc::UTIME_NOW),
        Some(SetTime::To(Time { seconds, nanoseconds })) if nanoseconds < 1_000_000_000 => {
            let tv_sec = libc::time_t::try_from(seconds).map_err(|_| Errno::INVALID)?;
            Ok(libc::timespec { tv_sec, tv_nsec: nanoseconds as _ })
        }
        Some(SetTime::To(_)) => Err(Errno::INVALID),
    }
}
