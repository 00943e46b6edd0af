//! How a module says what its functions take and return: lines of text in the custom section [`SECTION`], which the
//! guest crate's macro writes and a person can read:
//!
//! ```text
//! transfer(payer bigint, payee bigint, amount bigint) returns bigint
//! note(account bigint, words text null)
//! ```
//!
//! `null` after a type: NULL may be given, or be returned.

use thiserror::Error;

use crate::{Argument, Signature, Type};

/// The custom section's name.
pub const SECTION: &str = "awase";

/// What a module's exports of functions begin with, so that no linker takes one for a function of a library with the same name
/// (`round`, `memcmp`), or for the memory. Modules may do without.
pub(super) const EXPORT: &str = "awase:";

/// Longest name of a function or an argument, as in PostgreSQL. Bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Arguments of a function, at most.
pub const ARGUMENTS_MAX: usize = 32;

/// A function as its module describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub signature: Signature,
    /// Of each argument, whether it may be NULL.
    pub nullable: Vec<bool>,
    /// Whether it may return NULL.
    pub returns_null: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DescriptionError {
    #[error("the section \"{SECTION}\" is not text in UTF-8")]
    NotText,
    #[error("{0:?} does not describe a function; as in: transfer(payer bigint, payee bigint) returns bigint")]
    Syntax(String),
    #[error(
        "{0:?} cannot be a name: lowercase letters, digits and _, no digit at the beginning, at most {NAME_BYTES_MAX} bytes"
    )]
    Name(String),
    #[error("{0:?} is no type; types are boolean, bigint, double precision, text and bytea")]
    Type(String),
    #[error("function {0} has two arguments of the name {1}")]
    ArgumentTwice(String, String),
    #[error("function {0} has more than {ARGUMENTS_MAX} arguments")]
    Arguments(String),
}

/// All functions of the section's text, in its order.
pub(super) fn parse(section: &[u8]) -> Result<Vec<Description>, DescriptionError> {
    let text = std::str::from_utf8(section).map_err(|_| DescriptionError::NotText)?;
    // Linkers may put zeroes between what they join.
    let lines = text.split(['\n', '\0']).map(str::trim).filter(|line| !line.is_empty());
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<Description, DescriptionError> {
    let syntax = || DescriptionError::Syntax(line.to_owned());
    let (name, rest) = line.split_once('(').ok_or_else(syntax)?;
    let (inside, after) = rest.split_once(')').ok_or_else(syntax)?;
    let name = check_name(name.trim())?.to_owned();
    let mut arguments: Vec<Argument> = Vec::new();
    let mut nullable = Vec::new();
    // A comma may be at the end, too.
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    let pieces = inside.split(',').map(str::trim);
    for piece in pieces.filter(|_| !inside.is_empty()) {
        let (argument, of) = piece.split_once(' ').ok_or_else(syntax)?;
        let argument = check_name(argument)?;
        if arguments.iter().any(|other| other.name == argument) {
            return Err(DescriptionError::ArgumentTwice(name, argument.to_owned()));
        }
        let (of, may_be_null) = parse_type(of)?;
        arguments.push(Argument { name: argument.to_owned(), of });
        nullable.push(may_be_null);
    }
    if arguments.len() > ARGUMENTS_MAX {
        return Err(DescriptionError::Arguments(name));
    }
    let (returns, returns_null) = match after.trim() {
        "" => (None, false),
        after => {
            let (of, null) = parse_type(after.strip_prefix("returns ").ok_or_else(syntax)?)?;
            (Some(of), null)
        }
    };
    Ok(Description { signature: Signature { name, arguments, returns }, nullable, returns_null })
}

/// A type, and whether NULL is possible.
fn parse_type(text: &str) -> Result<(Type, bool), DescriptionError> {
    let text = text.trim();
    let (name, null) = text.strip_suffix(" null").map_or((text, false), |name| (name.trim_end(), true));
    let all = [Type::Bool, Type::BigInt, Type::DoublePrecision, Type::Text, Type::Bytea];
    let of = all.into_iter().find(|of| of.to_string() == name);
    Ok((of.ok_or_else(|| DescriptionError::Type(name.to_owned()))?, null))
}

/// An identifier that SQL folds to itself, so that clients need no quotation marks.
pub(super) fn check_name(name: &str) -> Result<&str, DescriptionError> {
    let mut bytes = name.bytes();
    let is_begin = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let is_right = bytes.next().is_some_and(is_begin) && bytes.all(|byte| is_begin(byte) || byte.is_ascii_digit());
    if is_right && name.len() <= NAME_BYTES_MAX { Ok(name) } else { Err(DescriptionError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_one(text: &str) -> Result<Description, DescriptionError> {
        parse(text.as_bytes()).map(|mut all| all.remove(0))
    }

    #[test]
    fn a_signature_is_read_as_it_is_shown() {
        for text in [
            "transfer(payer bigint, payee bigint, amount bigint) returns bigint",
            "f() returns double precision",
            "g(a boolean, b text, c bytea)",
        ] {
            let description = parse_one(text).unwrap();
            let shown = description.signature.to_string();
            assert_eq!(shown.strip_suffix(" returns void").unwrap_or(&shown), text);
        }
    }

    #[test]
    fn null_is_possible_only_where_it_is_said() {
        let description = parse_one("f(a text null, b bigint) returns double precision null").unwrap();
        assert_eq!((description.nullable, description.returns_null), (vec![true, false], true));
        assert_eq!(description.signature.returns, Some(Type::DoublePrecision));
    }

    #[test]
    fn what_is_wrong_in_a_section_is_named() {
        for (text, wrong) in [
            ("f", "\"f\" does not describe a function"),
            ("f(a bigint", "does not describe a function"),
            ("f(a) returns bigint", "does not describe a function"),
            ("f(a bigint) bigint", "does not describe a function"),
            ("F()", "\"F\" cannot be a name"),
            ("1f()", "\"1f\" cannot be a name"),
            ("f(a integer)", "\"integer\" is no type"),
            ("f(a bigint, a text)", "two arguments of the name a"),
            ("f(a bigint,,)", "does not describe a function"),
        ] {
            let error = parse_one(text).unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
        assert_eq!(parse(b"\xff"), Err(DescriptionError::NotText));
        let many: Vec<String> = (0..=ARGUMENTS_MAX).map(|index| format!("a{index} bigint")).collect();
        assert!(matches!(parse_one(&format!("f({})", many.join(", "))), Err(DescriptionError::Arguments(_))));
        assert!(matches!(parse_one(&format!("{}()", "f".repeat(64))), Err(DescriptionError::Name(_))));
    }

    #[test]
    fn a_comma_may_follow_the_last_argument() {
        assert_eq!(parse_one("f(a text, b bigint, )"), parse_one("f(a text, b bigint)"));
        assert!(parse_one("f(,)").unwrap().signature.arguments.is_empty());
    }

    #[test]
    fn linkers_may_join_lines_with_zeroes() {
        assert_eq!(parse(b"f()\n\0\0g()\n\0").unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn no_section_makes_it_panic(section in proptest::collection::vec(any::<u8>(), 0..200), text in "[a-z(), \n]{0,60}") {
            let _ = parse(&section);
            let _ = parse(text.as_bytes());
        }
    }
}
