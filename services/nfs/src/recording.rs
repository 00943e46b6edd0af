//! What is recorded and counted of a call: its type, for whom and with which export it is, and what it is about.

use std::cell::Cell;

use kernel::Processor;
use kernel::connection::Tally;
use kernel::export::ExportNo;
use kernel::processor::{Timed, Together};
use kernel::request::JobId;
use kernel::trace::{Event, Whose};
use nfs3_types::nfs3::NFS_PROGRAM;

use crate::call::{Program, Results};
use crate::handle::{self, ExportId};
use crate::server::Server;
use crate::shape::{Cursor, HANDLE_BYTES_MAX, READ, WRITE};

const COMMIT: u32 = NFS_PROGRAM::NFSPROC3_COMMIT as u32;

/// Calls of NFS, by their numbers.
const PROCEDURES: [Event; 22] = [
    Event::NfsNull,
    Event::NfsGetattr,
    Event::NfsSetattr,
    Event::NfsLookup,
    Event::NfsAccess,
    Event::NfsReadlink,
    Event::NfsRead,
    Event::NfsWrite,
    Event::NfsCreate,
    Event::NfsMkdir,
    Event::NfsSymlink,
    Event::NfsMknod,
    Event::NfsRemove,
    Event::NfsRmdir,
    Event::NfsRename,
    Event::NfsLink,
    Event::NfsReaddir,
    Event::NfsReaddirplus,
    Event::NfsFsstat,
    Event::NfsFsinfo,
    Event::NfsPathconf,
    Event::NfsCommit,
];

/// The export that a connection's last call was about, and its number: the next call is mostly about the same.
#[derive(Default)]
pub(crate) struct LastExport(Cell<Option<(ExportId, ExportNo)>>);

impl LastExport {
    /// Nobody may rely on it: the handle is believed as it came.
    fn number(&self, server: &Server, handle: &[u8]) -> ExportNo {
        let Some(id) = handle::claimed_export(handle) else { return ExportNo::NONE };
        if let Some((last, number)) = self.0.get()
            && last == id
        {
            return number;
        }
        let number = server.find(id).map_or(ExportNo::NONE, |export| export.number());
        self.0.set(Some((id, number)));
        number
    }
}

/// What is recorded of a call that begins.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    event: Event,
    whose: Whose,
    /// What it is about: a node, or where in it.
    place: u64,
    /// Bytes; of a call that is about no bytes, its status is recorded in their place.
    bytes: Option<u32>,
}

impl Recorded {
    pub(crate) fn of(
        program: Program,
        procedure: u32,
        arguments: &[u8],
        job: JobId,
        (exports, server, tally): (&LastExport, &Server, &Tally),
    ) -> Recorded {
        if program == Program::Mount {
            return Recorded { event: Event::Mount, whose: job.into(), place: procedure.into(), bytes: None };
        }
        let event = PROCEDURES.get(procedure as usize).copied().unwrap_or(Event::NfsNull);
        let mut rest = Cursor(arguments);
        let Some(handle) = rest.opaque(HANDLE_BYTES_MAX) else {
            return Recorded { event, whose: job.into(), place: 0, bytes: None };
        };
        let export = exports.number(server, handle);
        tally.use_export(export);
        let (place, bytes) = match procedure {
            READ | WRITE | COMMIT => (rest.u64().unwrap_or(0), rest.u32()),
            _ => (handle::claimed_node(handle), None),
        };
        Recorded { event, whose: (job, export).into(), place, bytes }
    }

    pub(crate) fn begin(&self, cpu: &Processor) -> Timed {
        cpu.begin_timed(self.event, self.whose)
    }

    /// The same where one follows the other: it begins when the last one ended.
    pub(crate) fn begin_next(&self, cpu: &Processor) -> Timed {
        cpu.begin_next(self.event, self.whose)
    }

    /// It was answered, and leaves with others.
    pub(crate) fn end_with(&self, cpu: &Processor, together: &Together, began: Timed) {
        let bytes = self.bytes.unwrap_or(0).into();
        cpu.end_with(together, began, self.event, self.whose, self.place, bytes);
    }

    pub(crate) fn end(&self, cpu: &Processor, began: Timed, status: u32) {
        cpu.end_request(began, self.event, self.whose, self.place, self.bytes.unwrap_or(status).into());
    }
}

/// What results begin with: their status.
pub(crate) fn status_of(results: &Results) -> u32 {
    let bytes = match results {
        Results::Bytes(bytes) => bytes,
        Results::Data { head, .. } => head,
        _ => return 0,
    };
    Cursor(bytes).u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_begin_with_their_status() {
        assert_eq!(status_of(&Results::Bytes(vec![0, 0, 0, 70, 1])), 70);
        assert_eq!(status_of(&Results::Bytes(Vec::new())), 0);
        assert_eq!(status_of(&Results::SystemError), 0);
    }
}
