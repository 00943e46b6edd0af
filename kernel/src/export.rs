//! Numbers of exports, used instead of names in requests and records. A number belongs to a name for the server's life:
//! an export that is removed and added again gets the same one.

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
pub(crate) struct ExportNumbers(Mutex<Vec<String>>);

impl ExportNumbers {
    /// The number of a name, and whether it is new.
    pub(crate) fn number(&self, name: &str) -> (ExportNo, bool) {
        let mut names = self.0.lock();
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

    pub(crate) fn name(&self, export: ExportNo) -> Option<String> {
        let at = usize::from(export.0).checked_sub(1)?;
        self.0.lock().get(at).cloned()
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
