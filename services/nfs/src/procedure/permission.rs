//! Permissions for the content of files.
//!
//! The host checks names and attributes, since it is called as the caller. Reads and writes of cached content do not
//! reach it, so permission is checked here: at every request, since NFS has no open files.
//!
//! The owner may always read and write: a program that creates a file with mode 0444 goes on writing to it, and the
//! server sees each write as a request of its own. For others only the host knows: the mode's bits do not show what an
//! access control list allows (its group bits are a mask) or denies. So it is asked, and a grant is remembered for
//! [`crate::grants::GRANT_AGE`].

use kernel::Processor;
use machine::Errno;
use machine::tree::{Attributes, Caller, Node, TreeCall, TreeReply};
use nfs3_types::nfs3::nfsstat3;

use super::status::status;
use crate::client::Credentials;
use crate::export::Export;

pub(crate) const R_OK: u32 = libc::R_OK as u32;
pub(crate) const W_OK: u32 = libc::W_OK as u32;
pub(crate) const X_OK: u32 = libc::X_OK as u32;

/// An operation on the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Use {
    /// Any of these is sufficient. To execute a program its pages must be read, and the client does not state the
    /// purpose.
    fn rights(self) -> u32 {
        match self {
            Use::Read => R_OK | X_OK,
            Use::Write => W_OK,
        }
    }
}

/// Is it permitted without asking the host?
fn is_clear(attributes: &Attributes, uid: u32) -> bool {
    uid == 0 || uid == attributes.uid
}

/// Is it known, without asking the host, that a caller with these credentials may read a regular file?
pub(crate) fn may_surely_read(
    cpu: &Processor,
    export: &Export,
    node: Node,
    attributes: &Attributes,
    credentials: &Credentials,
) -> bool {
    let squash = &export.config().squash;
    let granted = |caller: Caller| export.grants().find(node, &caller, cpu.now()) & Use::Read.rights() != 0;
    squash.user(credentials).is_some_and(|uid| is_clear(attributes, uid))
        || squash.caller(credentials).is_some_and(granted)
}

/// Checks permission for the content of a regular file.
///
/// # Errors
/// `NFS3ERR_ACCES`, and the host's errors.
pub(crate) async fn check(
    cpu: &Processor,
    export: &Export,
    node: Node,
    attributes: &Attributes,
    caller: &Caller,
    wanted: Use,
) -> Result<(), nfsstat3> {
    let enough = |rights: u32| rights & wanted.rights() != 0;
    if is_clear(attributes, caller.uid) || enough(export.grants().find(node, caller, cpu.now())) {
        return Ok(());
    }
    // The time of the question, not of the answer: a change in between must take effect soon.
    let asked = cpu.now();
    let call = TreeCall::Access { node, wanted: R_OK | W_OK | X_OK };
    // Boxed: large and rare.
    let rights = match Box::pin(export.tree().call(cpu, Some(caller), call)).await {
        Ok(TreeReply::Access(rights, _)) => rights,
        Ok(_) => return Err(nfsstat3::NFS3ERR_SERVERFAULT),
        Err(Errno(libc::EACCES)) => 0,
        Err(error) => return Err(status(error)),
    };
    if !enough(rights) {
        return Err(nfsstat3::NFS3ERR_ACCES);
    }
    export.grants().remember(node, caller, rights, asked);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execute_permission_lets_reads_through_and_nothing_else() {
        assert_ne!(Use::Read.rights() & X_OK, 0);
        assert_eq!(Use::Write.rights(), W_OK);
    }
}
