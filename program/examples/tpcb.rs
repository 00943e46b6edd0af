//! The transaction of TPC-B, as pgbench has it, for comparisons: an account, its teller and its branch get an amount, and
//! a line of history is written. Rows that are not there yet hold 0, so that there is nothing to fill in before.

#![cfg_attr(target_arch = "wasm32", no_std)]

use awase_program::{Table, functions};

static ACCOUNTS: Table<i64, i64> = Table::new("pgbench_accounts");
static TELLERS: Table<i64, i64> = Table::new("pgbench_tellers");
static BRANCHES: Table<i64, i64> = Table::new("pgbench_branches");
/// By account, and the number of its line.
static HISTORY: Table<(i64, i64), (i64, i64, i64)> = Table::new("pgbench_history");

/// Accounts that are added up in one transaction: there is a bound of what one may read.
const SLICE: i64 = 1000;

functions! {
    /// Adds `delta` to all three. Returns the account's new balance.
    fn tpcb(aid: i64, tid: i64, bid: i64, delta: i64) -> i64 {
        let balance = add(&ACCOUNTS, aid, delta);
        add(&TELLERS, tid, delta);
        add(&BRANCHES, bid, delta);
        let line = HISTORY.beginning_with(&(aid,)).next_back().map_or(0, |((_, line), _)| line) + 1;
        HISTORY.put(&(aid, line), &(tid, bid, delta));
        balance
    }

    /// The sum of 1,000 accounts, of `slice` * 1,000 and those after it.
    fn tpcb_accounts(slice: i64) -> i64 {
        let first = slice.saturating_mul(SLICE);
        ACCOUNTS.range(first..first.saturating_add(SLICE)).map(|(_, balance)| balance).sum()
    }

    /// The sum of all tellers.
    fn tpcb_tellers() -> i64 {
        TELLERS.range(..).map(|(_, balance)| balance).sum()
    }

    /// The sum of all branches.
    fn tpcb_branches() -> i64 {
        BRANCHES.range(..).map(|(_, balance)| balance).sum()
    }
}

fn add(table: &Table<i64, i64>, key: i64, delta: i64) -> i64 {
    let new = table.get(&key).unwrap_or(0).wrapping_add(delta);
    table.put(&key, &new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_stay_equal() {
        for aid in 0..10 {
            assert_eq!(tpcb(300 * aid, aid % 3, 1, 5 - aid), 5 - aid);
        }
        assert_eq!([0, 1, 2].map(tpcb_accounts), [14, 0, -9]);
        assert_eq!((tpcb_tellers(), tpcb_branches()), (5, 5));
        assert_eq!(HISTORY.beginning_with(&(1200,)).count(), 1);
    }
}
