//! The files of a load: their names, and their handles.

use anyhow::{Context, Result, ensure};
use nfs3_types::nfs3::nfs_fh3;

use super::session::Session;
use super::{Load, Operation};

/// The handles of a connection's files, in the state that the load needs.
pub(super) fn open(session: &mut Session, root: &nfs_fh3, load: &Load, connection: u32) -> Result<Vec<nfs_fh3>> {
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

pub(super) fn name(connection: u32, file: u32) -> String {
    format!("load-{connection}-{file}")
}
