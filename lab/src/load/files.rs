//! The files of a load.

use anyhow::{Context, Result, ensure};
use nfs3_types::nfs3::nfs_fh3;

use super::session::{Endpoint, Session};
use super::{Drive, Length, Load, Operation, Order, Stability, Stop, Target, drive};

/// Largest request that fills a file.
const FILL_BYTES_MAX: u32 = 256 << 10;

/// Creates the files that a load needs, through the server, durable. Files of the right length are left as they are.
pub fn prepare(endpoint: &Endpoint, load: &Load, stop: &Stop<'_>) -> Result<()> {
    load.check()?;
    if !load.operation.needs_content() {
        return Ok(());
    }
    let (mut session, root) = Session::mount(endpoint)?;
    let bytes_max = FILL_BYTES_MAX.min(session.limits(&root)?.write);
    for connection in 0..if load.shared { 1 } else { load.connections } {
        let mut missing = Vec::new();
        for name in (0..load.files).map(|file| name(connection, file)) {
            match session.lookup(&root, &name)? {
                Some((_, bytes)) if bytes == load.from + load.file_bytes => {}
                Some((file, _)) => {
                    session.truncate(&file, 0)?;
                    missing.push(file);
                }
                None => missing.push(session.create(&root, &name)?),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let fill = Load {
            operation: Operation::Overwrite(Order::Sequential, Stability::Unstable { commit_bytes: u64::MAX }),
            request_bytes: fill_bytes(load, bytes_max),
            from: 0,
            file_bytes: load.from + load.file_bytes,
            connections: 1,
            files: missing.len() as u32,
            ..load.reading_once()
        };
        Drive::of_files(endpoint, &fill, Length::OnePass, &root, vec![missing])?.run(stop)?;
    }
    Ok(())
}

/// The load's request size, doubled while it divides the files and stays within a limit.
fn fill_bytes(load: &Load, bytes_max: u32) -> u32 {
    let mut bytes = load.request_bytes;
    while bytes <= bytes_max / 2 && load.file_bytes.is_multiple_of(u64::from(bytes) * 2) {
        bytes *= 2;
    }
    bytes
}

/// Reads all files of a load once, so that the server may cache them.
pub fn warm(endpoint: &Endpoint, load: &Load, stop: &Stop<'_>) -> Result<()> {
    drive(&Target::Nfs(endpoint.clone()), &load.reading_once(), Length::OnePass, stop)?;
    Ok(())
}

/// The handles of a connection's files, in the state that the load needs.
pub fn open(session: &mut Session, root: &nfs_fh3, load: &Load, connection: u32) -> Result<Vec<nfs_fh3>> {
    if load.operation == Operation::CreateRemove {
        return Ok(Vec::new());
    }
    let connection = if load.shared { 0 } else { connection };
    let names = (0..load.files).map(|file| name(connection, file));
    let handles = names.map(|name| {
        let found = session.lookup(root, &name)?;
        if matches!(load.operation, Operation::Extend(_)) {
            let Some((file, _)) = found else { return session.create(root, &name) };
            session.truncate(&file, 0)?;
            return Ok(file);
        }
        let (file, bytes) = found.with_context(|| format!("{name} is not there: it must be prepared"))?;
        let wanted = load.from + load.file_bytes;
        ensure!(bytes >= wanted, "{name} has {bytes} bytes, not {wanted}: it must be prepared");
        Ok(file)
    });
    handles.collect()
}

pub fn name(connection: u32, file: u32) -> String {
    format!("load-{connection}-{file}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_filled_with_whole_requests() {
        let of = |request_bytes, file_bytes| {
            let load = Load { request_bytes, file_bytes, ..Load::new(Operation::CreateRemove, 8, 1) };
            fill_bytes(&load, FILL_BYTES_MAX)
        };
        assert_eq!(of(8 << 10, 256 << 20), 256 << 10);
        assert_eq!(of(8 << 10, 24 << 10), 8 << 10);
        assert_eq!(of(512, 3 * 1024), 1024);
    }
}
