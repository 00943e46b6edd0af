//! Whether the database is right after the load.

use anyhow::{Context as _, anyhow};

use super::mix::Check;
use super::wire::{Target, Wire};

pub struct Outcome {
    pub name: String,
    pub expected: Option<String>,
    pub found: Option<String>,
}

impl Outcome {
    pub fn is_right(&self) -> bool {
        self.expected == self.found
    }
}

/// The values of those checks whose value must not change.
///
/// # Errors
/// If the server cannot be reached or refuses one.
pub fn ask_before(target: &Target, checks: &[Check]) -> anyhow::Result<Vec<Option<String>>> {
    ask_all(target, checks, |check, wire| match (&check.expect, &check.same_as) {
        (None, None) => ask(wire, check),
        _ => Ok(None),
    })
}

/// Asks all of them.
///
/// # Errors
/// As [`ask_before`].
pub fn compare(target: &Target, checks: &[Check], before: &[Option<String>]) -> anyhow::Result<Vec<Outcome>> {
    let mut before = before.iter();
    ask_all(target, checks, |check, wire| {
        let before = before.next().cloned().flatten();
        let expected = match (&check.expect, &check.same_as) {
            (Some(value), _) => Some(value.clone()),
            (None, Some(other)) => wire.ask(other)?,
            (None, None) => before,
        };
        Ok(Outcome { name: check.name.clone(), expected, found: ask(wire, check)? })
    })
}

fn ask_all<T>(
    target: &Target,
    checks: &[Check],
    mut ask: impl FnMut(&Check, &mut Wire) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    if checks.is_empty() {
        return Ok(Vec::new());
    }
    let mut wire = Wire::open(target)?;
    checks.iter().map(|check| ask(check, &mut wire)).collect()
}

/// The value of its query.
fn ask(wire: &mut Wire, check: &Check) -> anyhow::Result<Option<String>> {
    let Some([from, to]) = check.over else { return wire.ask(&check.sql) };
    let mut sum = 0_i128;
    for number in from..=to {
        let sql = check.sql.replace("$1", &number.to_string());
        let value = wire.ask(&sql)?.with_context(|| format!("{sql:?} has no value"))?;
        let value: i128 = value.parse().map_err(|_| anyhow!("{sql:?} is {value:?}, which cannot be added"))?;
        sum += value;
    }
    Ok(Some(sum.to_string()))
}
