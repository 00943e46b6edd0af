//! A key of the configuration: what it takes, how it is set and shown. The file, the flags, the help, the reference and
//! the README are all driven by the same tables of keys, so that they agree.

use std::sync::LazyLock;

use super::form::{Form, Show};
use super::given::{Given, Refusal};
use super::problem::{Place, Problem, Problems};

type Set<T> = Box<dyn Fn(&mut T, &Given) -> Result<(), Refusal> + Send + Sync>;

/// One key of a table over `T`.
pub struct Key<T: 'static> {
    /// With its section and a dot before it, if it has a section.
    pub name: &'static str,
    /// The values allowed, in words.
    pub allowed: String,
    /// Its purpose, in one sentence.
    pub about: &'static str,
    /// The paper's technique that it switches, if any.
    pub paper: &'static str,
    pub set: Set<T>,
    /// Its value as written in a file; `None` when it is not set.
    pub show: Show<T>,
}

pub type Keys<T> = LazyLock<Vec<Key<T>>>;

impl<T> Key<T> {
    /// A key of a field: its name, its purpose, and the technique.
    pub fn new<V: 'static>(
        [name, about, paper]: [&'static str; 3],
        Form { allowed, read, show }: Form<V>,
        field: fn(&T) -> &V,
        field_mut: fn(&mut T) -> &mut V,
    ) -> Key<T> {
        let set = move |target: &mut T, given: &Given| read(given).map(|value| *field_mut(target) = value);
        let show = move |target: &T| show(field(target));
        Key { name, allowed, about, paper, set: Box::new(set), show: Box::new(show) }
    }
}

/// A table of keys. Each is called as its field, or `NAME as FIELD`; then follow its form, its purpose, and the paper's
/// technique that it switches, if any.
macro_rules! keys {
    ($of:ident: $($($name:ident).+ $(as $($field:ident).+)?: $form:expr, $about:literal $(, $paper:literal)?;)+) => {
        LazyLock::new(|| vec![$(
            Key::new(
                [stringify!($($name).+), $about, concat!($($paper)?)],
                $form,
                |target: &$of| &keys!(@ target $($name).+ $(as $($field).+)?),
                |target: &mut $of| &mut keys!(@ target $($name).+ $(as $($field).+)?),
            )
        ),+])
    };
    (@ $target:ident $($name:ident).+) => { $target.$($name).+ };
    (@ $target:ident $($name:ident).+ as $($field:ident).+) => { $target.$($field).+ };
}
pub(super) use keys;

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
    let names = table.iter().map(|key| key.name);
    let Some(key) = table.iter().find(|key| key.name == entry.key) else {
        let is_empty = is_empty_section(entry, names.clone());
        return if is_empty { Ok(()) } else { Err(unknown(&entry.place, shown, &entry.key, names)) };
    };
    (key.set)(target, &entry.given).map_err(|refusal| {
        let what = match refusal {
            Refusal::NotAllowed => format!("= {} is not allowed", entry.given),
            Refusal::Because(why) => format!("= {} {why}", entry.given),
        };
        Problem::new(&entry.place, shown, what).allowed(&*key.allowed)
    })
}

/// Whether `entry` is a section of the `known` keys, and has none of them, as where all are commented out.
pub fn is_empty_section<'a>(entry: &Entry, mut known: impl Iterator<Item = &'a str>) -> bool {
    let is_in_it = |name: &str| name.strip_prefix(&*entry.key).is_some_and(|rest| rest.starts_with('.'));
    entry.given == Given::TABLE && known.any(is_in_it)
}

/// Applies the entries of a table that has a name, and says whether none was refused. `shown` is a key's name in
/// messages.
pub fn apply_all<T>(
    table: &[Key<T>],
    target: &mut T,
    entries: &[Entry],
    shown: impl Fn(&T, &str) -> String,
    problems: &mut Problems,
) -> bool {
    // The name first: it is part of every message.
    let (names, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.key == "name");
    let mut is_whole = true;
    for entry in names.into_iter().chain(rest) {
        let shown = shown(target, &entry.key);
        is_whole &= problems.note(apply(table, target, entry, &shown)).is_some();
    }
    is_whole
}

/// The name in messages of a key of a table, such as an export, by the table's own name if it has one.
pub fn shown(table: &str, name: Option<&str>, key: &str) -> String {
    name.map_or_else(|| format!("{table} {key}"), |name| format!("{table} {name:?} {key}"))
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

/// The known word nearest to a misspelt one, if it is near. `-` and `_` are the same.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase().replace('_', "-");
    known
        .map(|word| (word, strsim::damerau_levenshtein(&given, &word.replace('_', "-"))))
        .min_by_key(|(_, distance)| *distance)
        .filter(|(word, distance)| *distance <= (word.len() / 3).max(1))
        .map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_find_the_nearest_and_others_none() {
        let known = || ["ws-table2", "ws-table3", "mp-table1"].into_iter();
        assert_eq!(nearest("ws-tabel3", known()), Some("ws-table3"));
        assert_eq!(nearest("WS_TABLE3", known()), Some("ws-table3"));
        assert_eq!(nearest("nonsense", known()), None);
        assert_eq!(nearest("disk.rmp", ["disk.rpm"].into_iter()), Some("disk.rpm"));
    }
}
