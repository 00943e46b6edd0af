//! `NFSv3` and MOUNT over TCP on one port (RFC 1813): what a client needs that reads and writes files of one directory.

mod names;
mod xdr;

use std::io;

use names::{ERROR_IO, OK, PROGRAM_NFS, put_change, put_some_attributes};
use xdr::{Arguments, padding, put};

use super::call::{Call, Files, Parsed, Protocol, Stability, What};
use super::outbound::Outbound;

const LAST_FRAGMENT: u32 = 1 << 31;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const PROCEDURE_UNAVAILABLE: u32 = 3;

const READ: u32 = 6;
const WRITE: u32 = 7;
const COMMIT: u32 = 21;

/// `stable_how` of a WRITE.
const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

/// The verifier of what was written: this server does not restart.
const VERIFIER: [u32; 2] = [7, 7];

pub struct Nfs;

impl Protocol for Nfs {
    fn parse(&self, input: &[u8], out: &mut Outbound, files: &mut dyn Files) -> io::Result<Parsed> {
        let mut of = Arguments::new(input);
        let mark = of.number();
        let record = 4 + (mark & !LAST_FRAGMENT) as usize;
        let (xid, kind, _, program, _, procedure) =
            (of.number(), of.number(), of.number(), of.number(), of.number(), of.number());
        // Credential and verifier.
        for _ in 0..2 {
            of.number();
            of.opaque();
        }
        if of.is_short {
            return Ok(Parsed::Incomplete);
        }
        if mark & LAST_FRAGMENT == 0 || kind != CALL {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let tag = u64::from(xid);
        if program == PROGRAM_NFS && matches!(procedure, READ | WRITE | COMMIT) {
            return Ok(transfer(tag, procedure, record, of, input.len()));
        }
        if input.len() < record {
            return Ok(Parsed::Incomplete);
        }
        out.push(None, |out| {
            let start = begin_reply(out, tag);
            if !names::call(out, program, procedure, &mut of, files) {
                let at = out.len() - 4;
                out[at..].copy_from_slice(&PROCEDURE_UNAVAILABLE.to_be_bytes());
            }
            end_reply(out, start, 0);
        });
        Ok(Parsed::Answered(record))
    }

    fn reply(&self, out: &mut Vec<u8>, call: &Call, done: io::Result<u32>, file_bytes: u64) {
        let start = begin_reply(out, call.tag);
        let file = Some(call.file);
        let Ok(bytes) = done else {
            put(out, &[ERROR_IO]);
            if call.what == What::Read {
                put_some_attributes(out, file, file_bytes);
            } else {
                put_change(out, file, file_bytes);
            }
            return end_reply(out, start, 0);
        };
        put(out, &[OK]);
        match call.what {
            What::Read => {
                put_some_attributes(out, file, file_bytes);
                let is_end = call.offset + u64::from(bytes) >= file_bytes;
                put(out, &[bytes, u32::from(is_end), bytes]);
                end_reply(out, start, bytes as usize + padding(bytes as usize));
            }
            What::Write(stability) => {
                put_change(out, file, file_bytes);
                let committed = if stability == Stability::Durable { FILE_SYNC } else { UNSTABLE };
                put(out, &[bytes, committed]);
                put(out, &VERIFIER);
                end_reply(out, start, 0);
            }
            What::Flush => {
                put_change(out, file, file_bytes);
                put(out, &VERIFIER);
                end_reply(out, start, 0);
            }
        }
    }

    fn padding(&self, bytes: u32) -> usize {
        padding(bytes as usize)
    }
}

/// A READ, WRITE or COMMIT in a record of so many bytes, of which `received` are there.
fn transfer(tag: u64, procedure: u32, record: usize, mut of: Arguments<'_>, received: usize) -> Parsed {
    // No file has the number that the root gets.
    let file = names::file(of.opaque()).unwrap_or(u32::MAX);
    let (offset, bytes) = (of.hyper(), of.number());
    let mut head = record;
    let mut padded = 0;
    let what = match procedure {
        READ => What::Read,
        COMMIT => What::Flush,
        _ => {
            let stability = of.number();
            let length = of.number();
            head = received - of.len();
            padded = padding(length as usize);
            What::Write(if stability == UNSTABLE { Stability::Unstable } else { Stability::Durable })
        }
    };
    if of.is_short || received < head {
        return Parsed::Incomplete;
    }
    let bytes = if what == What::Flush { 0 } else { bytes };
    Parsed::Call { head, call: Call { tag, file, offset, bytes, what }, padding: padded }
}

/// Begins the reply to a call that is accepted. Returns where.
fn begin_reply(out: &mut Vec<u8>, tag: u64) -> usize {
    let start = out.len();
    // Its length, which is not known yet; accepted; no verifier; successful.
    put(out, &[0, tag as u32, REPLY, 0, 0, 0, 0]);
    start
}

/// Ends it, with so many bytes of data behind it.
fn end_reply(out: &mut [u8], start: usize, data: usize) {
    let bytes = (out.len() - start - 4 + data) as u32;
    out[start..start + 4].copy_from_slice(&(bytes | LAST_FRAGMENT).to_be_bytes());
}
