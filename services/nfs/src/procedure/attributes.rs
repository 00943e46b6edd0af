//! GETATTR, SETATTR, ACCESS.

use machine::Errno;
use machine::tree::{Attributes, Kind, SetAttributes, Time, TreeCall, TreeReply};
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, ACCESS3args,
    ACCESS3resok, GETATTR3args, GETATTR3resok, Nfs3Option, SETATTR3args, SETATTR3resok, nfsstat3, wcc_data,
};

use super::object::Object;
use super::permission::{R_OK, W_OK, X_OK};
use super::status::status;
use super::{Answer, arguments, success};
use crate::attributes::{from_wire, option, to_set};
use crate::call::Call;

pub(super) async fn getattr(call: &Call) -> Answer {
    let args: GETATTR3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.object)?;
    let attributes = object.attributes().await?;
    success(&GETATTR3resok { obj_attributes: object.fattr(&attributes) })
}

pub(super) async fn setattr(call: &Call) -> Answer {
    let args: SETATTR3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.object)?;
    object.check_writable()?;
    let attributes = to_set(args.new_attributes)?;
    let guard = option(args.guard).map(from_wire).transpose()?;
    let after = set(&object, attributes, guard).await?;
    if attributes.mode.is_some() || attributes.uid.is_some() || attributes.gid.is_some() {
        object.export.grants().forget(object.node);
    }
    object.make_durable(&[object.node]).await?;
    let after = Nfs3Option::Some(object.fattr(&after));
    success(&SETATTR3resok { obj_wcc: wcc_data { before: Nfs3Option::None, after } })
}

/// Sets attributes as the caller; returns them.
pub(super) async fn set(
    object: &Object<'_>,
    attributes: SetAttributes,
    guard: Option<Time>,
) -> Result<Attributes, nfsstat3> {
    let change = TreeCall::SetAttributes { node: object.node, attributes, guard };
    let mut reply = object.ask(change.clone()).await;
    if reply.as_ref().is_err_and(|&error| error == Errno(libc::EACCES)) && owner_may(object, &attributes).await? {
        reply = object.ask_as_server(change).await;
    }
    match reply {
        Ok(TreeReply::Attributes(after)) => Ok(after),
        Ok(TreeReply::GuardFailed) => Err(nfsstat3::NFS3ERR_NOT_SYNC),
        Ok(_) => Err(nfsstat3::NFS3ERR_SERVERFAULT),
        Err(error) => Err(status(error)),
    }
}

/// May the owner truncate the file although the host refused? A program with an open descriptor may, whatever the mode
/// is by now, and NFS cannot show that the file is open.
async fn owner_may(object: &Object<'_>, attributes: &SetAttributes) -> Result<bool, nfsstat3> {
    let content_only = SetAttributes { mode: None, uid: None, gid: None, ..*attributes } == *attributes;
    if attributes.size.is_none() || !content_only {
        return Ok(false);
    }
    let current = object.attributes().await?;
    Ok(current.kind == Kind::File && current.uid == object.caller.uid)
}

pub(super) async fn access(call: &Call) -> Answer {
    let args: ACCESS3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.object)?;
    // All rights, whichever are asked for: which these are depends on the object's kind, and each call costs two thread switches.
    let (granted, attributes) =
        match object.ask(TreeCall::Access { node: object.node, wanted: R_OK | W_OK | X_OK }).await {
            Ok(TreeReply::Access(rights, attributes)) => (rights, attributes),
            Ok(_) => return Err(nfsstat3::NFS3ERR_SERVERFAULT.into()),
            Err(Errno(libc::EACCES)) => (0, object.attributes().await?),
            Err(error) => return Err(error.into()),
        };
    let granted = if object.export.read_only() { granted & !W_OK } else { granted };
    let access = answers(questions(attributes.kind), granted) & args.access;
    success(&ACCESS3resok { obj_attributes: Nfs3Option::Some(object.fattr(&attributes)), access })
}

/// Permissions needed for each bit of ACCESS; bits without a meaning for this kind are never granted (RFC 1813, 3.3.4).
fn questions(kind: Kind) -> &'static [(u32, u32)] {
    match kind {
        Kind::Directory => &[
            (ACCESS3_READ, R_OK),
            (ACCESS3_LOOKUP, X_OK),
            (ACCESS3_MODIFY, W_OK | X_OK),
            (ACCESS3_EXTEND, W_OK | X_OK),
            (ACCESS3_DELETE, W_OK | X_OK),
        ],
        _ => &[(ACCESS3_READ, R_OK), (ACCESS3_MODIFY, W_OK), (ACCESS3_EXTEND, W_OK), (ACCESS3_EXECUTE, X_OK)],
    }
}

fn answers(questions: &[(u32, u32)], granted: u32) -> u32 {
    let yes = questions.iter().filter(|(_, rights)| granted & rights == *rights);
    yes.fold(0, |access, (bit, _)| access | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = R_OK | W_OK | X_OK;

    #[test]
    fn a_directory_has_no_execute_and_a_file_no_lookup_or_delete() {
        let everything = answers(questions(Kind::Directory), ALL);
        assert_eq!(everything, ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE);
        let everything = answers(questions(Kind::File), ALL);
        assert_eq!(everything, ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_EXECUTE);
    }

    #[test]
    fn entries_change_only_for_who_may_also_reach_them() {
        assert_eq!(answers(questions(Kind::Directory), W_OK), 0);
        assert_eq!(answers(questions(Kind::Directory), X_OK), ACCESS3_LOOKUP);
        assert_eq!(answers(questions(Kind::Directory), R_OK), ACCESS3_READ);
        assert_eq!(answers(questions(Kind::Directory), R_OK | X_OK), ACCESS3_READ | ACCESS3_LOOKUP);
    }

    #[test]
    fn each_right_to_a_file_answers_its_own_questions() {
        assert_eq!(answers(questions(Kind::File), 0), 0);
        assert_eq!(answers(questions(Kind::File), R_OK), ACCESS3_READ);
        assert_eq!(answers(questions(Kind::File), W_OK), ACCESS3_MODIFY | ACCESS3_EXTEND);
        assert_eq!(answers(questions(Kind::File), X_OK), ACCESS3_EXECUTE);
        assert_eq!(answers(questions(Kind::Fifo), W_OK), ACCESS3_MODIFY | ACCESS3_EXTEND);
    }
}
