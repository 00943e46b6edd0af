//! Numbers of exports, used instead of names in requests and records. A number belongs to a name for the server's life:
//! an export that is removed and added again gets the same one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// An export's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportNo(pub u16);

impl ExportNo {
    /// None in particular; also exports beyond [`ExportNo::MAX`].
    pub const NONE: ExportNo = ExportNo(0);

    /// The largest number that fits into a trace record.
    pub const MAX: ExportNo = ExportNo(2047);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportChange {
    /// New clients may use it from now on.
    Added,
    /// New clients may not use it any more.
    Removed,
}

#[derive(Default)]
pub(crate) struct ExportNumbers(Mutex<Names>);

#[derive(Default)]
struct Names {
    in_order: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, ExportNo>,
}

impl ExportNumbers {
    /// The number of a name, and whether it is new.
    pub(crate) fn number(&self, name: &str) -> (ExportNo, bool) {
        let mut names = self.0.lock();
        if let Some(known) = names.numbers.get(name) {
            return (*known, false);
        }
        let count = names.in_order.len();
        if count >= usize::from(ExportNo::MAX.0) {
            return (ExportNo::NONE, false);
        }
        let (name, number) = (Arc::from(name), ExportNo(count as u16 + 1));
        names.in_order.push(Arc::clone(&name));
        names.numbers.insert(name, number);
        (number, true)
    }

    pub(crate) fn name(&self, export: ExportNo) -> Option<String> {
        let at = usize::from(export.0).checked_sub(1)?;
        self.0.lock().in_order.get(at).map(|name| name.to_string())
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
