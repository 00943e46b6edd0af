//! Problems of a configuration, and how each can be corrected.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// Where a value was set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    #[default]
    Default,
    Line {
        file: String,
        /// Counted from 1; 0 means the whole file.
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

#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub place: Place,
    /// With its section; empty when the problem is not with one key.
    pub key: String,
    pub what: String,
    /// What is allowed instead; may be empty.
    pub allowed: String,
}

impl Problem {
    /// `what` continues a sentence that begins with the key.
    pub fn new(place: &Place, key: impl Into<String>, what: impl Into<String>) -> Self {
        Problem { place: place.clone(), key: key.into(), what: what.into(), allowed: String::new() }
    }

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

/// All problems; never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// What is wrong with the command line of `command`.
    pub fn of_command(command: &str, what: impl fmt::Display) -> Problems {
        Problem::new(&Place::Flag(command.into()), "", what.to_string()).into()
    }

    /// `value`, if there are no problems.
    ///
    /// # Errors
    /// All problems, in the order in which they were found.
    pub fn or<T>(self, value: T) -> Result<T, Problems> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Records, for each item, its problem with the first before it that has one, of those with the same `key`: there may
    /// be thousands of items.
    pub fn refuse_pairs<'a, T, K: Eq + Hash>(
        &mut self,
        items: &'a [T],
        key: impl Fn(&'a T) -> K,
        problem: impl Fn(&T, &T) -> Option<Problem>,
    ) {
        let mut before: HashMap<K, Vec<&T>> = HashMap::new();
        for item in items {
            let same = before.entry(key(item)).or_default();
            self.0.extend(same.iter().find_map(|first| problem(first, item)));
            same.push(item);
        }
    }

    /// Records the problems of a failed result.
    pub fn note_all<T>(&mut self, result: Result<T, Problems>) -> Option<T> {
        result.map_err(|problems| self.0.extend(problems.0)).ok()
    }

    /// Records the problem of a failed result.
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
    /// The first problem and the number of the others: they are corrected one at a time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return f.write_str("no problems") };
        first.fmt(f)?;
        match self.0.len() - 1 {
            0 => Ok(()),
            more => write!(f, " ({more} more; `awase check` lists all)"),
        }
    }
}
