//! Media that this server has open: a reload that would open one of them once more is refused by that name, not for the lock
//! of another program.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::config::{Export, Problem};

/// The file or device of a path, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    is_device: bool,
    device: u64,
    file: u64,
}

impl Identity {
    /// Of what is there now.
    pub fn of(export: &Export) -> Option<Identity> {
        let found = std::fs::metadata(export.path()?).ok()?;
        let is_device = found.file_type().is_block_device();
        let (device, file) = if is_device { (found.rdev(), 0) } else { (found.dev(), found.ino()) };
        Some(Identity { is_device, device, file })
    }
}

/// Who in this server has a medium.
#[derive(Clone, Copy)]
pub enum Holder {
    /// A disk that new clients get, or a database.
    Served,
    /// A disk that only so many old clients have.
    Retired { clients: usize },
    /// A disk that nobody has any more, while it is written.
    Closing,
}

#[derive(Clone)]
pub struct Held {
    export: Export,
    identity: Option<Identity>,
    by: Holder,
}

impl Held {
    pub fn new(export: &Export, identity: Option<Identity>, by: Holder) -> Held {
        Held { export: export.clone(), identity, by }
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    pub fn is_closing(&self) -> bool {
        matches!(self.by, Holder::Closing)
    }

    fn problem(&self, export: &Export) -> Problem {
        let table = if self.export.is_database { "database" } else { "export" };
        let (whose, allowed) = match self.by {
            // A database is open until a restart.
            Holder::Served if self.export.is_database => {
                ("serves".to_owned(), "another file, or a restart of the server")
            }
            Holder::Served => {
                ("serves".to_owned(), "another file, or to read the configuration without that export first")
            }
            Holder::Retired { clients } => (
                format!("still serves to {clients} client{} that had it before", if clients == 1 { "" } else { "s" }),
                "the same keys as before, but for the name, or to read the configuration again when they are gone",
            ),
            Holder::Closing => {
                ("is still writing to its disk".to_owned(), "to read the configuration again in a moment")
            }
        };
        let what = format!("leads to the medium of {table} {:?}, which this server {whose}", self.export.name);
        Problem::new(&export.place, export.key("path"), what).allowed(allowed)
    }
}

/// Refuses an export whose medium one of `held` has, unless both only read it.
///
/// # Errors
/// Who has it.
pub fn refuse<'a>(export: &Export, held: impl IntoIterator<Item = &'a Held>) -> Result<(), Problem> {
    let Some(own) = Identity::of(export) else { return Ok(()) };
    let is_same = |held: &&Held| held.identity == Some(own) && (export.writes_alone() || held.export.writes_alone());
    held.into_iter().find(is_same).map_or(Ok(()), |held| Err(held.problem(export)))
}
