//! CREATE, MKDIR, SYMLINK, MKNOD.

use machine::tree::{Attributes, Creation, DeviceNumber, Kind, LINK_BYTES_MAX, Node, SetAttributes, TreeCall};
use nfs3_types::nfs3::{
    CREATE3args, CREATE3resok, MKDIR3args, MKNOD3args, Nfs3Option, SYMLINK3args, createhow3, devicedata3, mknoddata3,
    nfsstat3, wcc_data,
};

use super::attributes::set;
use super::object::{Object, new_name};
use super::{Answer, arguments, success};
use crate::attributes::to_set;
use crate::call::Call;

pub(super) async fn create(call: &Call) -> Answer {
    let args: CREATE3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.where_.dir)?;
    let name = new_name(args.where_.name)?;
    let (how, attributes) = match args.how {
        createhow3::UNCHECKED(attributes) => (Creation::Unchecked, to_set(attributes)?),
        createhow3::GUARDED(attributes) => (Creation::Guarded, to_set(attributes)?),
        createhow3::EXCLUSIVE(verifier) => (Creation::Exclusive { verifier: verifier.0 }, SetAttributes::default()),
    };
    // An existing file may have cached content: it is truncated as by SETATTR.
    let (size, attributes) = (attributes.size, SetAttributes { size: None, ..attributes });
    dir.check_writable()?;
    let (node, mut made, after) = dir.ask_node_in(TreeCall::Create { dir: dir.node, name, how, attributes }).await?;
    if size.is_some_and(|size| size != made.size) {
        made = set(&dir.sibling(node), SetAttributes { size, ..SetAttributes::default() }, None).await?;
    }
    answer(&dir, node, &made, after).await
}

pub(super) async fn mkdir(call: &Call) -> Answer {
    let args: MKDIR3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.where_.dir)?;
    let name = new_name(args.where_.name)?;
    let attributes = to_set(args.attributes)?;
    make(&dir, TreeCall::MakeDirectory { dir: dir.node, name, attributes }).await
}

pub(super) async fn symlink(call: &Call) -> Answer {
    let args: SYMLINK3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.where_.dir)?;
    let name = new_name(args.where_.name)?;
    let attributes = to_set(args.symlink.symlink_attributes)?;
    let target = target(args.symlink.symlink_data.0.into_owned())?;
    make(&dir, TreeCall::MakeSymbolicLink { dir: dir.node, name, target, attributes }).await
}

/// Checks the target of a symbolic link: the host could store no other.
fn target(target: Vec<u8>) -> Result<Vec<u8>, nfsstat3> {
    match target.len() {
        _ if target.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        0 => Err(nfsstat3::NFS3ERR_INVAL),
        1..=LINK_BYTES_MAX => Ok(target),
        _ => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
    }
}

pub(super) async fn mknod(call: &Call) -> Answer {
    let args: MKNOD3args<'_> = arguments(&call.arguments)?;
    let dir = Object::find(call, &args.where_.dir)?;
    let name = new_name(args.where_.name)?;
    let (kind, attributes) = match args.what {
        mknoddata3::NF3CHR(device) => (Kind::CharacterDevice(number(&device)), device.dev_attributes),
        mknoddata3::NF3BLK(device) => (Kind::BlockDevice(number(&device)), device.dev_attributes),
        mknoddata3::NF3SOCK(attributes) => (Kind::Socket, attributes),
        mknoddata3::NF3FIFO(attributes) => (Kind::Fifo, attributes),
        mknoddata3::default => return Err(nfsstat3::NFS3ERR_BADTYPE.into()),
    };
    let attributes = to_set(attributes)?;
    make(&dir, TreeCall::MakeSpecial { dir: dir.node, name, kind, attributes }).await
}

fn number(device: &devicedata3) -> DeviceNumber {
    DeviceNumber { major: device.spec.specdata1, minor: device.spec.specdata2 }
}

async fn make(dir: &Object<'_>, call: TreeCall) -> Answer {
    dir.check_writable()?;
    let (node, attributes, after) = dir.ask_node_in(call).await?;
    answer(dir, node, &attributes, after).await
}

/// Replies once the new node is durable. All four procedures have this reply.
async fn answer(dir: &Object<'_>, node: Node, attributes: &Attributes, dir_wcc: wcc_data) -> Answer {
    dir.make_durable(&[dir.node, node]).await?;
    success(&CREATE3resok {
        obj: dir.some_handle_of(node),
        obj_attributes: Nfs3Option::Some(dir.fattr(attributes)),
        dir_wcc,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_points_to_what_a_host_can_store() {
        assert_eq!(target(Vec::new()), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(target(b"a\0b".to_vec()), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(target(vec![b'a'; LINK_BYTES_MAX + 1]), Err(nfsstat3::NFS3ERR_NAMETOOLONG));
        assert_eq!(target(b"../a/b".to_vec()), Ok(b"../a/b".to_vec()));
        assert!(target(vec![b'a'; LINK_BYTES_MAX]).is_ok());
    }
}
