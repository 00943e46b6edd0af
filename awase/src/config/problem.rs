//! What is wrong with a configuration, said so that it can be put right.

use std::fmt;

/// Where a value was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nowhere: it is the default.
    #[default]
    Default,
    Line {
        /// The file, as it was named.
        file: String,
        /// Counted from 1; 0 when the file as a whole is meant.
        line: usize,
    },
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Default => f.write_str("default configuration"),
            Place::Line { file, line: 0 } => f.write_str(file),
            Place::Line { file, line } => write!(f, "{file}:{line}"),
            Place::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub place: Place,
    /// The key, with its section; empty when no key is to blame.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
    /// What may be given instead; empty when that does not help.
    pub allowed: String,
}

impl Problem {
    /// A problem with one key. `what` goes on after its name.
    pub fn new(place: &Place, key: impl Into<String>, what: impl Into<String>) -> Self {
        Problem { place: place.clone(), key: key.into(), what: what.into(), allowed: String::new() }
    }

    /// The same, saying what may be given instead.
    pub fn allowed(self, allowed: impl Into<String>) -> Self {
        Problem { allowed: allowed.into(), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{} ", self.key)?;
        }
        f.write_str(&self.what)?;
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        Ok(())
    }
}

/// All that is wrong; never empty when it is an error.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// `value`, if nothing is wrong.
    ///
    /// # Errors
    /// All problems, in the order in which they were found.
    pub fn or<T>(self, value: T) -> Result<T, Problems> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Takes note of several problems and goes on.
    pub fn note_all<T>(&mut self, result: Result<T, Problems>) -> Option<T> {
        result.map_err(|problems| self.0.extend(problems.0)).ok()
    }

    /// Takes note of a problem and goes on.
    pub fn note<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Problems(vec![problem])
    }
}

impl fmt::Display for Problems {
    /// The first problem, and how many more there are: a person mends one at a time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return f.write_str("nothing is wrong") };
        first.fmt(f)?;
        match self.0.len() - 1 {
            0 => Ok(()),
            more => write!(f, " ({more} more; `awase check` lists all)"),
        }
    }
}
