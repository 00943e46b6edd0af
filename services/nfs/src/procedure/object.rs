//! What a handle names, and what is done with it for the caller.

use std::sync::Arc;

use machine::Errno;
use machine::tree::{Attributes, Caller, NAME_BYTES_MAX, Node, TreeCall, TreeReply};
use nfs3_types::nfs3::{
    NFS_PROGRAM, Nfs3Option, fattr3, filename3, nfs_fh3, nfsstat3, post_op_attr, post_op_fh3, wcc_data,
};
use nfs3_types::xdr_codec::Opaque;

use super::Refusal;
use super::status::status;
use crate::attributes::fattr;
use crate::call::Call;
use crate::export::{Export, NotAdmitted};
use crate::handle::Handle;

/// A node of an export, and for whom it is used.
pub(super) struct Object<'a> {
    pub(super) call: &'a Call,
    pub(super) export: Arc<Export>,
    pub(super) node: Node,
    pub(super) caller: Caller,
}

impl<'a> Object<'a> {
    /// What the handle names, if the client may have it.
    ///
    /// # Errors
    /// `NFS3ERR_BADHANDLE`: never given out. `NFS3ERR_STALE`: of an export that is no longer there. `NFS3ERR_ACCES`: not
    /// for this client. `NFS3ERR_PERM`: not for its port. [`Refusal::TooWeak`]: not for callers who don't say who they are.
    pub(super) fn find(call: &'a Call, handle: &nfs_fh3) -> Result<Self, Refusal> {
        let handle = Handle::open(call.server.key(), &handle.data).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        let export = call.server.find(handle.export).ok_or(nfsstat3::NFS3ERR_STALE)?;
        match export.admit(call.client) {
            Ok(()) => {}
            Err(NotAdmitted::Address) => return Err(nfsstat3::NFS3ERR_ACCES.into()),
            // As Linux's server.
            Err(NotAdmitted::Port) => {
                call.server.note_unprivileged(call.client, &export);
                return Err(nfsstat3::NFS3ERR_PERM.into());
            }
        }
        let squash = &export.config().squash;
        let caller = match squash.caller(&call.credentials) {
            Some(caller) => caller,
            // What a client needs before it can choose credentials (RFC 2623, 2.3.2).
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

    /// Asks the host as the caller.
    pub(super) async fn ask(&self, call: TreeCall) -> Result<TreeReply, Errno> {
        self.export.tree().call(&self.call.cpu, Some(&self.caller), call).await
    }

    /// Asks the host as the caller for something in this directory: also says the directory's attributes after it.
    pub(super) async fn ask_in(&self, call: TreeCall) -> Result<(TreeReply, post_op_attr), Errno> {
        let (reply, after) = self.ask_and_after(call, vec![self.node]).await?;
        Ok((reply, after.into_iter().next().unwrap_or(Nfs3Option::None)))
    }

    /// Asks the host as the caller, and for the attributes that these directories have after it.
    pub(super) async fn ask_and_after(
        &self,
        call: TreeCall,
        dirs: Vec<Node>,
    ) -> Result<(TreeReply, Vec<post_op_attr>), Errno> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        let (reply, after) = tree.call_and_after(cpu, Some(&self.caller), call, dirs).await?;
        let post_op = |attributes| match attributes {
            Some(attributes) => Nfs3Option::Some(self.fattr(&attributes)),
            None => Nfs3Option::None,
        };
        Ok((reply, after.into_iter().map(post_op).collect()))
    }

    /// Asks the host as the server, who may do everything.
    pub(super) async fn ask_as_server(&self, call: TreeCall) -> Result<TreeReply, Errno> {
        self.export.tree().call(&self.call.cpu, None, call).await
    }

    /// Asks the host as the caller for a node in this directory: also says the directory's attributes after it.
    pub(super) async fn ask_node_in(&self, call: TreeCall) -> Result<(Node, Attributes, post_op_attr), nfsstat3> {
        match self.ask_in(call).await {
            Ok((TreeReply::Node(node, attributes), dir)) => Ok((node, attributes, dir)),
            Ok(_) => Err(nfsstat3::NFS3ERR_SERVERFAULT),
            Err(error) => Err(status(error)),
        }
    }

    /// Its attributes; nobody needs a right to see them.
    pub(super) async fn attributes(&self) -> Result<Attributes, nfsstat3> {
        match self.ask_as_server(TreeCall::Attributes { node: self.node }).await {
            Ok(TreeReply::Attributes(attributes)) => Ok(attributes),
            Ok(_) => Err(nfsstat3::NFS3ERR_SERVERFAULT),
            Err(error) => Err(status(error)),
        }
    }

    /// Its attributes after an operation; the operation stands even if they are not to be had.
    pub(super) async fn post_op(&self) -> post_op_attr {
        match self.attributes().await {
            Ok(attributes) => Nfs3Option::Some(self.fattr(&attributes)),
            Err(_) => Nfs3Option::None,
        }
    }

    /// Attributes of a node of the same export.
    pub(super) fn fattr(&self, attributes: &Attributes) -> fattr3 {
        fattr(attributes, self.export.id())
    }

    /// The handle of a node of the same export.
    pub(super) fn handle_of(&self, node: Node) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned(self.export.handle(self.call.server.key(), node)) }
    }

    /// The same, where it is optional.
    pub(super) fn some_handle_of(&self, node: Node) -> post_op_fh3 {
        Nfs3Option::Some(self.handle_of(node))
    }

    /// Makes a change of these nodes' names and attributes durable: to be done before it is answered (RFC 1813, 4.8:
    /// all operations but UNSTABLE writes).
    pub(super) async fn make_durable(&self, nodes: &[Node]) -> Result<(), nfsstat3> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        self.or_one_by_one(tree.make_durable(cpu, nodes).await, nodes).await
    }

    /// The same of a node that was moved from here to the directory `to`.
    pub(super) async fn make_move_durable(&self, moved: Node, to: Node) -> Result<(), nfsstat3> {
        let done = self.export.tree().make_move_durable(&self.call.cpu, moved, to, self.node).await;
        // The new name first.
        self.or_one_by_one(done, &[to, moved, self.node]).await
    }

    async fn or_one_by_one(&self, done: Result<(), Errno>, nodes: &[Node]) -> Result<(), nfsstat3> {
        let (tree, cpu) = (self.export.tree(), &self.call.cpu);
        match done {
            Err(Errno(libc::ESTALE)) => {
                // Somebody removed one of them meanwhile. What was done with it before is done; the others count.
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

/// Attributes after a change. Those before it are left out: nothing makes them and the change one step.
pub(super) fn wcc(after: post_op_attr) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after }
}

fn is_for_mounting(procedure: u32) -> bool {
    procedure == NFS_PROGRAM::NFSPROC3_GETATTR as u32 || procedure == NFS_PROGRAM::NFSPROC3_FSINFO as u32
}

/// The name of an entry that may be looked up.
///
/// # Errors
/// `NFS3ERR_INVAL`: no name of an entry. `NFS3ERR_NAMETOOLONG`.
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

/// The name of an entry to be made.
///
/// # Errors
/// As [`name`]; `NFS3ERR_EXIST`: `.` and `..` are always there.
pub(super) fn new_name(wire: filename3<'_>) -> Result<Vec<u8>, nfsstat3> {
    let name = name(wire)?;
    if is_dots(&name) { Err(nfsstat3::NFS3ERR_EXIST) } else { Ok(name) }
}

/// The name of an entry to be removed or given another name.
///
/// # Errors
/// As [`name`]; `NFS3ERR_INVAL`: `.` and `..` stay (RFC 1813, 3.3.13 and 3.3.14).
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
