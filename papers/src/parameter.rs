//! The parameters of an experiment: numbers, each with unit, range and source.

pub mod sheet;

use std::ops::RangeInclusive;

use serde::Deserialize;
use thiserror::Error;

/// A text that lives as long as the program.
pub type Text = &'static str;

/// Where a number comes from: kinds that a reader can check.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The paper that the experiment is about; where in it.
    Paper(#[serde(deserialize_with = "sheet::text")] Text),
    /// A document, page or function that was looked up for this number.
    Source(#[serde(deserialize_with = "sheet::text")] Text),
    /// A document that is known to have it, but was not looked up.
    Cited(#[serde(deserialize_with = "sheet::text")] Text),
    /// Follows from others by arithmetic; how.
    Derived(#[serde(deserialize_with = "sheet::text")] Text),
    /// Of the run, not of the machine: how long, how often, which variant; why.
    Setup(#[serde(deserialize_with = "sheet::text")] Text),
    /// Nobody published it, or it is only remembered: the reason, and the range that is plausible.
    Judged(#[serde(deserialize_with = "sheet::text")] Text),
    /// A number or mechanism chosen because it fits; on which cells, and what speaks against it.
    Inferred(#[serde(deserialize_with = "sheet::text")] Text),
    /// Fitted on one cell of the table; which. At most one a table.
    Fitted(#[serde(deserialize_with = "sheet::text")] Text),
}

impl Origin {
    /// As reports name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Origin::Paper(_) => "paper",
            Origin::Source(_) => "source",
            Origin::Cited(_) => "cited",
            Origin::Derived(_) => "derived",
            Origin::Setup(_) => "setup",
            Origin::Judged(_) => "judged",
            Origin::Inferred(_) => "inferred",
            Origin::Fitted(_) => "fitted",
        }
    }

    pub fn text(&self) -> Text {
        match self {
            Origin::Paper(text)
            | Origin::Source(text)
            | Origin::Cited(text)
            | Origin::Derived(text)
            | Origin::Setup(text)
            | Origin::Judged(text)
            | Origin::Inferred(text)
            | Origin::Fitted(text) => text,
        }
    }

    /// Could somebody else have taken another number with as much reason?
    pub fn is_free(&self) -> bool {
        matches!(self, Origin::Judged(_) | Origin::Inferred(_) | Origin::Fitted(_))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    /// Such as `ms`, `KB/s`; empty for a count.
    pub unit: &'static str,
    pub default: f64,
    /// What the model accepts.
    pub range: RangeInclusive<f64>,
    pub origin: Origin,
    /// What may be true of the machine, for a number that is [free](Origin::is_free); else its value alone.
    pub plausible: RangeInclusive<f64>,
}

impl Parameter {
    /// Is it a count, or a switch?
    pub fn is_whole(&self) -> bool {
        let ends = [self.default, *self.plausible.start(), *self.plausible.end()];
        self.unit.is_empty() && ends.iter().all(|end| end.fract() == 0.0)
    }
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum ParameterError {
    #[error("{experiment} has no parameter {name:?}; `awase lab show {experiment}` lists them")]
    Unknown { experiment: &'static str, name: String },
    #[error("{name} = {value} is out of range: {min} to {max} {unit}")]
    OutOfRange { name: &'static str, value: f64, min: f64, max: f64, unit: &'static str },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    experiment: &'static str,
    all: Vec<(Parameter, f64)>,
}

impl Parameters {
    pub fn new(experiment: &'static str, all: Vec<Parameter>) -> Self {
        let with_value = |parameter: Parameter| (parameter.default, parameter);
        Parameters { experiment, all: all.into_iter().map(with_value).map(|(value, of)| (of, value)).collect() }
    }

    /// # Panics
    /// See [`sheet::named`].
    pub fn of_sheet(name: &'static str) -> Self {
        Parameters::new(name, sheet::named(name).parameters.clone())
    }

    /// # Errors
    /// When there is none of that name, or the value is out of its range.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), ParameterError> {
        let Some((parameter, set)) = self.all.iter_mut().find(|(parameter, _)| parameter.name == name) else {
            return Err(ParameterError::Unknown { experiment: self.experiment, name: name.to_owned() });
        };
        if !parameter.range.contains(&value) {
            return Err(ParameterError::OutOfRange {
                name: parameter.name,
                value,
                min: *parameter.range.start(),
                max: *parameter.range.end(),
                unit: parameter.unit,
            });
        }
        *set = value;
        Ok(())
    }

    /// # Panics
    /// When the experiment has none of that name: its own bug, which its first run shows.
    pub fn get(&self, name: &str) -> f64 {
        let found = self.all.iter().find(|(parameter, _)| parameter.name == name);
        found.unwrap_or_else(|| panic!("{} has no parameter {name}", self.experiment)).1
    }

    /// Are more than half of these set? A machine with a few changed numbers is still that machine.
    pub fn are_mostly(&self, machine: &[(&str, f64)]) -> bool {
        let is_set = |(name, value): &&(&str, f64)| self.iter().any(|(of, now)| of.name == *name && now == *value);
        machine.iter().filter(is_set).count() * 2 > machine.len()
    }

    /// All with their values, in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (&Parameter, f64)> {
        self.all.iter().map(|(parameter, value)| (parameter, *value))
    }

    /// Those that differ from their defaults.
    pub fn changed(&self) -> impl Iterator<Item = (&Parameter, f64)> {
        self.iter().filter(|(parameter, value)| parameter.default != *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        let rpm = Parameter {
            name: "disk.rpm",
            about: "rotations a minute",
            unit: "rpm",
            default: 3600.0,
            range: 60.0..=20_000.0,
            origin: Origin::Judged("for this test"),
            plausible: 3000.0..=3600.0,
        };
        Parameters::new("ws-table9", vec![rpm])
    }

    #[test]
    fn a_value_that_is_set_is_returned_and_reported_as_changed() {
        let mut parameters = parameters();
        assert_eq!(parameters.get("disk.rpm"), 3600.0);
        assert_eq!(parameters.changed().count(), 0);
        parameters.set("disk.rpm", 7200.0).expect("in range");
        assert_eq!(parameters.get("disk.rpm"), 7200.0);
        assert_eq!(parameters.changed().count(), 1);
    }

    #[test]
    fn an_unknown_name_or_value_out_of_range_is_reported_with_what_is_allowed() {
        let mut parameters = parameters();
        let unknown = parameters.set("disk.rmp", 1.0).expect_err("unknown").to_string();
        assert!(unknown.contains("disk.rmp") && unknown.contains("awase lab show ws-table9"), "{unknown}");
        let out = parameters.set("disk.rpm", 5.0).expect_err("too slow").to_string();
        assert!(out.contains("60 to 20000 rpm"), "{out}");
        assert!(parameters.set("disk.rpm", f64::NAN).is_err());
    }
}
