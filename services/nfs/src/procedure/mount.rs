//! The MOUNT protocol (RFC 1813, appendix I): handles of directories by path.

use std::sync::Arc;

use machine::tree::{Caller, Kind, NAME_BYTES_MAX, Node, TreeCall, TreeReply};
use nfs3_types::mount::{
    MNTPATHLEN, MOUNT_PROGRAM, dirpath, export_node, exports, fhandle3, mountres3, mountres3_ok, mountstat3, name,
};
use nfs3_types::rpc::auth_flavor;
use nfs3_types::xdr_codec::{List, Opaque, Pack};

use super::status::{mount_status, status};
use super::{Refusal, arguments};
use crate::call::{Call, Results};
use crate::client::ClientAddress;
use crate::export::{Export, NotAdmitted, Squashed, components};

/// Executes a call to MOUNT.
pub(crate) async fn perform(call: &Call) -> Results {
    let Ok(procedure) = MOUNT_PROGRAM::try_from(call.procedure) else { return Results::ProcedureUnavailable };
    let answer = match procedure {
        MOUNT_PROGRAM::MOUNTPROC3_NULL => Ok(Results::Bytes(Vec::new())),
        MOUNT_PROGRAM::MOUNTPROC3_MNT => mnt(call).await,
        MOUNT_PROGRAM::MOUNTPROC3_DUMP => Ok(packed(&call.nfs.mounts().dump())),
        MOUNT_PROGRAM::MOUNTPROC3_UMNT => umnt(call),
        MOUNT_PROGRAM::MOUNTPROC3_UMNTALL => {
            call.nfs.mounts().remove_all(&client_name(call));
            Ok(Results::Bytes(Vec::new()))
        }
        MOUNT_PROGRAM::MOUNTPROC3_EXPORT => Ok(packed(&export_list(&call.nfs.exports()))),
    };
    answer.unwrap_or(Results::GarbageArguments)
}

fn packed(results: &impl Pack) -> Results {
    let mut bytes = Vec::with_capacity(results.packed_size());
    match results.pack(&mut bytes) {
        Ok(_) => Results::Bytes(bytes),
        Err(_) => Results::SystemError,
    }
}

async fn mnt(call: &Call) -> Result<Results, Refusal> {
    let path: dirpath<'_> = arguments(&call.arguments)?;
    let mounted = mount(call, &path.0).await;
    if mounted.is_ok() {
        call.nfs.mounts().add(client_name(call), &path.0);
    }
    Ok(packed(&match mounted {
        Ok(mounted) => mountres3::Ok(mounted),
        Err(status) => mountres3::Err(status),
    }))
}

async fn mount(call: &Call, path: &[u8]) -> Result<mountres3_ok<'static>, mountstat3> {
    if path.len() > MNTPATHLEN {
        return Err(mountstat3::MNT3ERR_NAMETOOLONG);
    }
    let exports = call.nfs.exports();
    let (export, below) = find(&exports, path).ok_or(mountstat3::MNT3ERR_NOENT)?;
    export.admit(call.client).map_err(|why| {
        if why == NotAdmitted::Port {
            call.nfs.note_unprivileged(call.client, export);
        }
        mountstat3::MNT3ERR_ACCES
    })?;
    let squash = &export.config().squash;
    // A mount without credentials has the anonymous user's permissions.
    let caller = squash.caller(&call.credentials).unwrap_or_else(|| squash.anonymous());
    let node = descend(call, export, &caller, below).await?;
    let mut auth_flavors = vec![auth_flavor::AUTH_UNIX as u32];
    if squash.squashed == Squashed::All {
        auth_flavors.push(auth_flavor::AUTH_NULL as u32);
    }
    let fhandle = fhandle3(Opaque::owned(export.handle(call.nfs.key(), node)));
    Ok(mountres3_ok { fhandle, auth_flavors })
}

/// The export that contains `path`, and the names below it. Of nested exports, the innermost.
fn find<'e, 'p>(exports: &'e [Arc<Export>], path: &'p [u8]) -> Option<(&'e Arc<Export>, Vec<&'p [u8]>)> {
    let names: Vec<&[u8]> = components(path).collect();
    let holding = exports.iter().filter_map(|export| Some((below(export.path(), &names)?, export)));
    // Of those with the same name the first, as everywhere.
    let (depth, export) = holding.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
    Some((export, names[depth..].to_vec()))
}

/// The number of `names` that lead to the export, if they do.
fn below<'a>(export: impl Iterator<Item = &'a [u8]>, names: &[&[u8]]) -> Option<usize> {
    let mut depth = 0;
    for component in export {
        if names.get(depth) != Some(&component) {
            return None;
        }
        depth += 1;
    }
    Some(depth)
}

/// Walks down from the root of an export with the caller's permissions. Does not follow symbolic links.
async fn descend(call: &Call, export: &Export, caller: &Caller, names: Vec<&[u8]>) -> Result<Node, mountstat3> {
    let (mut node, mut kind) = ask(call, export, None, TreeCall::Root).await?;
    for component in names {
        if component.len() > NAME_BYTES_MAX {
            return Err(mountstat3::MNT3ERR_NAMETOOLONG);
        }
        if component == b".." || component.contains(&0) {
            return Err(mountstat3::MNT3ERR_INVAL);
        }
        if kind != Kind::Directory {
            return Err(mountstat3::MNT3ERR_NOTDIR);
        }
        let lookup = TreeCall::Lookup { dir: node, name: component.to_vec() };
        (node, kind) = ask(call, export, Some(caller), lookup).await?;
    }
    if kind == Kind::Directory { Ok(node) } else { Err(mountstat3::MNT3ERR_NOTDIR) }
}

async fn ask(
    call: &Call,
    export: &Export,
    caller: Option<&Caller>,
    question: TreeCall,
) -> Result<(Node, Kind), mountstat3> {
    match export.tree().call(&call.cpu, caller, question).await {
        Ok(TreeReply::Node(node, attributes)) => Ok((node, attributes.kind)),
        Ok(_) => Err(mountstat3::MNT3ERR_SERVERFAULT),
        Err(error) => Err(mount_status(status(error))),
    }
}

fn umnt(call: &Call) -> Result<Results, Refusal> {
    let path: dirpath<'_> = arguments(&call.arguments)?;
    call.nfs.mounts().remove(client_name(call), &path.0);
    Ok(Results::Bytes(Vec::new()))
}

fn export_list(served: &[Arc<Export>]) -> exports<'static, 'static> {
    let nodes = served.iter().map(|export| export_node {
        ex_dir: dirpath(Opaque::owned(export.config().name.clone().into_bytes())),
        ex_groups: List(
            export.config().clients.iter().map(|net| name(Opaque::owned(net.to_string().into_bytes()))).collect(),
        ),
    });
    List(nodes.collect())
}

/// The client, as listed by DUMP.
fn client_name(call: &Call) -> String {
    match call.client {
        ClientAddress::Ip(address) => address.ip().to_canonical().to_string(),
        ClientAddress::Unix(_) => "localhost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(export: &str, path: &str) -> Option<usize> {
        let names: Vec<&[u8]> = components(path.as_bytes()).collect();
        below(components(export.as_bytes()), &names)
    }

    #[test]
    fn a_path_leads_to_an_export_by_whole_names() {
        assert_eq!(depth("/files", "/files"), Some(1));
        assert_eq!(depth("/files", "//files/a/b/"), Some(1));
        assert_eq!(depth("/files/a", "/files/a/b"), Some(2));
        assert_eq!(depth("/", "/anything"), Some(0));
        assert_eq!(depth("/files", "/filesystem"), None);
        assert_eq!(depth("/files/a", "/files"), None);
        assert_eq!(depth("/files", "/"), None);
    }
}
