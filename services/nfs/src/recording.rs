//! Trace records and counters of calls.

use std::cell::Cell;

use kernel::Processor;
use kernel::connection::Tally;
use kernel::export::ExportNo;
use kernel::processor::{Timed, Together};
use kernel::request::JobId;
use kernel::trace::{Event, Whose};
use nfs3_types::nfs3::NFS_PROGRAM;

use crate::call::Results;
use crate::handle::{self, ExportId};
use crate::nfs::Nfs;
use crate::program::Program;
use crate::shape::{Cursor, HANDLE_BYTES_MAX, READ, WriteArguments};

const COMMIT: u32 = NFS_PROGRAM::NFSPROC3_COMMIT as u32;

/// Events of NFS by procedure number.
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

/// Cache of the export of a connection's last call.
#[derive(Default)]
pub(crate) struct LastExport(Cell<Option<(ExportId, ExportNo)>>);

impl LastExport {
    fn used(&self, nfs: &Nfs, handle: &[u8], tally: &Tally) -> ExportNo {
        let export = self.number(nfs, handle);
        tally.use_export(export);
        export
    }

    /// For records only: the handle is not verified.
    fn number(&self, nfs: &Nfs, handle: &[u8]) -> ExportNo {
        let Some(id) = handle::claimed_export(handle) else { return ExportNo::NONE };
        if let Some((last, number)) = self.0.get()
            && last == id
        {
            return number;
        }
        let number = nfs.find(id).map_or(ExportNo::NONE, |export| export.number());
        self.0.set(Some((id, number)));
        number
    }
}

/// Fields of a call's record.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    event: Event,
    whose: Whose,
    /// The node, or the offset in it.
    place: u64,
    /// `None`: the status is recorded instead.
    bytes: Option<u32>,
}

impl Recorded {
    pub(crate) fn of(
        program: Program,
        procedure: u32,
        arguments: &[u8],
        job: JobId,
        (exports, nfs, tally): (&LastExport, &Nfs, &Tally),
    ) -> Recorded {
        if program == Program::Mount {
            return Recorded { event: Event::Mount, whose: job.into(), place: procedure.into(), bytes: None };
        }
        let event = PROCEDURES.get(procedure as usize).copied().unwrap_or(Event::NfsNull);
        let mut rest = Cursor(arguments);
        let Some(handle) = rest.opaque(HANDLE_BYTES_MAX) else {
            return Recorded { event, whose: job.into(), place: 0, bytes: None };
        };
        let (place, bytes) = match procedure {
            READ | COMMIT => (rest.u64().unwrap_or(0), rest.u32()),
            _ => (handle::claimed_node(handle), None),
        };
        Recorded { event, whose: (job, exports.used(nfs, handle, tally)).into(), place, bytes }
    }

    pub(crate) fn of_write(
        write: &WriteArguments,
        arguments: &[u8],
        job: JobId,
        (exports, nfs, tally): (&LastExport, &Nfs, &Tally),
    ) -> Recorded {
        let export = exports.used(nfs, write.handle(arguments), tally);
        let (place, bytes) = (write.offset.0, Some(write.count));
        Recorded { event: Event::NfsWrite, whose: (job, export).into(), place, bytes }
    }

    pub(crate) fn begin(&self, cpu: &Processor) -> Timed {
        cpu.begin_timed(self.event, self.whose)
    }

    /// As `begin`, for consecutive calls: starts at the end of the last one.
    pub(crate) fn begin_next(&self, cpu: &Processor) -> Timed {
        cpu.begin_next(self.event, self.whose)
    }

    /// Ends a call that is answered in a batch.
    pub(crate) fn end_with(&self, cpu: &Processor, together: &Together, began: Timed) {
        let bytes = self.bytes.unwrap_or(0).into();
        cpu.end_with(together, began, self.event, self.whose, self.place, bytes);
    }

    pub(crate) fn end(&self, cpu: &Processor, began: Timed, status: u32) {
        cpu.end_request(began, self.event, self.whose, self.place, self.bytes.unwrap_or(status).into());
    }
}

/// The status, the first word of results.
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
