//! The forms of values: how each is described, read and shown.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::given::{Given, Refusal, parse_bytes, parse_duration, show_bytes, show_duration};

pub type Read<V> = Box<dyn Fn(&Given) -> Result<V, Refusal> + Send + Sync>;
pub type Show<V> = Box<dyn Fn(&V) -> Option<String> + Send + Sync>;

pub struct Form<V> {
    /// The values allowed, in words.
    pub allowed: String,
    pub read: Read<V>,
    /// As written in a file; `None` when it is not set.
    pub show: Show<V>,
}

impl<V: 'static> Form<V> {
    pub fn new(
        allowed: impl Into<String>,
        read: impl Fn(&Given) -> Result<V, Refusal> + Send + Sync + 'static,
        show: impl Fn(&V) -> String + Send + Sync + 'static,
    ) -> Form<V> {
        Form { allowed: allowed.into(), read: Box::new(read), show: Box::new(move |value| Some(show(value))) }
    }

    /// The same, of another type.
    pub fn map<U: 'static>(self, to: fn(V) -> U, from: fn(&U) -> Option<V>) -> Form<U> {
        let read = move |given: &Given| (self.read)(given).map(to);
        let show = move |value: &U| from(value).and_then(|value| (self.show)(&value));
        Form { allowed: self.allowed, read: Box::new(read), show: Box::new(show) }
    }

    /// What either form takes; refusals are those of `other`.
    pub fn or(self, other: Form<V>, allowed: impl Into<String>) -> Form<V> {
        let read = move |given: &Given| (self.read)(given).or_else(|_| (other.read)(given));
        let show = move |value: &V| (self.show)(value).or_else(|| (other.show)(value));
        Form { allowed: allowed.into(), read: Box::new(read), show: Box::new(show) }
    }

    /// Refuses values for the reason that `problem` returns.
    pub fn unless(self, problem: fn(&V) -> Option<String>) -> Form<V> {
        let read = move |given: &Given| {
            let value = (self.read)(given)?;
            problem(&value).map_or(Ok(value), |why| Err(Refusal::Because(why)))
        };
        Form { read: Box::new(read), ..self }
    }
}

/// One of a few values with names. `on` and `off` are the same as `true` and `false`.
pub fn named<V: Clone + PartialEq + Send + Sync + 'static>(names: impl Into<Vec<(V, &'static str)>>) -> Form<V> {
    let names = Arc::new(names.into());
    let bare = |name: &str| if matches!(name, "true" | "false") { name.to_owned() } else { quoted(&name) };
    let allowed: Vec<_> = names.iter().map(|(_, name)| bare(name)).collect();
    let all = Arc::clone(&names);
    let read = move |given: &Given| {
        let is_given = |name| match given {
            Given::Boolean(value) => matches!((value, name), (true, "true") | (false, "false" | "off")),
            Given::Text(text) => text == name || matches!((text.as_str(), name), ("on", "true") | ("off", "false")),
            _ => false,
        };
        all.iter().find(|(_, name)| is_given(name)).map(|(value, _)| value.clone()).ok_or(Refusal::NotAllowed)
    };
    let show = move |value: &V| names.iter().find(|(other, _)| other == value).map(|(_, name)| bare(name));
    Form { allowed: allowed.join(", "), read: Box::new(read), show: Box::new(show) }
}

pub fn on_off() -> Form<bool> {
    named([(true, "true"), (false, "false")])
}

pub fn number<N>(range: RangeInclusive<N>) -> Form<N>
where
    N: PartialOrd + Display + TryFrom<i128> + Send + Sync + 'static,
{
    let allowed = format!("a number from {} to {}", range.start(), range.end());
    let read = move |given: &Given| {
        let number: i128 = match given {
            Given::Integer(number) => *number,
            Given::Text(text) => text.parse().map_err(|_| Refusal::NotAllowed)?,
            _ => return Err(Refusal::NotAllowed),
        };
        within(N::try_from(number).ok(), &range, N::to_string)
    };
    Form::new(allowed, read, N::to_string)
}

/// A number of bytes, with or without a unit.
pub fn bytes(range: RangeInclusive<u64>, allowed: &str) -> Form<u64> {
    let read = move |given: &Given| {
        let bytes = match given {
            Given::Integer(number) => u64::try_from(*number).ok(),
            Given::Text(text) => Some(parse_bytes(text).ok_or(Refusal::NotAllowed)?),
            _ => return Err(Refusal::NotAllowed),
        };
        within(bytes, &range, |bytes| show_bytes(*bytes))
    };
    Form::new(allowed, read, |bytes| quoted(&show_bytes(*bytes)))
}

/// A length of time, with its unit.
pub fn time(range: RangeInclusive<Duration>, allowed: &str) -> Form<Duration> {
    let read = move |given: &Given| {
        let time = match given {
            Given::Integer(0) => Duration::ZERO,
            Given::Text(text) => parse_duration(text).ok_or(Refusal::NotAllowed)?,
            _ => return Err(Refusal::NotAllowed),
        };
        within(Some(time), &range, |time| show_duration(*time))
    };
    Form::new(allowed, read, |time| quoted(&show_duration(*time)))
}

/// `value`, if it is in `range`. `None` is outside of every range.
fn within<T: PartialOrd>(value: Option<T>, range: &RangeInclusive<T>, show: fn(&T) -> String) -> Result<T, Refusal> {
    let (low, high) = (show(range.start()), show(range.end()));
    let refusal = || Refusal::Because(format!("is not between {low} and {high}"));
    value.filter(|value| range.contains(value)).ok_or_else(refusal)
}

/// A text that is not empty, and what it means.
pub fn parsed<V: Display + 'static>(allowed: &str, parse: fn(&str) -> Result<V, Refusal>) -> Form<V> {
    Form::new(allowed, move |given| parse(given.filled_text()?), quoted)
}

/// A text that is not empty.
pub fn text(allowed: &str) -> Form<String> {
    parsed(allowed, |text| Ok(text.to_owned()))
}

pub fn path(allowed: &str) -> Form<PathBuf> {
    Form::new(allowed, |given| Ok(given.filled_text()?.into()), |path: &PathBuf| quoted(&path.display()))
}

/// A list, which the words of `form` describe.
pub fn list<V: 'static>(form: Form<V>) -> Form<Vec<V>> {
    let read = move |given: &Given| match given.items() {
        items if items.contains(&Given::Text(String::new())) => Err(Refusal::Because("holds an empty text".into())),
        items => items.iter().map(&form.read).collect(),
    };
    let show = move |values: &Vec<V>| {
        let values: Vec<_> = values.iter().filter_map(&form.show).collect();
        format!("[{}]", values.join(", "))
    };
    Form::new(form.allowed, read, show)
}

/// A list that is empty only when it is left out, which means all: its author would hardly mean that by `[]`.
pub fn filled<V: 'static>(form: Form<V>) -> Form<Vec<V>> {
    let Form { allowed, read, show } = list(form);
    let read = move |given: &Given| read(&Given::List(given.words()));
    let show = move |values: &Vec<V>| show(values).filter(|_| !values.is_empty());
    let form = Form { allowed, read: Box::new(read), show: Box::new(show) };
    form.unless(|values| values.is_empty().then(|| "is empty; leave it out for all clients".into()))
}

/// `"auto"`, which is `None`, or another value; `words` describe the former and continue with those of `form`.
pub fn auto<V: Clone + PartialEq + Send + Sync + 'static>(words: &str, form: Form<V>) -> Form<Option<V>> {
    let allowed = words.to_owned() + &form.allowed;
    named([(None, "auto")]).or(optional(form), allowed)
}

/// A value that may be left out.
pub fn optional<V: 'static>(form: Form<V>) -> Form<Option<V>> {
    let read = move |given: &Given| (form.read)(given).map(Some);
    let show = move |value: &Option<V>| value.as_ref().and_then(&form.show);
    Form { allowed: form.allowed, read: Box::new(read), show: Box::new(show) }
}

/// A number that is 0 when it is left out.
pub fn unless_zero<N: Default + PartialEq + 'static>(form: Form<N>) -> Form<N> {
    let show = move |value: &N| (form.show)(value).filter(|_| *value != N::default());
    Form { show: Box::new(show), ..form }
}

/// Text as in a file.
pub fn quoted(text: &impl ToString) -> String {
    toml::Value::String(text.to_string()).to_string()
}
