//! A value as written in a file or flag, and the units of sizes and times.

use std::fmt;
use std::time::Duration;

/// A value before its type is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A string of the file, or the argument of a flag.
    Text(String),
    Integer(i128),
    Boolean(bool),
    List(Vec<Given>),
    /// A type that no key takes (a date, a fraction), by its name in messages.
    Other(&'static str),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// Not of the type that the key takes: the message says what is allowed.
    NotAllowed,
    /// Of the right type, yet impossible for this reason.
    Because(String),
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Given::Text(text) => write!(f, "{text:?}"),
            Given::Integer(number) => number.fmt(f),
            Given::Boolean(value) => value.fmt(f),
            Given::List(values) => {
                let values: Vec<_> = values.iter().map(Given::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Given::Other(what) => f.write_str(what),
        }
    }
}

impl Given {
    pub const TABLE: Given = Given::Other("a table");

    pub fn text(&self) -> Result<&str, Refusal> {
        match self {
            Given::Text(text) => Ok(text),
            _ => Err(Refusal::NotAllowed),
        }
    }

    /// A nonempty string.
    pub fn filled_text(&self) -> Result<&str, Refusal> {
        match self.text()? {
            "" => Err(Refusal::Because("is empty".into())),
            text => Ok(text),
        }
    }

    /// The items of an array, or of one string, split at commas. `"none"` and `""` are the empty list.
    pub fn items(&self) -> Vec<Given> {
        match self {
            Given::List(values) => values.clone(),
            Given::Text(text) if text.is_empty() || text == "none" => Vec::new(),
            Given::Text(text) => text.split(',').map(|part| Given::Text(part.trim().to_owned())).collect(),
            one => vec![one.clone()],
        }
    }

    /// The items, also split at spaces.
    pub fn words(&self) -> Vec<Given> {
        let split = |item| match item {
            Given::Text(text) => text.split_whitespace().map(|word| Given::Text(word.to_owned())).collect(),
            one => vec![one],
        };
        self.items().into_iter().flat_map(split).collect()
    }
}

/// Units of size, the largest first; `K` and `k` are `KiB`, and so on.
const BYTE_UNITS: [(&str, u64); 7] = [
    ("EiB", 1 << 60),
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Units of time, the largest first.
const TIME_UNITS: [(&str, u64); 5] =
    [("min", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Bytes of a size such as `1GiB`, `512M` or `4096`. All units are powers of 1024, as in qemu-img and nbdkit.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let factor = if unit.is_empty() { 1 } else { factor_of(unit, &BYTE_UNITS)? };
    number.checked_mul(factor)
}

/// A length of time such as `17ms`, `500us` or `2s`. Only `0` needs no unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let factor = if unit.is_empty() && number == 0 { 1 } else { factor_of(unit, &TIME_UNITS)? };
    Some(Duration::from_nanos(number.checked_mul(factor)?))
}

/// A size in the largest unit that needs no fraction.
pub fn show_bytes(bytes: u64) -> String {
    show_exact(bytes, &BYTE_UNITS).unwrap_or_else(|| bytes.to_string())
}

/// A length of time in the largest unit that needs no fraction.
pub fn show_duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    show_exact(ns, &TIME_UNITS).unwrap_or_else(|| "0s".into())
}

fn show_exact(value: u64, units: &[(&str, u64)]) -> Option<String> {
    let (unit, factor) = units.iter().find(|(_, factor)| value > 0 && value.is_multiple_of(*factor))?;
    Some(format!("{}{unit}", value / factor))
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn factor_of(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    let is_letter = |name: &str| name.strip_suffix("iB").is_some_and(|letter| letter.eq_ignore_ascii_case(unit));
    units.iter().find(|(name, _)| *name == unit || is_letter(name)).map(|(_, factor)| *factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_common_units() {
        for (text, bytes) in
            [("4096", 4096), ("1k", 1024), ("1KiB", 1024), ("3 MiB", 3 << 20), ("1G", 1 << 30), ("2TiB", 2 << 40)]
        {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in ["", "GiB", "1.5GiB", "-1", "1Gb", "1 G B", "20000000TiB", "99999999999999999999"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_needs_a_unit() {
        assert_eq!(parse_duration("17ms"), Some(Duration::from_millis(17)));
        assert_eq!(parse_duration("0"), Some(Duration::ZERO));
        assert_eq!(parse_duration("17"), None);
        assert_eq!(parse_duration("17 parsecs"), None);
    }

    #[test]
    fn sizes_and_times_survive_printing_and_parsing() {
        for bytes in [1, 511, 512, 4096, 1 << 20, (1 << 30) + 1024, 3 << 40, u64::MAX] {
            assert_eq!(parse_bytes(&show_bytes(bytes)), Some(bytes));
        }
        for ns in [0, 1, 17_000_000, 1_000_000_001, 60_000_000_000] {
            let duration = Duration::from_nanos(ns);
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
        }
    }
}
