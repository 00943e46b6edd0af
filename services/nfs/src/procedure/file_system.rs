//! FSSTAT, FSINFO, PATHCONF.

use kernel::volume::GROWING_BYTES_MAX;
use machine::tree::{Limits, TreeCall, TreeReply};
use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3args, FSINFO3resok, FSSTAT3args, FSSTAT3resok,
    Nfs3Option, PATHCONF3args, PATHCONF3resok, nfsstat3, nfstime3,
};
use policy::unit::BLOCK_BYTES;

use super::directory::REPLY_BYTES_MAX;
use super::object::Object;
use super::{Answer, arguments, success};
use crate::call::Call;
use crate::program::transfer_bytes_max;

const NS_A_SECOND: u32 = 1_000_000_000;

pub(super) async fn fsstat(call: &Call) -> Answer {
    let args: FSSTAT3args = arguments(&call.arguments)?;
    let root = Object::find(call, &args.fsroot)?;
    let attributes = root.attributes().await?;
    let TreeReply::Space(space) = root.ask_as_server(TreeCall::Space).await? else {
        return Err(nfsstat3::NFS3ERR_SERVERFAULT.into());
    };
    success(&FSSTAT3resok {
        obj_attributes: Nfs3Option::Some(root.fattr(&attributes)),
        tbytes: space.bytes,
        fbytes: space.bytes_free,
        abytes: space.bytes_available,
        tfiles: space.nodes,
        ffiles: space.nodes_free,
        afiles: space.nodes_free,
        // It may change at any time.
        invarsec: 0,
    })
}

pub(super) async fn fsinfo(call: &Call) -> Answer {
    let args: FSINFO3args = arguments(&call.arguments)?;
    let root = Object::find(call, &args.fsroot)?;
    let attributes = root.attributes().await?;
    let limits = limits(&root).await?;
    let transfer = transfer_bytes_max(call.cpu.kernel());
    success(&FSINFO3resok {
        obj_attributes: Nfs3Option::Some(root.fattr(&attributes)),
        rtmax: transfer,
        rtpref: transfer,
        rtmult: BLOCK_BYTES as u32,
        wtmax: transfer,
        wtpref: transfer,
        wtmult: BLOCK_BYTES as u32,
        dtpref: REPLY_BYTES_MAX,
        maxfilesize: limits.file_bytes_max.min(GROWING_BYTES_MAX),
        time_delta: nfstime3 {
            seconds: limits.time_granularity_ns / NS_A_SECOND,
            nseconds: limits.time_granularity_ns % NS_A_SECOND,
        },
        properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
    })
}

pub(super) async fn pathconf(call: &Call) -> Answer {
    let args: PATHCONF3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.object)?;
    let attributes = object.attributes().await?;
    let limits = limits(&object).await?;
    success(&PATHCONF3resok {
        obj_attributes: Nfs3Option::Some(object.fattr(&attributes)),
        linkmax: limits.links_max,
        name_max: limits.name_bytes_max,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: limits.case_insensitive,
        case_preserving: true,
    })
}

async fn limits(object: &Object<'_>) -> Result<Limits, super::Refusal> {
    match object.ask_as_server(TreeCall::Limits { node: object.node }).await? {
        TreeReply::Limits(limits) => Ok(limits),
        _ => Err(nfsstat3::NFS3ERR_SERVERFAULT.into()),
    }
}
