//! Whether the database is right after the load.

use anyhow::{Context as _, anyhow};

use super::mix::Check;
use super::wire::{Refused, Target, Wire};

/// SQLSTATEs of queries that are wrong in themselves, and not because of what the database has now.
const WRONG_QUERY: &str = "42";

pub struct Outcome {
    pub name: String,
    pub expected: Option<String>,
    pub found: Result<Option<String>, NotAsked>,
}

/// Why a check has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAsked {
    Refused(String),
    Failed(String),
}

impl NotAsked {
    pub fn why(&self) -> &str {
        let (NotAsked::Refused(why) | NotAsked::Failed(why)) = self;
        why
    }
}

impl From<anyhow::Error> for NotAsked {
    fn from(error: anyhow::Error) -> NotAsked {
        let why = format!("{error:#}");
        if error.is::<Refused>() { NotAsked::Refused(why) } else { NotAsked::Failed(why) }
    }
}

impl Outcome {
    pub fn is_right(&self) -> bool {
        self.found.as_ref() == Ok(&self.expected)
    }
}

/// The values of those checks whose value must not change. The others are asked, too, so that mistakes are told at once.
///
/// # Errors
/// If the server cannot be reached, refuses one of the first, or does not understand one of the others.
pub fn ask_before(target: &Target, checks: &[Check]) -> anyhow::Result<Vec<Option<String>>> {
    if checks.is_empty() {
        return Ok(Vec::new());
    }
    let mut wire = Wire::open(target)?;
    let ask = |check: &Check| {
        if check.expect.is_none() && check.same_as.is_none() {
            return ask(&mut wire, check);
        }
        let sql = check.over.map_or_else(|| check.sql.clone(), |[from, _]| with_number(&check.sql, from));
        understood(wire.ask(&sql))?;
        check.same_as.as_ref().map_or(Ok(()), |other| understood(wire.ask(other)))?;
        Ok(None)
    };
    checks.iter().map(ask).collect()
}

/// What is refused before the load may be right after it, unless it is not understood.
fn understood(asked: anyhow::Result<Option<String>>) -> anyhow::Result<()> {
    match asked {
        Err(error) => match error.downcast_ref::<Refused>() {
            Some(refused) if !refused.refusal.code.starts_with(WRONG_QUERY) => Ok(()),
            _ => Err(error),
        },
        Ok(_) => Ok(()),
    }
}

/// Asks all of them. A check that cannot be asked is wrong, and says why.
pub fn compare(target: &Target, checks: &[Check], before: &[Option<String>]) -> Vec<Outcome> {
    let mut wire = None;
    let outcome = |(check, before): (&Check, &Option<String>)| {
        let mut expected = check.expect.as_ref().or(before.as_ref()).cloned();
        let found = ask_one(&mut wire, target, check, &mut expected).map_err(|error| {
            // After an error of the connection the next one needs another.
            wire = None;
            NotAsked::from(error)
        });
        Outcome { name: check.name.clone(), expected, found }
    };
    checks.iter().zip(before).map(outcome).collect()
}

/// What is found; what is expected, where that has to be asked, too.
fn ask_one(
    wire: &mut Option<Wire>,
    target: &Target,
    check: &Check,
    expected: &mut Option<String>,
) -> anyhow::Result<Option<String>> {
    let wire = match wire {
        Some(wire) => wire,
        None => wire.insert(Wire::open(target)?),
    };
    if let Some(other) = &check.same_as {
        *expected = wire.ask(other)?;
    }
    ask(wire, check)
}

/// The value of its query.
fn ask(wire: &mut Wire, check: &Check) -> anyhow::Result<Option<String>> {
    let Some([from, to]) = check.over else { return wire.ask(&check.sql) };
    let mut sum = 0_i128;
    for number in from..=to {
        let sql = with_number(&check.sql, number);
        let value = wire.ask(&sql)?.with_context(|| format!("{sql:?} has no value"))?;
        let value: i128 = value.parse().map_err(|_| anyhow!("{sql:?} is {value:?}, which cannot be added"))?;
        sum += value;
    }
    Ok(Some(sum.to_string()))
}

fn with_number(sql: &str, number: i64) -> String {
    sql.replace("$1", &number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_of_a_server_that_is_gone_has_failed_and_says_what_was_expected() {
        let target = Target::new(Some("/nowhere/.s.PGSQL.5433"), "bank", "awase").expect("a socket");
        let check = |expect: Option<&str>| Check {
            name: "c".to_owned(),
            sql: "SELECT total()".to_owned(),
            over: None,
            expect: expect.map(str::to_owned),
            same_as: None,
        };
        let found = compare(&target, &[check(Some("7")), check(None)], &[None, Some("8".to_owned())]);
        let expected: Vec<_> = found.iter().map(|outcome| outcome.expected.as_deref()).collect();
        assert_eq!(expected, [Some("7"), Some("8")]);
        assert!(found.iter().all(|outcome| matches!(outcome.found, Err(NotAsked::Failed(_)))));
    }
}
