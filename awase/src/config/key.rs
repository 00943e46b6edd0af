//! A key of the configuration: what it takes, how it is set and shown. Tables of keys drive everything that has to
//! agree: the file, the flags, the help, the reference and the README.

use super::given::{Given, Refusal};
use super::problem::{Place, Problem};

/// One key of a table over `T`.
pub struct Key<T: 'static> {
    /// Its name, with its section before a dot if it has one.
    pub name: &'static str,
    /// What may be given, as a person would say it.
    pub allowed: &'static str,
    /// What it is for, in one sentence.
    pub about: &'static str,
    /// Which technique of which paper it switches; empty for most.
    pub paper: &'static str,
    /// Reads a value and sets it.
    pub set: fn(&mut T, &Given) -> Result<(), Refusal>,
    /// Its value as it would be written in a file; `None` when it is not set.
    pub show: fn(&T) -> Option<String>,
}

/// A key as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key, with its sections before dots.
    pub key: String,
    pub given: Given,
    pub place: Place,
}

/// Sets in `target` what `entry` says. `shown` is the key's name in messages.
///
/// # Errors
/// When there is no such key (the nearest is proposed) or the value is not allowed.
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

/// The problem that `given` is none of `known`. `shown` is its name in messages.
pub fn unknown<'a>(place: &Place, shown: &str, given: &str, known: impl Iterator<Item = &'a str> + Clone) -> Problem {
    match nearest(given, known.clone()) {
        Some(near) => Problem::new(place, shown, format!("is not a known key; did you mean {near:?}?")),
        None => {
            let known: Vec<_> = known.collect();
            Problem::new(place, shown, "is not a known key").allowed(known.join(", "))
        }
    }
}

/// The word that was probably meant.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let flat = given.replace('-', "_").to_lowercase();
    known
        .map(|word| (word, strsim::damerau_levenshtein(&flat, word)))
        .min_by_key(|(_, distance)| *distance)
        .filter(|(word, distance)| *distance <= (word.len() / 3).max(1))
        .map(|(word, _)| word)
}
