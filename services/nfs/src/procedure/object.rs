//! The object of a handle, and operations on it for the caller.

use std::sync::Arc;

use machine::Errno;
use machine::tree::{Attributes, BeforeAndAfter, Caller, NAME_BYTES_MAX, Node, TreeCall, TreeReply};
use nfs3_types::nfs3::{
    NFS_PROGRAM, Nfs3Option, fattr3, filename3, nfs_fh3, nfsstat3, post_op_attr, post_op_fh3, wcc_attr, wcc_data,
};
use nfs3_types::xdr_codec::Opaque;

use super::Refusal;
use super::status::status;
use crate::attributes::fattr;
use crate::call::Call;
use crate::export::{Export, Names, NotAdmitted};

/// A node of an export, and the caller who uses it.
pub(super) struct Object<'a> {
    pub(super) call: &'a Call,
    pub(super) export: Arc<Export>,
    pub(super) node: Node,
    pub(super) caller: Caller,
}

impl<'a> Object<'a> {
    /// The object of a handle, if the client may use it.
    ///
    /// # Errors
    /// `NFS3ERR_BADHANDLE`: never issued. `NFS3ERR_STALE`: its export was removed. `NFS3ERR_ACCES`: not for this
    /// client. `NFS3ERR_PERM`: not from this port. [`Refusal::TooWeak`]: not without credentials.
    pub(super) fn find(call: &'a Call, handle: &nfs_fh3) -> Result<Self, Refusal> {
        Self::of(call, &handle.data)
    }

    /// As [`Object::find`], from a handle's bytes.
    pub(super) fn of(call: &'a Call, handle: &[u8]) -> Result<Self, Refusal> {
        let refusal = Refusal::NotAdmitted;
        let handle = call.last_handle.open(call.nfs.key(), handle).ok_or(refusal(nfsstat3::NFS3ERR_BADHANDLE))?;
        let export = call.nfs.find(handle.export).ok_or(refusal(nfsstat3::NFS3ERR_STALE))?;
        match export.admit(call.client) {
            Ok(()) => {}
            Err(NotAdmitted::Address) => return Err(refusal(nfsstat3::NFS3ERR_ACCES)),
            // As Linux's server does.
            Err(NotAdmitted::Port) => {
                call.nfs.note_unprivileged(call.client, &export);
                return Err(refusal(nfsstat3::NFS3ERR_PERM));
            }
        }
        let squash = &export.config().squash;
        let caller = match squash.caller(&call.credentials) {
            Some(caller) => caller,
            // Clients need these before they can choose credentials (RFC 2623, 2.3.2).
            None if is_for_mounting(call.procedure) => squash.anonymous(),
            None => return Err(Refusal::TooWeak),
        };
        Ok(Object { call, export, node: handle.node, caller })
    }

    /// Another node of the same export.
    pub(super) fn sibling(&self, node: Node) -> Self {
        Object { call: self.call, export: Arc::clone(&self.export), node, caller: self.caller.clone() }
    }

    /// # Errors
    /// `NFS3ERR_ROFS`.
    pub(super) fn check_writable(&self) -> Result<(), nfsstat3> {
        if self.export.read_only() { Err(nfsstat3::NFS3ERR_ROFS) } else { Ok(()) }
    }

    /// Calls the tree as the caller.
    pub(super) async fn ask(&self, call: TreeCall) -> Result<TreeReply, Errno> {
        self.export.tree().call(&self.call.cpu, Some(&self.caller), call).await
    }

    /// Calls the tree as the caller for a change in this directory; also returns the directory's attributes before and
    /// after it.
    pub(super) async fn ask_in(&self, call: TreeCall) -> Result<(TreeReply, wcc_data), Errno> {
        let (reply, around) = self.ask_around(call, vec![self.node]).await?;
        Ok((reply, around.into_iter().next().unwrap_or(NO_WCC)))
    }

    /// Calls the tree as the caller; also returns the attributes of `dirs` before and after the call.
    pub(super) async fn ask_around(
        &self,
        call: TreeCall,
        dirs: Vec<Node>,
    ) -> Result<(TreeReply, Vec<wcc_data>), Errno> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        let (reply, around) = tree.call_and_around(cpu, Some(&self.caller), call, dirs).await?;
        Ok((reply, around.into_iter().map(|around| self.wcc(around)).collect()))
    }

    /// Calls the tree as the server, which has all permissions.
    pub(super) async fn ask_as_server(&self, call: TreeCall) -> Result<TreeReply, Errno> {
        self.export.tree().call(&self.call.cpu, None, call).await
    }

    /// Calls the tree as the caller for a node in this directory; also returns the directory's attributes after it.
    pub(super) async fn ask_node_in(&self, call: TreeCall) -> Result<(Node, Attributes, wcc_data), nfsstat3> {
        match self.ask_in(call).await {
            Ok((TreeReply::Node(node, attributes), dir)) => Ok((node, attributes, dir)),
            Ok(_) => Err(nfsstat3::NFS3ERR_SERVERFAULT),
            Err(error) => Err(status(error)),
        }
    }

    /// Its attributes, which need no permission.
    pub(super) async fn attributes(&self) -> Result<Attributes, nfsstat3> {
        match self.ask_as_server(TreeCall::Attributes { node: self.node }).await {
            Ok(TreeReply::Attributes(attributes)) => Ok(attributes),
            Ok(_) => Err(nfsstat3::NFS3ERR_SERVERFAULT),
            Err(error) => Err(status(error)),
        }
    }

    /// Its attributes after an operation, which stands even if they cannot be read.
    pub(super) async fn post_op(&self) -> post_op_attr {
        match self.attributes().await {
            Ok(attributes) => Nfs3Option::Some(self.fattr(&attributes)),
            Err(_) => Nfs3Option::None,
        }
    }

    pub(super) fn fattr(&self, attributes: &Attributes) -> fattr3 {
        fattr(attributes, self.export.id())
    }

    fn wcc(&self, (before, after): BeforeAndAfter) -> wcc_data {
        let pre_op = |before: fattr3| wcc_attr { size: before.size, mtime: before.mtime, ctime: before.ctime };
        let some = |attributes: Option<Attributes>| attributes.map(|attributes| self.fattr(&attributes));
        wcc_data {
            before: some(before).map_or(Nfs3Option::None, |before| Nfs3Option::Some(pre_op(before))),
            after: some(after).map_or(Nfs3Option::None, Nfs3Option::Some),
        }
    }

    pub(super) fn handle_of(&self, node: Node) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned(self.export.handle(self.call.nfs.key(), node)) }
    }

    pub(super) fn some_handle_of(&self, node: Node) -> post_op_fh3 {
        Nfs3Option::Some(self.handle_of(node))
    }

    /// Makes a change of these nodes' names and attributes durable, which is required before the reply (RFC 1813, 4.8:
    /// all operations but UNSTABLE writes), unless the export is configured to order them only.
    pub(super) async fn make_durable(&self, nodes: &[Node]) -> Result<(), nfsstat3> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        if self.export.config().names == Names::Ordered {
            return tree.make_durable_in_order(cpu, nodes).await.map_err(status);
        }
        self.or_one_by_one(tree.make_durable(cpu, nodes).await, nodes).await
    }

    /// As [`Object::make_durable`], for a node that was moved from here to the directory `to`.
    pub(super) async fn make_move_durable(&self, moved: Node, to: Node) -> Result<(), nfsstat3> {
        if self.export.config().names == Names::Ordered {
            return self.make_durable(&[to, moved, self.node]).await;
        }
        let done = self.export.tree().make_move_durable(&self.call.cpu, moved, to, self.node).await;
        // The new name first.
        self.or_one_by_one(done, &[to, moved, self.node]).await
    }

    async fn or_one_by_one(&self, done: Result<(), Errno>, nodes: &[Node]) -> Result<(), nfsstat3> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        match done {
            Err(Errno(libc::ESTALE)) => {
                // One of them was removed meanwhile. Its earlier changes are moot; the others must still become
                // durable.
                for node in nodes {
                    match tree.make_durable(cpu, &[*node]).await {
                        Ok(()) | Err(Errno(libc::ESTALE)) => {}
                        Err(error) => return Err(status(error)),
                    }
                }
                Ok(())
            }
            done => done.map_err(status),
        }
    }
}

/// A directory of which nothing is known.
pub(super) const NO_WCC: wcc_data = wcc_data { before: Nfs3Option::None, after: Nfs3Option::None };

fn is_for_mounting(procedure: u32) -> bool {
    procedure == NFS_PROGRAM::NFSPROC3_GETATTR as u32 || procedure == NFS_PROGRAM::NFSPROC3_FSINFO as u32
}

/// A valid name for a lookup.
///
/// # Errors
/// `NFS3ERR_INVAL`: not a name. `NFS3ERR_NAMETOOLONG`.
pub(super) fn name(name: filename3<'_>) -> Result<Vec<u8>, nfsstat3> {
    let name = name.0.into_owned();
    if name.len() > NAME_BYTES_MAX {
        return Err(nfsstat3::NFS3ERR_NAMETOOLONG);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    Ok(name)
}

/// A valid name for a new entry.
///
/// # Errors
/// As [`name`]; `NFS3ERR_EXIST`: `.` and `..` always exist.
pub(super) fn new_name(wire: filename3<'_>) -> Result<Vec<u8>, nfsstat3> {
    let name = name(wire)?;
    if is_dots(&name) { Err(nfsstat3::NFS3ERR_EXIST) } else { Ok(name) }
}

/// A valid name of an entry to be removed or renamed.
///
/// # Errors
/// As [`name`]; `NFS3ERR_INVAL`: not `.` and `..` (RFC 1813, 3.3.13 and 3.3.14).
pub(super) fn old_name(wire: filename3<'_>) -> Result<Vec<u8>, nfsstat3> {
    let name = name(wire)?;
    if is_dots(&name) { Err(nfsstat3::NFS3ERR_INVAL) } else { Ok(name) }
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(bytes: &[u8]) -> filename3<'_> {
        filename3::from(bytes)
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for bytes in [&b""[..], b"/", b"a/b", b"a/", b"a\0b", b"\0"] {
            assert_eq!(name(wire(bytes)), Err(nfsstat3::NFS3ERR_INVAL), "{bytes:?}");
        }
        assert_eq!(name(wire(&[b'a'; 255])), Ok(vec![b'a'; 255]));
        assert_eq!(name(wire(&[b'a'; 256])), Err(nfsstat3::NFS3ERR_NAMETOOLONG));
        assert_eq!(name(wire(&[b'/'; 256])), Err(nfsstat3::NFS3ERR_NAMETOOLONG));
        assert_eq!(name(wire(b"\xff\xfe")), Ok(b"\xff\xfe".to_vec()));
    }

    #[test]
    fn the_dots_are_neither_made_nor_removed() {
        for dots in [&b"."[..], b".."] {
            assert_eq!(name(wire(dots)), Ok(dots.to_vec()));
            assert_eq!(new_name(wire(dots)), Err(nfsstat3::NFS3ERR_EXIST));
            assert_eq!(old_name(wire(dots)), Err(nfsstat3::NFS3ERR_INVAL));
        }
        assert_eq!(new_name(wire(b"...")), Ok(b"...".to_vec()));
    }
}
