//! The procedures of NFS (RFC 1813, chapter 3) and MOUNT (appendix I).

mod attributes;
mod content;
mod create;
mod decode;
mod directory;
mod file_system;
mod mount;
mod names;
mod object;
mod permission;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3};
use nfs3_types::rpc::auth_stat;
use nfs3_types::xdr_codec::{Pack, Unpack};

use crate::call::{Call, Results};
use crate::program::Program;
use crate::replay::{Known, RequestKey};
use machine::Errno;

pub(crate) use content::{available, pack_read_head};
pub(crate) use decode::decode_arguments;
pub(crate) use permission::may_surely_read;
use status::status;

/// Why a call has no results.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Malformed arguments.
    Garbage,
    /// The caller must provide credentials.
    TooWeak,
    /// A handle that was never issued or whose export is gone, or a client that may not use it.
    NotAdmitted(nfsstat3),
    Status(nfsstat3),
}

impl From<nfsstat3> for Refusal {
    fn from(status: nfsstat3) -> Self {
        Refusal::Status(status)
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Refusal::Status(status(error))
    }
}

type Answer = Result<Results, Refusal>;

/// Executes a call.
pub(crate) async fn perform(call: &mut Call) -> Results {
    match call.program {
        Program::Mount => Box::pin(mount::perform(call)).await,
        Program::Nfs => match NFS_PROGRAM::try_from(call.procedure) {
            Ok(procedure) if must_not_repeat(procedure) => perform_once(call, procedure).await,
            Ok(procedure) => execute(call, procedure).await.unwrap_or_else(|refusal| refused(procedure, refusal)),
            Err(_) => Results::ProcedureUnavailable,
        },
    }
}

/// Is the procedure not idempotent? So are all that change something, whose results have a `wcc_data`, but COMMIT.
fn must_not_repeat(procedure: NFS_PROGRAM) -> bool {
    procedure != NFS_PROGRAM::NFSPROC3_COMMIT && absent_of(procedure) >= WCC_DATA
}

/// Is the reply sent only when something is durable?
pub(crate) fn is_durable(program: Program, procedure: u32) -> bool {
    let procedure = NFS_PROGRAM::try_from(procedure).ok().filter(|_| program == Program::Nfs);
    procedure.is_some_and(|procedure| procedure == NFS_PROGRAM::NFSPROC3_COMMIT || must_not_repeat(procedure))
}

/// Executes a call that may be retransmitted. A late copy of a WRITE, from an abandoned connection, must not overwrite
/// newer data with old.
async fn perform_once(call: &mut Call, procedure: NFS_PROGRAM) -> Results {
    let (nfs, cpu) = (Arc::clone(&call.nfs), call.cpu.clone());
    let replies = if procedure == NFS_PROGRAM::NFSPROC3_WRITE { nfs.writes() } else { nfs.replay() };
    let request = match replies.begin(key_of(call), call.connection, || cpu.now()).await {
        Known::New(request) => request,
        Known::Answered => return Results::Silence,
        Known::Done(reply) => return Results::Bytes(reply),
    };
    let results = match execute(call, procedure).await {
        Ok(results) => results,
        // Nothing was done, and refusing it again does no harm: the memory is for those who are admitted. Not refused before a
        // reply is looked for: the call may have been done before the export was changed or removed.
        Err(refusal @ Refusal::NotAdmitted(_)) => return refused(procedure, refusal),
        Err(refusal) => refused(procedure, refusal),
    };
    if let Results::Bytes(reply) = &results {
        request.finish(reply, cpu.now());
    }
    results
}

fn key_of(call: &Call) -> RequestKey {
    let (called, payload) = ((call.xid, call.procedure), call.payload.as_ref());
    RequestKey::new(call.client.host(), &call.credentials, called, &call.arguments, payload)
}

async fn execute(call: &mut Call, procedure: NFS_PROGRAM) -> Answer {
    match procedure {
        NFS_PROGRAM::NFSPROC3_READ => content::read(call).await,
        NFS_PROGRAM::NFSPROC3_WRITE => content::write(call).await,
        // Boxed: a READ or WRITE would need as much memory as the largest of them.
        procedure => Box::pin(execute_other(call, procedure)).await,
    }
}

fn refused(procedure: NFS_PROGRAM, refusal: Refusal) -> Results {
    match refusal {
        Refusal::Garbage => Results::GarbageArguments,
        Refusal::TooWeak => Results::AuthError(auth_stat::AUTH_TOOWEAK),
        Refusal::NotAdmitted(status) | Refusal::Status(status) => Results::Bytes(failure(procedure, status)),
    }
}

async fn execute_other(call: &mut Call, procedure: NFS_PROGRAM) -> Answer {
    match procedure {
        NFS_PROGRAM::NFSPROC3_NULL => Ok(Results::Bytes(Vec::new())),
        NFS_PROGRAM::NFSPROC3_GETATTR => attributes::getattr(call).await,
        NFS_PROGRAM::NFSPROC3_SETATTR => attributes::setattr(call).await,
        NFS_PROGRAM::NFSPROC3_LOOKUP => names::lookup(call).await,
        NFS_PROGRAM::NFSPROC3_ACCESS => attributes::access(call).await,
        NFS_PROGRAM::NFSPROC3_READLINK => names::readlink(call).await,
        NFS_PROGRAM::NFSPROC3_READ => content::read(call).await,
        NFS_PROGRAM::NFSPROC3_WRITE => content::write(call).await,
        NFS_PROGRAM::NFSPROC3_CREATE => create::create(call).await,
        NFS_PROGRAM::NFSPROC3_MKDIR => create::mkdir(call).await,
        NFS_PROGRAM::NFSPROC3_SYMLINK => create::symlink(call).await,
        NFS_PROGRAM::NFSPROC3_MKNOD => create::mknod(call).await,
        NFS_PROGRAM::NFSPROC3_REMOVE => names::remove(call).await,
        NFS_PROGRAM::NFSPROC3_RMDIR => names::rmdir(call).await,
        NFS_PROGRAM::NFSPROC3_RENAME => names::rename(call).await,
        NFS_PROGRAM::NFSPROC3_LINK => names::link(call).await,
        NFS_PROGRAM::NFSPROC3_READDIR => directory::readdir(call).await,
        NFS_PROGRAM::NFSPROC3_READDIRPLUS => directory::readdirplus(call).await,
        NFS_PROGRAM::NFSPROC3_FSSTAT => file_system::fsstat(call).await,
        NFS_PROGRAM::NFSPROC3_FSINFO => file_system::fsinfo(call).await,
        NFS_PROGRAM::NFSPROC3_PATHCONF => file_system::pathconf(call).await,
        NFS_PROGRAM::NFSPROC3_COMMIT => content::commit(call).await,
    }
}

/// Decodes a call's arguments. Ignores what follows them.
pub(crate) fn arguments<T: Unpack>(mut bytes: &[u8]) -> Result<T, Refusal> {
    T::unpack(&mut bytes).map(|(arguments, _)| arguments).map_err(|_| Refusal::Garbage)
}

fn success(results: &impl Pack) -> Answer {
    packed(nfsstat3::NFS3_OK, results)
}

/// A status and the results that follow it.
fn packed(status: nfsstat3, results: &impl Pack) -> Answer {
    let mut bytes = Vec::with_capacity(status.packed_size() + results.packed_size());
    let fits = status.pack(&mut bytes).and_then(|_| results.pack(&mut bytes));
    fits.map(|_| Results::Bytes(bytes)).map_err(|_| nfsstat3::NFS3ERR_SERVERFAULT.into())
}

/// The results of a failed call, without attributes: `FALSE` for each optional one.
fn failure(procedure: NFS_PROGRAM, status: nfsstat3) -> Vec<u8> {
    let mut bytes = (status as u32).to_be_bytes().to_vec();
    bytes.resize(4 + 4 * absent_of(procedure), 0);
    bytes
}

/// Optional attributes in a `post_op_attr`, and in a `wcc_data`, which the results of changes have.
const POST_OP_ATTR: usize = 1;
const WCC_DATA: usize = 2;

/// Optional attributes in a procedure's results on failure.
fn absent_of(procedure: NFS_PROGRAM) -> usize {
    match procedure {
        NFS_PROGRAM::NFSPROC3_NULL | NFS_PROGRAM::NFSPROC3_GETATTR => 0,
        NFS_PROGRAM::NFSPROC3_LOOKUP
        | NFS_PROGRAM::NFSPROC3_ACCESS
        | NFS_PROGRAM::NFSPROC3_READLINK
        | NFS_PROGRAM::NFSPROC3_READ
        | NFS_PROGRAM::NFSPROC3_READDIR
        | NFS_PROGRAM::NFSPROC3_READDIRPLUS
        | NFS_PROGRAM::NFSPROC3_FSSTAT
        | NFS_PROGRAM::NFSPROC3_FSINFO
        | NFS_PROGRAM::NFSPROC3_PATHCONF => POST_OP_ATTR,
        NFS_PROGRAM::NFSPROC3_SETATTR
        | NFS_PROGRAM::NFSPROC3_WRITE
        | NFS_PROGRAM::NFSPROC3_CREATE
        | NFS_PROGRAM::NFSPROC3_MKDIR
        | NFS_PROGRAM::NFSPROC3_SYMLINK
        | NFS_PROGRAM::NFSPROC3_MKNOD
        | NFS_PROGRAM::NFSPROC3_REMOVE
        | NFS_PROGRAM::NFSPROC3_RMDIR
        | NFS_PROGRAM::NFSPROC3_COMMIT => WCC_DATA,
        NFS_PROGRAM::NFSPROC3_LINK => POST_OP_ATTR + WCC_DATA,
        NFS_PROGRAM::NFSPROC3_RENAME => 2 * WCC_DATA,
    }
}

#[cfg(test)]
mod failures {
    use nfs3_types::nfs3::*;

    use super::*;

    /// A client decodes the failure of this procedure completely.
    fn is_understood<T, E>(procedure: NFS_PROGRAM)
    where
        Nfs3Result<T, E>: Unpack,
    {
        let bytes = failure(procedure, nfsstat3::NFS3ERR_STALE);
        let (result, len) = Nfs3Result::<T, E>::unpack(&mut &bytes[..]).expect("decodes");
        assert!(matches!(result, Nfs3Result::Err((nfsstat3::NFS3ERR_STALE, _))), "{procedure}");
        assert_eq!(len, bytes.len(), "{procedure}");
    }

    #[test]
    fn every_failure_has_the_shape_of_its_procedure() {
        is_understood::<GETATTR3resok, nfs3_types::xdr_codec::Void>(NFS_PROGRAM::NFSPROC3_GETATTR);
        is_understood::<SETATTR3resok, SETATTR3resfail>(NFS_PROGRAM::NFSPROC3_SETATTR);
        is_understood::<LOOKUP3resok, LOOKUP3resfail>(NFS_PROGRAM::NFSPROC3_LOOKUP);
        is_understood::<ACCESS3resok, ACCESS3resfail>(NFS_PROGRAM::NFSPROC3_ACCESS);
        is_understood::<READLINK3resok<'_>, READLINK3resfail>(NFS_PROGRAM::NFSPROC3_READLINK);
        is_understood::<READ3resok<'_>, READ3resfail>(NFS_PROGRAM::NFSPROC3_READ);
        is_understood::<WRITE3resok, WRITE3resfail>(NFS_PROGRAM::NFSPROC3_WRITE);
        is_understood::<CREATE3resok, CREATE3resfail>(NFS_PROGRAM::NFSPROC3_CREATE);
        is_understood::<MKDIR3resok, MKDIR3resfail>(NFS_PROGRAM::NFSPROC3_MKDIR);
        is_understood::<SYMLINK3resok, SYMLINK3resfail>(NFS_PROGRAM::NFSPROC3_SYMLINK);
        is_understood::<MKNOD3resok, MKNOD3resfail>(NFS_PROGRAM::NFSPROC3_MKNOD);
        is_understood::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE);
        is_understood::<RMDIR3resok, RMDIR3resfail>(NFS_PROGRAM::NFSPROC3_RMDIR);
        is_understood::<RENAME3resok, RENAME3resfail>(NFS_PROGRAM::NFSPROC3_RENAME);
        is_understood::<LINK3resok, LINK3resfail>(NFS_PROGRAM::NFSPROC3_LINK);
        is_understood::<READDIR3resok<'_>, READDIR3resfail>(NFS_PROGRAM::NFSPROC3_READDIR);
        is_understood::<READDIRPLUS3resok<'_>, READDIRPLUS3resfail>(NFS_PROGRAM::NFSPROC3_READDIRPLUS);
        is_understood::<FSSTAT3resok, FSSTAT3resfail>(NFS_PROGRAM::NFSPROC3_FSSTAT);
        is_understood::<FSINFO3resok, FSINFO3resfail>(NFS_PROGRAM::NFSPROC3_FSINFO);
        is_understood::<PATHCONF3resok, PATHCONF3resfail>(NFS_PROGRAM::NFSPROC3_PATHCONF);
        is_understood::<COMMIT3resok, COMMIT3resfail>(NFS_PROGRAM::NFSPROC3_COMMIT);
    }
}
