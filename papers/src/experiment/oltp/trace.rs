//! The system trace (OLTP-2): records of more than 70 types, left by all parts of the operating system.
//!
//! Every path has types of its own. Before, one central routine makes each record under the lock of a multiprocessor.
//! Thinned, two consecutive types of a path become one; and a path that is run often makes its records itself, in
//! place.
//!
//! Published are the times of some paths, and for the whole system the steps between two records: so paths leave
//! fractions of records, averaged over the ways through them. They are counted in thousandths.

use super::account::{PATHS, Path};

/// Least number of record types in the system. Most belong to paths that are hardly ever taken.
pub const TYPES: u64 = 70;

/// Cost of a record, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct RecordCost {
    pub central_ns: u64,
    pub direct_ns: u64,
}

#[derive(Clone, Debug)]
pub struct Trace {
    cost: RecordCost,
    is_thinned: bool,
    /// Thousandths of each path, before thinning.
    records: [u64; PATHS],
}

impl Trace {
    /// `records`: thousandths of each path.
    pub fn new(cost: RecordCost, is_thinned: bool, records: [u64; PATHS]) -> Self {
        Trace { cost, is_thinned, records }
    }

    /// Thousandths of records that a path leaves, and their cost in nanoseconds.
    pub fn of(&self, path: Path) -> (u64, u64) {
        self.of_records(path, self.records[path as usize])
    }

    /// The same of a part of a path that leaves `records` thousandths before thinning.
    pub fn of_records(&self, path: Path, records: u64) -> (u64, u64) {
        if !self.is_thinned {
            return (records, records * self.cost.central_ns / 1000);
        }
        // A single record has none to be merged with.
        let merged = (records / 2).max(records.min(1000));
        (merged, merged * if is_frequent(path) { self.cost.direct_ns } else { self.cost.central_ns } / 1000)
    }
}

/// Is it run for each I/O, call or dispatch?
pub fn is_frequent(path: Path) -> bool {
    !matches!(path, Path::OtherCalls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_merged_in_pairs_and_rare_ones_stay_with_the_central_routine() {
        let cost = RecordCost { central_ns: 100, direct_ns: 10 };
        let (before, after) = (Trace::new(cost, false, [5000; PATHS]), Trace::new(cost, true, [5000; PATHS]));
        assert_eq!(before.of(Path::IoRequest), (5000, 500));
        assert_eq!(after.of(Path::IoRequest), (2500, 25));
        assert_eq!(after.of(Path::OtherCalls), (2500, 250));
        assert_eq!(after.of_records(Path::IoRequest, 1000), (1000, 10));
    }
}
