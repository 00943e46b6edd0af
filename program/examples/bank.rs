//! The program of the database `bank`: accounts 1 to 1,000, which begin with 1,000 each.

#![cfg_attr(target_arch = "wasm32", no_std)]

use awase_program::{Table, abort, functions, init};

static ACCOUNTS: Table<i64, i64> = Table::new("accounts");

init! {
    for account in 1..=1000 {
        ACCOUNTS.put(&account, &1000);
    }
}

functions! {
    /// What is in an account.
    fn balance(account: i64) -> i64 {
        ACCOUNTS.get(&account).unwrap_or_else(|| abort!("there is no account {account}"))
    }

    /// Puts an amount into an account. Returns its new balance.
    fn deposit(account: i64, amount: i64) -> i64 {
        if amount < 0 {
            abort!("the amount {amount} is negative");
        }
        add(account, amount)
    }

    /// Moves an amount from one account to another. Returns what is left in the first.
    fn transfer(payer: i64, payee: i64, amount: i64) -> i64 {
        if amount < 0 {
            abort!("the amount {amount} is negative");
        }
        let left = add(payer, -amount);
        if left < 0 {
            abort!("account {payer} has only {}", left + amount);
        }
        add(payee, amount);
        balance(payer)
    }

    /// What is in all accounts together.
    fn total() -> i64 {
        ACCOUNTS.range(..).map(|(_, balance)| balance).sum()
    }
}

fn add(account: i64, amount: i64) -> i64 {
    let new = balance(account).checked_add(amount);
    let new = new.unwrap_or_else(|| abort!("account {account} cannot hold that much"));
    ACCOUNTS.put(&account, &new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_moves_money_and_makes_none() {
        ACCOUNTS.put(&1, &10);
        ACCOUNTS.put(&2, &5);
        assert_eq!(transfer(1, 2, 7), 3);
        assert_eq!((balance(1), balance(2), total()), (3, 12, 15));
        assert_eq!(transfer(2, 2, 12), 12);
    }

    #[test]
    #[should_panic(expected = "account 1 has only 10")]
    fn an_account_is_not_overdrawn() {
        ACCOUNTS.put(&1, &10);
        ACCOUNTS.put(&2, &5);
        transfer(1, 2, 11);
    }

    #[test]
    #[should_panic(expected = "there is no account 3")]
    fn an_account_that_does_not_exist_is_told() {
        balance(3);
    }
}
