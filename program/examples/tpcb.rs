//! The transaction of TPC-B, as pgbench has it, for comparisons: an account, its teller and its branch get an amount, and
//! a line of history is written. Rows that are not there yet hold 0, so that there is nothing to fill in before.

#![cfg_attr(target_arch = "wasm32", no_std)]

use awase_program::{Table, functions};

static ACCOUNTS: Table<i64, i64> = Table::new("pgbench_accounts");
static TELLERS: Table<i64, i64> = Table::new("pgbench_tellers");
static BRANCHES: Table<i64, i64> = Table::new("pgbench_branches");
/// By account, and the number of its line.
static HISTORY: Table<(i64, i64), (i64, i64, i64)> = Table::new("pgbench_history");

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

    /// The sums of accounts, tellers and branches must be the same: returns whether they are.
    fn tpcb_check() -> bool {
        let sum = |table: &Table<i64, i64>| table.range(..).map(|(_, balance)| i128::from(balance)).sum::<i128>();
        sum(&ACCOUNTS) == sum(&TELLERS) && sum(&TELLERS) == sum(&BRANCHES)
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
            assert_eq!(tpcb(aid, aid % 3, 1, 5 - aid), 5 - aid);
        }
        assert!(tpcb_check());
        assert_eq!(HISTORY.beginning_with(&(4,)).count(), 1);
    }
}
