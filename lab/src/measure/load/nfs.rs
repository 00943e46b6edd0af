//! Calls of NFSv3 (RFC 1813), and checks of their replies.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use nfs3_types::nfs3::{
    COMMIT3res, CREATE3args, CREATE3res, NFS_PROGRAM, Nfs3Option, REMOVE3args, REMOVE3res, WRITE3res, createhow3,
    diropargs3, nfs_fh3, nfsstat3, post_op_attr, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::{Pack, Unpack};

use super::IN_FLIGHT_MAX;
use super::plan::{Flight, Step};
use super::rpc::{Caller, Records, reply};
use super::session::{Endpoint, done};

/// The calls of one connection, and its files.
pub(super) struct Calls {
    caller: Caller,
    sequence: u32,
    /// Identifier of the call in each slot.
    xids: Vec<u32>,
    records: Records,
    verifier: Option<writeverf3>,
    /// Number of the connection.
    number: usize,
    root: nfs_fh3,
    files: Vec<nfs_fh3>,
}

impl Calls {
    pub(super) fn new(endpoint: &Endpoint, number: usize, root: &nfs_fh3, files: Vec<nfs_fh3>) -> Self {
        Calls {
            caller: Caller::new(endpoint.uid, endpoint.gid),
            sequence: first_sequence(),
            xids: vec![0; IN_FLIGHT_MAX as usize],
            records: Records::default(),
            verifier: None,
            number,
            root: root.clone(),
            files,
        }
    }

    /// Adds the call of a step, without the `bytes` bytes that it writes.
    pub(super) fn encode(&mut self, out: &mut Vec<u8>, slot: usize, step: Step, bytes: u32) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let xid = self.sequence.wrapping_mul(IN_FLIGHT_MAX) | slot as u32;
        self.xids[slot] = xid;
        let Calls { caller, files, number, root, .. } = self;
        let of_slot =
            || diropargs3 { dir: root.clone(), name: format!("load-{number}-slot-{slot}").into_bytes().into() };
        match step {
            // Packed field by field (RFC 1813, 3.3.6, 3.3.7 and 3.3.21): the structures of the crate own their handles.
            Step::Read { file, offset } => caller.call(out, xid, NFS_PROGRAM::NFSPROC3_READ, 0, |out| {
                Ok(files[file].pack(out)? + offset.pack(out)? + bytes.pack(out)?)
            }),
            Step::Write { file, offset, stable } => {
                caller.call(out, xid, NFS_PROGRAM::NFSPROC3_WRITE, bytes as usize, |out| {
                    let head = files[file].pack(out)? + offset.pack(out)? + bytes.pack(out)?;
                    Ok(head + stable.pack(out)? + bytes.pack(out)?)
                })
            }
            Step::Commit { file } => caller.call(out, xid, NFS_PROGRAM::NFSPROC3_COMMIT, 0, |out| {
                Ok(files[file].pack(out)? + 0_u64.pack(out)? + 0_u32.pack(out)?)
            }),
            Step::Attributes { file } => {
                caller.call(out, xid, NFS_PROGRAM::NFSPROC3_GETATTR, 0, |out| files[file].pack(out))
            }
            Step::Create { .. } => {
                let how = createhow3::UNCHECKED(sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() });
                let arguments = CREATE3args { where_: of_slot(), how };
                caller.call(out, xid, NFS_PROGRAM::NFSPROC3_CREATE, 0, |out| arguments.pack(out))
            }
            Step::Remove { .. } => {
                let arguments = REMOVE3args { object: of_slot() };
                caller.call(out, xid, NFS_PROGRAM::NFSPROC3_REMOVE, 0, |out| arguments.pack(out))
            }
            Step::Flush => bail!("what is written over NFS is stable, or committed"),
        }
    }

    /// Consumes `input` until a reply is complete, or to its end. Returns the reply's slot.
    pub(super) fn next(&mut self, input: &mut &[u8], flights: &[Option<Flight>], bytes: u32) -> Result<Option<usize>> {
        let Some((head, length)) = self.records.next(input)? else { return Ok(None) };
        let (xid, results) = reply(head)?;
        let slot = (xid % IN_FLIGHT_MAX) as usize;
        let flight = flights.get(slot).and_then(Option::as_ref).filter(|_| self.xids[slot] == xid);
        let flight = flight.context("a reply to no call")?;
        examine(flight.step, results, length - head.len(), bytes, &mut self.verifier)
            .with_context(|| format!("{:?}", flight.step))?;
        Ok(Some(slot))
    }
}

/// Does the reply answer the step?
fn examine(
    step: Step,
    mut results: &[u8],
    behind_head: usize,
    bytes: u32,
    verifier: &mut Option<writeverf3>,
) -> Result<()> {
    let mut same_verifier = |new: writeverf3| {
        ensure!(*verifier.get_or_insert(new) == new, "the write verifier changed: the server may have lost data");
        Ok(())
    };
    match step {
        Step::Read { .. } => {
            // As READ3res (RFC 1813, 3.3.6), without the data.
            let status = nfsstat3::unpack(&mut results)?.0;
            ensure!(status == nfsstat3::NFS3_OK, "{status}");
            post_op_attr::unpack(&mut results)?;
            let (count, _eof) = (u32::unpack(&mut results)?.0, bool::unpack(&mut results)?.0);
            let (length, present) = (u32::unpack(&mut results)?.0, results.len() + behind_head);
            ensure!(count == bytes && length == bytes, "{count} bytes in {length} instead of {bytes}");
            ensure!(present == bytes as usize, "{present} bytes of data instead of {bytes}");
        }
        Step::Write { stable, .. } => {
            let ok = done(WRITE3res::unpack(&mut results)?.0)?;
            ensure!(ok.count == bytes, "{} bytes instead of {bytes}", ok.count);
            ensure!(stable == stable_how::UNSTABLE || ok.committed == stable_how::FILE_SYNC, "{}", ok.committed);
            same_verifier(ok.verf)?;
        }
        Step::Commit { .. } => same_verifier(done(COMMIT3res::unpack(&mut results)?.0)?.verf)?,
        Step::Attributes { .. } | Step::Flush => {
            let status = nfsstat3::unpack(&mut results)?.0;
            ensure!(status == nfsstat3::NFS3_OK, "{status}");
        }
        Step::Create { .. } => _ = done(CREATE3res::unpack(&mut results)?.0)?,
        Step::Remove { .. } => _ = done(REMOVE3res::unpack(&mut results)?.0)?,
    }
    Ok(())
}

/// Differs from that of the last run: a server that is still running may take a repeated identifier for a
/// retransmission and answer without executing the call.
fn first_sequence() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u32)
}

#[cfg(test)]
mod tests {
    use nfs3_types::nfs3::{READ3resok, WRITE3resok, wcc_data};
    use nfs3_types::xdr_codec::Opaque;

    use super::*;

    const BYTES: u32 = 8192;

    fn packed(what: &impl Pack) -> Vec<u8> {
        let mut out = Vec::new();
        what.pack(&mut out).unwrap();
        out
    }

    fn written(count: u32, committed: stable_how, verifier: u8) -> Vec<u8> {
        let verf = writeverf3([verifier; 8]);
        packed(&WRITE3res::Ok(WRITE3resok { file_wcc: wcc_data::default(), count, committed, verf }))
    }

    #[test]
    fn a_write_counts_only_if_all_of_it_is_as_durable_as_was_asked() {
        let of = |stable, results: &[u8]| {
            examine(Step::Write { file: 0, offset: 0, stable }, results, 0, BYTES, &mut None).is_ok()
        };
        use stable_how::{DATA_SYNC, FILE_SYNC, UNSTABLE};
        assert!(of(FILE_SYNC, &written(BYTES, FILE_SYNC, 1)));
        assert!(of(UNSTABLE, &written(BYTES, UNSTABLE, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, UNSTABLE, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, DATA_SYNC, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES - 1, FILE_SYNC, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, FILE_SYNC, 1)[..20]));
    }

    #[test]
    fn a_verifier_that_changes_ends_the_load() {
        let mut verifier = None;
        let mut of = |verf| {
            let step = Step::Write { file: 0, offset: 0, stable: stable_how::UNSTABLE };
            examine(step, &written(BYTES, stable_how::UNSTABLE, verf), 0, BYTES, &mut verifier).is_ok()
        };
        assert_eq!([of(1), of(1), of(2)], [true, true, false]);
    }

    #[test]
    fn a_read_counts_only_if_all_its_data_came() {
        let read = |count, data: &[u8]| {
            let ok = READ3resok { file_attributes: Nfs3Option::None, count, eof: true, data: Opaque::borrowed(data) };
            packed(&nfs3_types::nfs3::READ3res::Ok(ok))
        };
        let of = |results: &[u8], behind_head| {
            examine(Step::Read { file: 0, offset: 0 }, results, behind_head, BYTES, &mut None).is_ok()
        };
        let whole = read(BYTES, &[7; BYTES as usize]);
        assert!(of(&whole, 0));
        assert!(of(&whole[..1000], whole.len() - 1000));
        assert!(!of(&whole[..1000], whole.len() - 1004));
        assert!(!of(&read(4096, &[7; 4096]), 0));
        assert!(!of(&packed(&nfsstat3::NFS3ERR_STALE), 0));
    }
}
