//! The calls that need no transfer: those of MOUNT, and those of NFS about names and attributes.

use std::io;

use super::xdr::{Arguments, put, put_hyper};
use crate::limit::call::Files;

pub const PROGRAM_NFS: u32 = 100_003;
pub const PROGRAM_MOUNT: u32 = 100_005;

pub const OK: u32 = 0;
pub const ERROR_IO: u32 = 5;
const ERROR_NO_ENTRY: u32 = 2;

/// The root's handle; files have the next ones.
const ROOT: u64 = 1;
const FIRST_FILE: u64 = 2;
const HANDLE_BYTES: u32 = 8;

/// Permission bits and types of `fattr3`.
const REGULAR: [u32; 2] = [1, 0o666];
const DIRECTORY: [u32; 2] = [2, 0o777];

/// The largest transfers.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

const FLAVOR_UNIX: u32 = 1;

/// The file of a handle that is not the root's.
pub fn file(handle: &[u8]) -> Option<u32> {
    let handle = handle.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    handle.checked_sub(FIRST_FILE).map(|file| file as u32)
}

/// Carries out a procedure. False if there is none of this number.
pub fn call(out: &mut Vec<u8>, program: u32, procedure: u32, of: &mut Arguments<'_>, files: &mut dyn Files) -> bool {
    match (program, procedure) {
        // NULL, and UMNT.
        (_, 0) | (PROGRAM_MOUNT, 3) => {}
        // MNT.
        (PROGRAM_MOUNT, 1) => {
            put(out, &[OK]);
            put_handle(out, ROOT);
            put(out, &[1, FLAVOR_UNIX]);
        }
        // EXPORT: whatever is mounted is there, and none is listed.
        (PROGRAM_MOUNT, 5) => put(out, &[0]),
        (PROGRAM_NFS, _) => return of_nfs(out, procedure, of, files),
        _ => return false,
    }
    true
}

fn of_nfs(out: &mut Vec<u8>, procedure: u32, of: &mut Arguments<'_>, files: &mut dyn Files) -> bool {
    let at = file(of.opaque());
    match procedure {
        // GETATTR.
        1 => {
            put(out, &[OK]);
            put_attributes(out, at, at.map_or(0, |file| files.bytes(file)));
        }
        2 => set_attributes(out, at, of, files),
        // LOOKUP.
        3 => match files.lookup(of.opaque()) {
            Some(found) => {
                put(out, &[OK]);
                put_handle(out, u64::from(found) + FIRST_FILE);
                put_some_attributes(out, Some(found), files.bytes(found));
                put_some_attributes(out, None, 0);
            }
            None => {
                put(out, &[ERROR_NO_ENTRY]);
                put_some_attributes(out, None, 0);
            }
        },
        // ACCESS: all that is asked for.
        4 => {
            put(out, &[OK]);
            put_some_attributes(out, at, at.map_or(0, |file| files.bytes(file)));
            put(out, &[of.number()]);
        }
        8 => create(out, of, files),
        // REMOVE.
        12 => {
            put(out, &[status(&files.remove(of.opaque()))]);
            put_change(out, None, 0);
        }
        // FSSTAT: a tebibyte, and a million files, all free.
        18 => {
            put(out, &[OK]);
            put_some_attributes(out, None, 0);
            put_hyper(out, &[1 << 40, 1 << 40, 1 << 40, 1 << 20, 1 << 20, 1 << 20]);
            put(out, &[0]);
        }
        // FSINFO: links and times as they are everywhere.
        19 => {
            put(out, &[OK]);
            put_some_attributes(out, None, 0);
            let (most, multiple) = (TRANSFER_BYTES_MAX, 4096);
            put(out, &[most, most, multiple, most, most, multiple, 64 << 10]);
            put_hyper(out, &[u64::MAX >> 1]);
            put(out, &[0, 1, 0x1b]);
        }
        // PATHCONF.
        20 => {
            put(out, &[OK]);
            put_some_attributes(out, None, 0);
            put(out, &[1, 255, 1, 1, 0, 1]);
        }
        _ => return false,
    }
    true
}

/// SETATTR: of the size only.
fn set_attributes(out: &mut Vec<u8>, at: Option<u32>, of: &mut Arguments<'_>, files: &mut dyn Files) {
    // Mode, uid and gid, each if it is to be set.
    for _ in 0..3 {
        if of.number() == 1 {
            of.number();
        }
    }
    let done = match at {
        Some(file) if of.number() == 1 => files.truncate(file, of.hyper()),
        _ => Ok(()),
    };
    put(out, &[status(&done)]);
    put_change(out, at, at.map_or(0, |file| files.bytes(file)));
}

fn create(out: &mut Vec<u8>, of: &mut Arguments<'_>, files: &mut dyn Files) {
    match files.create(of.opaque()) {
        Ok(file) => {
            put(out, &[OK, 1]);
            put_handle(out, u64::from(file) + FIRST_FILE);
            put_some_attributes(out, Some(file), files.bytes(file));
        }
        Err(_) => put(out, &[ERROR_IO]),
    }
    put_change(out, None, 0);
}

fn status(done: &io::Result<()>) -> u32 {
    match done {
        Ok(()) => OK,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ERROR_NO_ENTRY,
        Err(_) => ERROR_IO,
    }
}

fn put_handle(out: &mut Vec<u8>, handle: u64) {
    put(out, &[HANDLE_BYTES]);
    put_hyper(out, &[handle]);
}

/// `post_op_attr`.
pub fn put_some_attributes(out: &mut Vec<u8>, file: Option<u32>, bytes: u64) {
    put(out, &[1]);
    put_attributes(out, file, bytes);
}

/// `wcc_data`, without what was before.
pub fn put_change(out: &mut Vec<u8>, file: Option<u32>, bytes: u64) {
    put(out, &[0]);
    put_some_attributes(out, file, bytes);
}

/// `fattr3`: of a file, or of the root. Times are the epoch's.
fn put_attributes(out: &mut Vec<u8>, file: Option<u32>, bytes: u64) {
    let [kind, mode] = if file.is_some() { REGULAR } else { DIRECTORY };
    let id = file.map_or(ROOT, |file| u64::from(file) + FIRST_FILE);
    put(out, &[kind, mode, 1, 0, 0]);
    // Size, space used, device, file system, number, and three times.
    put_hyper(out, &[bytes, bytes, 0, 1, id, 0, 0, 0]);
}
