//! LOOKUP, READLINK, REMOVE, RMDIR, RENAME, LINK.

use machine::tree::{TreeCall, TreeReply};
use nfs3_types::nfs3::{
    LINK3args, LINK3resok, LOOKUP3args, LOOKUP3resfail, LOOKUP3resok, Nfs3Option, READLINK3args, READLINK3resok,
    REMOVE3args, RENAME3args, RENAME3resok, RMDIR3args, nfspath3, nfsstat3,
};
use nfs3_types::xdr_codec::Opaque;

use super::object::{NO_WCC, Object, name, new_name, old_name};
use super::{Answer, arguments, packed, success};
use crate::call::Call;

pub(super) async fn lookup(call: &Call) -> Answer {
    let args: LOOKUP3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.what.dir)?;
    let name = name(args.what.name)?;
    match dir.ask_node_in(TreeCall::Lookup { dir: dir.node, name }).await {
        Ok((node, attributes, dir_wcc)) => success(&LOOKUP3resok {
            object: dir.handle_of(node),
            obj_attributes: Nfs3Option::Some(dir.fattr(&attributes)),
            dir_attributes: dir_wcc.after,
        }),
        // Also for a missing name: clients cache that while the directory is unchanged.
        Err(status) => packed(status, &LOOKUP3resfail { dir_attributes: dir.post_op().await }),
    }
}

pub(super) async fn readlink(call: &Call) -> Answer {
    let args: READLINK3args = arguments(&call.arguments)?;
    let link = Object::find(call, &args.symlink)?;
    match link.ask(TreeCall::ReadLink { node: link.node }).await? {
        TreeReply::Bytes(target) => {
            success(&READLINK3resok { symlink_attributes: link.post_op().await, data: nfspath3(Opaque::owned(target)) })
        }
        _ => Err(nfsstat3::NFS3ERR_SERVERFAULT.into()),
    }
}

pub(super) async fn remove(call: &Call) -> Answer {
    let args: REMOVE3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.object.dir)?;
    let name = old_name(args.object.name)?;
    dir.check_writable()?;
    let (node, attributes, dir_wcc) = dir.ask_node_in(TreeCall::Remove { dir: dir.node, name }).await?;
    if attributes.links > 0 {
        dir.make_durable(&[dir.node, node]).await?;
    } else {
        dir.make_durable(&[dir.node]).await?;
    }
    success(&dir_wcc)
}

pub(super) async fn rmdir(call: &Call) -> Answer {
    let args: RMDIR3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.object.dir)?;
    let name = old_name(args.object.name)?;
    dir.check_writable()?;
    let (_, dir_wcc) = dir.ask_in(TreeCall::RemoveDirectory { dir: dir.node, name }).await?;
    dir.make_durable(&[dir.node]).await?;
    success(&dir_wcc)
}

pub(super) async fn rename(call: &Call) -> Answer {
    let args: RENAME3args<'_, '_> = arguments(&call.arguments)?;
    let from = Object::find(call, &args.from.dir)?;
    let to = Object::find(call, &args.to.dir)?;
    let from_name = old_name(args.from.name)?;
    let to_name = old_name(args.to.name)?;
    if from.export.id() != to.export.id() {
        return Err(nfsstat3::NFS3ERR_XDEV.into());
    }
    from.check_writable()?;
    let change = TreeCall::Rename { from_dir: from.node, from_name, to_dir: to.node, to_name };
    let (TreeReply::Renamed(moved, _), around) = from.ask_around(change, vec![from.node, to.node]).await? else {
        return Err(nfsstat3::NFS3ERR_SERVERFAULT.into());
    };
    if from.node == to.node {
        from.make_durable(&[from.node, moved]).await?;
    } else {
        from.make_move_durable(moved, to.node).await?;
    }
    let mut around = around.into_iter();
    let mut next = || around.next().unwrap_or(NO_WCC);
    success(&RENAME3resok { fromdir_wcc: next(), todir_wcc: next() })
}

pub(super) async fn link(call: &Call) -> Answer {
    let args: LINK3args<'_> = arguments(&call.arguments)?;
    let file = Object::find(call, &args.file)?;
    let dir = Object::find(call, &args.link.dir)?;
    let name = new_name(args.link.name)?;
    if file.export.id() != dir.export.id() {
        return Err(nfsstat3::NFS3ERR_XDEV.into());
    }
    dir.check_writable()?;
    let link = TreeCall::Link { node: file.node, dir: dir.node, name };
    let (TreeReply::Attributes(attributes), linkdir_wcc) = dir.ask_in(link).await? else {
        return Err(nfsstat3::NFS3ERR_SERVERFAULT.into());
    };
    dir.make_durable(&[dir.node, file.node]).await?;
    success(&LINK3resok { file_attributes: Nfs3Option::Some(file.fattr(&attributes)), linkdir_wcc })
}
