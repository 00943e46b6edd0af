//! READ, WRITE, COMMIT.

use std::io::Write;

use kernel::Frames;
use kernel::request::Context;
use machine::Errno;
use machine::tree::{SetAttributes, TreeCall};
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3resok, Nfs3Option, READ3args, WRITE3resok, nfsstat3, post_op_attr, stable_how, wcc_data,
    writeverf3,
};
use nfs3_types::xdr_codec::Pack;
use policy::unit::{ByteOffset, ByteRange, Stability};

use super::object::Object;
use super::permission::{self, Use};
use super::{Answer, Refusal, arguments, success};
use crate::call::{Call, Results};
use crate::program::{TRANSFER_BYTES_MAX, transfer_bytes_max};
use crate::shape::Payload;
use kernel::tree::Vnode;

/// Largest offset in a file, in bytes: the host's are signed.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Attempts at a READ during which others move the end of the file, before the client must try again later.
const ATTEMPTS_MAX: u32 = 16;

pub(super) async fn read(call: &Call) -> Answer {
    let args: READ3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.file)?;
    let tree = object.export.tree();
    let file = tree.file(&call.cpu, object.node).await?;
    let count = u64::from(args.count.min(transfer_bytes_max(call.cpu.kernel())));
    let offset = ByteOffset(args.offset);
    let context = Context::synchronous(call.job).of_export(object.export.number());
    for _ in 0..ATTEMPTS_MAX {
        let attributes = tree.refresh(&call.cpu, &file).await?;
        permission::check(&call.cpu, &object.export, object.node, &attributes, &object.caller, Use::Read).await?;
        let wanted = ByteRange { at: offset, len: available(attributes.size, offset, count) };
        let (range, frames) = content(call, &object, &file, wanted, context).await?;
        // `eof` must match the attributes in the same reply, since clients treat what follows the end as zeroes; other
        // clients may have moved the end meanwhile.
        let attributes = file.attributes();
        let len = available(attributes.size, offset, range.len);
        let eof = args.offset.saturating_add(len) >= attributes.size;
        if len == 0 && !eof && count > 0 {
            // The end was here and has moved. Neither bytes nor the end would be EIO to a Linux program.
            continue;
        }
        let head = read_head(Nfs3Option::Some(object.fattr(&attributes)), len as u32, eof)?;
        return Ok(match len {
            0 => Results::Bytes(head),
            _ => Results::Data { head, frames, skip: offset.in_block(), len: len as usize },
        });
    }
    Err(nfsstat3::NFS3ERR_JUKEBOX.into())
}

/// The number of bytes, of `count` from `offset`, that a file of this size has.
pub(crate) fn available(size: u64, offset: ByteOffset, count: u64) -> u64 {
    size.saturating_sub(offset.0).min(count)
}

async fn content(
    call: &Call,
    object: &Object<'_>,
    file: &Vnode,
    wanted: ByteRange,
    context: Context,
) -> Result<(ByteRange, Frames), Errno> {
    if wanted.len == 0 {
        return Ok((wanted, Frames::new()));
    }
    match file.try_read(&call.cpu, wanted) {
        Some(frames) => Ok((wanted, frames)),
        // Boxed: a WRITE would need as much memory.
        None => Box::pin(object.export.tree().read(&call.cpu, file, wanted, context)).await,
    }
}

/// A `READ3res` up to the length of its data.
fn read_head(attributes: post_op_attr, count: u32, eof: bool) -> Result<Vec<u8>, Refusal> {
    let mut head = Vec::with_capacity(104);
    let fits = pack_read_head(&mut head, attributes, count, eof);
    fits.map(|()| head).map_err(|_| nfsstat3::NFS3ERR_SERVERFAULT.into())
}

pub(crate) fn pack_read_head(
    to: &mut impl Write,
    attributes: post_op_attr,
    count: u32,
    eof: bool,
) -> nfs3_types::xdr_codec::Result<()> {
    nfsstat3::NFS3_OK.pack(to)?;
    attributes.pack(to)?;
    count.pack(to)?;
    eof.pack(to)?;
    count.pack(to)?;
    Ok(())
}

pub(super) async fn write(call: &mut Call) -> Answer {
    let Payload { write, frames } = call.payload.take().ok_or(Refusal::Garbage)?;
    let call = &*call;
    let object = Object::of(call, write.handle(&call.arguments))?;
    object.check_writable()?;
    let range = written(write.offset, write.count, write.data_len)?;
    let tree = object.export.tree();
    let file = tree.file(&call.cpu, object.node).await?;
    let mode = {
        let attributes = tree.refresh(&call.cpu, &file).await?;
        permission::check(&call.cpu, &object.export, object.node, &attributes, &object.caller, Use::Write).await?;
        attributes.mode
    };
    // Read before the write: if the data is lost meanwhile, the client sees at COMMIT that the verifier has changed.
    let verf = verifier(&object);
    let (stability, committed) = match write.stable {
        stable_how::UNSTABLE => (Stability::Unstable, stable_how::UNSTABLE),
        stable_how::DATA_SYNC | stable_how::FILE_SYNC => (Stability::Stable, stable_how::FILE_SYNC),
    };
    if range.len > 0 {
        drop_set_id(&object, mode).await?;
        let context = Context::synchronous(call.job).with_stability(stability).of_export(object.export.number());
        // Boxed: two small pieces of memory cost less than a large one.
        Box::pin(tree.write(&call.cpu, &file, range, holding(frames, range), context)).await?;
    }
    let file_wcc = after(&object, &file);
    success(&WRITE3resok { file_wcc, count: range.len as u32, committed, verf })
}

/// The range of a WRITE.
///
/// # Errors
/// `NFS3ERR_INVAL`: the data's length is not as stated. `NFS3ERR_FBIG`: beyond the largest file.
fn written(offset: ByteOffset, count: u32, len: u32) -> Result<ByteRange, nfsstat3> {
    if count != len || count > TRANSFER_BYTES_MAX {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    match offset.0.checked_add(u64::from(count)) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(ByteRange { at: offset, len: u64::from(count) }),
        _ => Err(nfsstat3::NFS3ERR_FBIG),
    }
}

/// The frames that the range needs.
fn holding(mut frames: Frames, range: ByteRange) -> Frames {
    frames.truncate(range.blocks().len() as usize);
    frames
}

/// A program must not retain its owner's permissions with content from another user (`S_ISUID`, and `S_ISGID` unless it
/// means mandatory locks). The host would ensure that if it saw the write as the caller's.
async fn drop_set_id(object: &Object<'_>, mode: u32) -> Result<(), Errno> {
    if object.caller.uid == 0 || !has_set_id(mode) {
        return Ok(());
    }
    // The host may have been told another mode since, of which these bits alone are to go.
    let attributes = SetAttributes { drops_set_id: true, ..SetAttributes::default() };
    let call = TreeCall::SetAttributes { node: object.node, attributes, guard: None };
    // Boxed: large and rare.
    Box::pin(object.ask_as_server(call)).await?;
    Ok(())
}

fn has_set_id(mode: u32) -> bool {
    mode & libc::S_ISUID != 0 || mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0
}

pub(super) async fn commit(call: &Call) -> Answer {
    let args: COMMIT3args = arguments(&call.arguments)?;
    let object = Object::find(call, &args.file)?;
    let tree = object.export.tree();
    let file = tree.file(&call.cpu, object.node).await?;
    // Of the whole file, not the requested range, since a flush covers all of it anyway. Permission was checked at each
    // write.
    let context = Context::synchronous(call.job).with_stability(Stability::Stable);
    let context = context.of_export(object.export.number());
    tree.commit(&call.cpu, &file, context).await?;
    // Read after the flush: it differs from that of the writes if anything was lost before.
    success(&COMMIT3resok { file_wcc: after(&object, &file), verf: verifier(&object) })
}

fn verifier(object: &Object<'_>) -> writeverf3 {
    writeverf3(object.export.tree().verifier().to_be_bytes())
}

fn after(object: &Object<'_>, file: &Vnode) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after: Nfs3Option::Some(object.fattr(&file.attributes())) }
}

#[cfg(test)]
mod tests {
    use machine::tree::{Attributes, InodeNo, Kind, Time};
    use nfs3_types::nfs3::{READ3res, fattr3};
    use nfs3_types::xdr_codec::Unpack;
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::fattr;
    use crate::handle::ExportId;
    use crate::rpc::append;
    use kernel::connection::Header;

    #[test]
    fn a_read_ends_with_the_file() {
        assert_eq!(available(100, ByteOffset(0), 1000), 100);
        assert_eq!(available(100, ByteOffset(90), 5), 5);
        assert_eq!(available(100, ByteOffset(90), 50), 10);
        assert_eq!(available(100, ByteOffset(100), 50), 0);
        assert_eq!(available(100, ByteOffset(u64::MAX), 50), 0);
        assert_eq!(available(0, ByteOffset(0), 0), 0);
    }

    #[test]
    fn a_write_is_as_long_as_it_says_and_fits_into_a_file() {
        assert_eq!(written(ByteOffset(5), 10, 10), Ok(ByteRange::new(5, 10)));
        assert_eq!(written(ByteOffset(5), 0, 0), Ok(ByteRange::new(5, 0)));
        assert_eq!(written(ByteOffset(5), 10, 9), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(written(ByteOffset(5), 9, 10), Err(nfsstat3::NFS3ERR_INVAL));
        let too_long = TRANSFER_BYTES_MAX + 1;
        assert_eq!(written(ByteOffset(5), too_long, too_long), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(written(ByteOffset(u64::MAX), 1, 1), Err(nfsstat3::NFS3ERR_FBIG));
        assert_eq!(written(ByteOffset(FILE_BYTES_MAX), 1, 1), Err(nfsstat3::NFS3ERR_FBIG));
        assert_eq!(written(ByteOffset(FILE_BYTES_MAX - 1), 1, 1), Ok(ByteRange::new(FILE_BYTES_MAX - 1, 1)));
    }

    #[test]
    fn a_written_program_loses_the_rights_of_its_owner() {
        assert!(has_set_id(0o4755));
        assert!(has_set_id(0o2755));
        assert!(has_set_id(0o6711));
        assert!(!has_set_id(0o2744));
        assert!(!has_set_id(0o1777));
    }

    fn attributes() -> fattr3 {
        let attributes = Attributes {
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 1,
            gid: 2,
            size: 3,
            used: 4096,
            file_system: 5,
            number: InodeNo(6),
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
        };
        fattr(&attributes, ExportId::of("/files"))
    }

    proptest! {
        /// The data follow the head as the opaque of a `READ3resok`.
        #[test]
        fn head_and_data_are_a_read_result(content in prop::collection::vec(any::<u8>(), 0..100), eof in any::<bool>()) {
            let mut bytes = read_head(Nfs3Option::Some(attributes()), content.len() as u32, eof).expect("a head");
            let mut header = Header::new();
            let len = content.len() as u32;
            append(&mut header, |to| pack_read_head(to, Nfs3Option::Some(attributes()), len, eof)).expect("it fits");
            prop_assert_eq!(&header[..], &bytes[..]);
            bytes.extend_from_slice(&content);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            let (result, len) = READ3res::unpack(&mut &bytes[..]).expect("decodes");
            prop_assert_eq!(len, bytes.len());
            let result = result.unwrap();
            prop_assert_eq!(&result.data[..], &content[..]);
            prop_assert_eq!(result.count as usize, content.len());
            prop_assert_eq!(result.eof, eof);
            prop_assert!(result.file_attributes.is_some());
        }
    }
}
