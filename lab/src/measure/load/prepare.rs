//! Makes the files of a load, and has a server cache them.

use anyhow::Result;

use super::files::name;
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
