//! A key of the configuration: what it takes, how it is set and shown. The file, the flags, the help, the reference and
//! the README are all driven by the same tables of keys, so that they agree.

use super::given::{Given, Refusal};
use super::problem::{Place, Problem};

/// One key of a table over `T`.
pub struct Key<T: 'static> {
    /// With its section and a dot before it, if it has a section.
    pub name: &'static str,
    /// The values allowed, in words.
    pub allowed: &'static str,
    /// Its purpose, in one sentence.
    pub about: &'static str,
    /// The paper's technique that it switches, if any.
    pub paper: &'static str,
    pub set: fn(&mut T, &Given) -> Result<(), Refusal>,
    /// Its value as written in a file; `None` when it is not set.
    pub show: fn(&T) -> Option<String>,
}

/// A key and its value, as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// With its sections and dots before it.
    pub key: String,
    pub given: Given,
    pub place: Place,
}

/// Applies `entry` to `target`. `shown` is the key's name in messages.
///
/// # Errors
/// When there is no such key (the message proposes the nearest) or the value is not allowed.
pub fn apply<T>(table: &[Key<T>], target: &mut T, entry: &Entry, shown: &str) -> Result<(), Problem> {
    let Some(key) = table.iter().find(|key| key.name == entry.key) else {
        return Err(unknown(&entry.place, shown, &entry.key, table.iter().map(|key| key.name)));
    };
    (key.set)(target, &entry.given).map_err(|refusal| {
        let what = match refusal {
            Refusal::NotAllowed => format!("= {} is not allowed", entry.given),
            Refusal::Because(why) => format!("= {} {why}", entry.given),
        };
        Problem::new(&entry.place, shown, what).allowed(key.allowed)
    })
}

/// The problem that `given` is not among `known`. `shown` is its name in messages.
pub fn unknown<'a>(place: &Place, shown: &str, given: &str, known: impl Iterator<Item = &'a str> + Clone) -> Problem {
    match nearest(given, known.clone()) {
        Some(near) => Problem::new(place, shown, format!("is not a known key; did you mean {near:?}?")),
        None => {
            let known: Vec<_> = known.collect();
            Problem::new(place, shown, "is not a known key").allowed(known.join(", "))
        }
    }
}

pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let flat = given.replace('-', "_").to_lowercase();
    known
        .map(|word| (word, strsim::damerau_levenshtein(&flat, word)))
        .min_by_key(|(_, distance)| *distance)
        .filter(|(word, distance)| *distance <= (word.len() / 3).max(1))
        .map(|(word, _)| word)
}
