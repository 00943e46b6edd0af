//! Transactions as the OLTP paper has them, in kind: the heavy one asks the system 36 times, the light one 19 times. They
//! read records and move amounts between some of them.

#![cfg_attr(target_arch = "wasm32", no_std)]

use awase_program::{Table, functions};

static RECORDS: Table<i64, i64> = Table::new("records");

/// Records, from 0.
const RECORDS_COUNT: i64 = 10_000;

/// Distance between two records of a transaction.
const STEP: i64 = 373;

/// Records that are added up in one transaction.
const SLICE: i64 = 1000;

functions! {
    /// Asks for the table, reads 27 records and writes 8. Returns the sum of those read.
    fn heavy(first: i64) -> i64 {
        work(first, 27, 8)
    }

    /// Asks for the table, reads 14 records and writes 4. Returns the sum of those read.
    fn light(first: i64) -> i64 {
        work(first, 14, 4)
    }

    /// The sum of 1,000 records, of `slice` * 1,000 and those after it.
    fn records(slice: i64) -> i64 {
        let first = slice.saturating_mul(SLICE);
        RECORDS.range(first..first.saturating_add(SLICE)).map(|(_, amount)| amount).sum()
    }
}

/// What the last of the records read hold is changed: in turn one gets what the next gives.
fn work(first: i64, reads: i64, writes: i64) -> i64 {
    let mut sum = 0;
    for step in 0..reads {
        let record = (first.wrapping_add(step * STEP)).rem_euclid(RECORDS_COUNT);
        let amount = RECORDS.get(&record).unwrap_or(0);
        sum += amount;
        if step >= reads - writes {
            RECORDS.put(&record, &(amount + 1 - 2 * (step % 2)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_move_and_none_is_made() {
        heavy(3);
        light(9_990);
        let all: Vec<i64> = RECORDS.range(..).map(|(_, amount)| amount).collect();
        assert_eq!((all.len(), all.iter().sum::<i64>()), (12, 0));
        assert!(all.iter().all(|amount| amount.abs() == 1));
        assert_eq!((0..10).map(records).sum::<i64>(), 0);
        assert_eq!(records(7), -1);
    }
}
