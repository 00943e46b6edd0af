//! Exports, as they are told apart in what is recorded: by numbers, so that nothing on the way of a request handles a
//! name. A number belongs to a name as long as the server lives: an export that goes and comes again has it again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use policy::unit::ProcessorId;

use crate::Kernel;
use crate::request::JobId;
use crate::trace::{Event, Named};

/// A disk or a directory that is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportNo(pub u16);

impl ExportNo {
    /// None in particular; also those for which there was no number left.
    pub const NONE: ExportNo = ExportNo(0);

    /// The largest number: what a record of the trace has room for.
    pub const MAX: ExportNo = ExportNo(2047);
}

/// What happens to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportChange {
    /// New clients get it from now on.
    Added,
    /// New clients do not get it any more.
    Removed,
}

/// The names that have numbers.
#[derive(Default)]
pub(crate) struct ExportNumbers(Mutex<Vec<String>>);

impl ExportNumbers {
    fn names(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a name, and whether it is a new one.
    fn number(&self, name: &str) -> (ExportNo, bool) {
        let mut names = self.names();
        let known = names.iter().position(|known| known == name);
        let at = known.unwrap_or(names.len());
        if at >= usize::from(ExportNo::MAX.0) {
            return (ExportNo::NONE, false);
        }
        if known.is_none() {
            names.push(name.to_owned());
        }
        (ExportNo(at as u16 + 1), known.is_none())
    }
}

impl Kernel {
    /// The number of the export with this name; [`ExportNo::NONE`] when there are no more.
    pub fn number_export(&self, name: &str) -> ExportNo {
        let (export, is_new) = self.exports().number(name);
        if is_new {
            self.tracer().name(Named::Export, u32::from(export.0), name);
        }
        export
    }

    /// The name that a number stands for.
    pub fn export_name(&self, export: ExportNo) -> Option<String> {
        let at = usize::from(export.0).checked_sub(1)?;
        self.exports().names().get(at).cloned()
    }

    /// Records that an export came or went. There must be processors.
    pub fn note_export(&self, name: &str, change: ExportChange) {
        let export = self.number_export(name);
        let event = match change {
            ExportChange::Added => Event::ExportAdded,
            ExportChange::Removed => Event::ExportRemoved,
        };
        let record = move |cpu: crate::Processor| {
            cpu.trace(event, (JobId::default(), export), 0, 0);
        };
        self.mailbox(ProcessorId(0)).start(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_when_there_are_no_more_the_others_have_none() {
        let numbers = ExportNumbers::default();
        for number in 1..=ExportNo::MAX.0 {
            assert_eq!(numbers.number(&format!("disk{number}")), (ExportNo(number), true));
        }
        assert_eq!(numbers.number("one more"), (ExportNo::NONE, false));
        assert_eq!(numbers.number("disk7"), (ExportNo(7), false));
    }
}
