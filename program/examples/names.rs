//! Functions with names that others have, too: of the standard library's mathematics, and of what a module exports.

use awase_program::{Table, functions};

static LOG: Table<i64, f64> = Table::new("log");

functions! {
    /// To five cents, downwards.
    fn round(amount: f64) -> f64 {
        (amount * 20.0).floor() / 20.0
    }

    /// In whole francs.
    fn francs(amount: f64) -> f64 {
        amount.round()
    }

    fn pow(base: f64, exponent: f64) -> f64 {
        base.powf(exponent)
    }

    /// Adds to the log the logarithm of an amount, rounded to a number of digits.
    fn log(number: i64, amount: f64, digits: i64) {
        let unit = pow(10.0, digits as f64);
        LOG.put(&number, &((amount.ln() * unit).round() / unit));
    }

    fn memory(number: i64) -> Option<f64> {
        LOG.get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_what_it_is_where_it_stands() {
        assert_eq!((round(1.99), francs(1.99), pow(2.0, 10.0)), (1.95, 2.0, 1024.0));
        log(1, 10.0, 2);
        assert_eq!(memory(1), Some(2.3));
    }
}
