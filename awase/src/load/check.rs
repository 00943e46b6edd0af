//! Whether the database is right after the load.

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

/// The values of all checks.
///
/// # Errors
/// If the server cannot be reached or refuses one.
pub fn ask_all(target: &Target, checks: &[Check]) -> anyhow::Result<Vec<Option<String>>> {
    if checks.is_empty() {
        return Ok(Vec::new());
    }
    let mut wire = Wire::open(target)?;
    checks.iter().map(|check| wire.ask(&check.sql)).collect()
}

/// Asks again.
///
/// # Errors
/// As [`ask_all`].
pub fn compare(target: &Target, checks: &[Check], before: &[Option<String>]) -> anyhow::Result<Vec<Outcome>> {
    let after = ask_all(target, checks)?;
    let outcomes = checks.iter().zip(before).zip(after).map(|((check, before), found)| Outcome {
        name: check.name.clone(),
        expected: check.expect.clone().or_else(|| before.clone()),
        found,
    });
    Ok(outcomes.collect())
}
