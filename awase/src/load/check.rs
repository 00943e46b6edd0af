//! Whether the database is right after the load.

use anyhow::{Context as _, anyhow};

use super::mix::Check;
use super::wire::{Target, Wire};

pub struct Outcome {
    pub name: String,
    pub expected: Option<String>,
    /// Or why it could not be asked.
    pub found: Result<Option<String>, String>,
}

impl Outcome {
    pub fn is_right(&self) -> bool {
        self.found.as_ref() == Ok(&self.expected)
    }
}

/// The values of those checks whose value must not change.
///
/// # Errors
/// If the server cannot be reached or refuses one.
pub fn ask_before(target: &Target, checks: &[Check]) -> anyhow::Result<Vec<Option<String>>> {
    if checks.is_empty() {
        return Ok(Vec::new());
    }
    let mut wire = Wire::open(target)?;
    let ask = |check: &Check| match (&check.expect, &check.same_as) {
        (None, None) => ask(&mut wire, check),
        _ => Ok(None),
    };
    checks.iter().map(ask).collect()
}

/// Asks all of them. A check that cannot be asked is wrong, and says why.
pub fn compare(target: &Target, checks: &[Check], before: &[Option<String>]) -> Vec<Outcome> {
    let mut wire = None;
    let outcome = |(check, before): (&Check, &Option<String>)| {
        let asked = ask_one(&mut wire, target, check, before);
        // After an error of the connection the next one needs another.
        let (expected, found) = match asked {
            Ok([expected, found]) => (expected, Ok(found)),
            Err(error) => {
                wire = None;
                (None, Err(format!("{error:#}")))
            }
        };
        Outcome { name: check.name.clone(), expected, found }
    };
    checks.iter().zip(before).map(outcome).collect()
}

/// What is expected, and what is found.
fn ask_one(
    wire: &mut Option<Wire>,
    target: &Target,
    check: &Check,
    before: &Option<String>,
) -> anyhow::Result<[Option<String>; 2]> {
    let wire = match wire {
        Some(wire) => wire,
        None => wire.insert(Wire::open(target)?),
    };
    let expected = match (&check.expect, &check.same_as) {
        (Some(value), _) => Some(value.clone()),
        (None, Some(other)) => wire.ask(other)?,
        (None, None) => before.clone(),
    };
    Ok([expected, ask(wire, check)?])
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
