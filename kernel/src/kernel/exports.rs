//! Numbers for exports, and records of their changes.

use policy::unit::ProcessorId;

use super::Kernel;
use crate::export::{ExportChange, ExportNo};
use crate::processor::Processor;
use crate::request::JobId;
use crate::trace::{Event, Named};

impl Kernel {
    /// The number of the export with this name; [`ExportNo::NONE`] if there are no more.
    pub fn number_export(&self, name: &str) -> ExportNo {
        let (export, is_new) = self.served().exports.number(name);
        if is_new {
            self.tracer().name(Named::Export, u32::from(export.0), name);
        }
        export
    }

    pub fn export_name(&self, export: ExportNo) -> Option<String> {
        self.served().exports.name(export)
    }

    /// Records that an export was added or removed. There must be processors.
    pub fn note_export(&self, name: &str, change: ExportChange) {
        let export = self.number_export(name);
        let event = match change {
            ExportChange::Added => Event::ExportAdded,
            ExportChange::Removed => Event::ExportRemoved,
        };
        let record = move |cpu: Processor| {
            cpu.trace(event, (JobId::default(), export), 0, 0);
        };
        self.mailbox(ProcessorId(0)).start(record);
    }
}
