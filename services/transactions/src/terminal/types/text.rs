//! Values as text.

use std::fmt::{Display, LowerExp, Write};

use bytes::BytesMut;

use super::{Refusal, SqlState};
use crate::{Type, Value};

/// # Errors
/// If `text` is not a value of this type; `name` is what the client calls it.
pub fn read(of: Type, name: &str, text: &str) -> Result<Value, Refusal> {
    let invalid =
        || Refusal::new(SqlState::INVALID_TEXT, format!("invalid input syntax for type {name}: {:?}", shown(text)));
    let out_of_range = || {
        let message = format!("value {:?} is out of range for type {name}", shown(text));
        Refusal::new(SqlState::OUT_OF_RANGE, message)
    };
    let trimmed = text.trim();
    match of {
        Type::Text => Ok(Value::Text(text.to_owned())),
        Type::Bool => boolean(trimmed).map(Value::Bool).ok_or_else(invalid),
        Type::BigInt => match trimmed.parse() {
            Ok(number) => Ok(Value::BigInt(number)),
            Err(_) if is_whole(trimmed) => Err(out_of_range()),
            Err(_) => Err(invalid()),
        },
        // What Rust reads besides ("nan", "inf", "infinity" in any case) PostgreSQL reads, too.
        Type::DoublePrecision => match trimmed.parse() {
            Ok(number) if is_beyond(number, trimmed) => Err(out_of_range()),
            Ok(number) => Ok(Value::DoublePrecision(number)),
            Err(_) => Err(invalid()),
        },
        Type::Bytea => bytes(text).map(Value::Bytea).ok_or_else(|| {
            Refusal::new(SqlState::INVALID_TEXT, format!("invalid input syntax for type bytea: {:?}", shown(text)))
        }),
    }
}

/// A text from a client is quoted in messages only as far as somebody would read.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// PostgreSQL takes unambiguous prefixes, too.
fn boolean(text: &str) -> Option<bool> {
    let text = text.to_ascii_lowercase();
    let is_prefix = |word: &str, least: usize| text.len() >= least && word.starts_with(text.as_str());
    match text.as_str() {
        "on" | "1" => Some(true),
        "0" => Some(false),
        _ if is_prefix("true", 1) || is_prefix("yes", 1) => Some(true),
        _ if is_prefix("false", 1) || is_prefix("no", 1) || is_prefix("off", 2) => Some(false),
        _ => None,
    }
}

/// Whether `text`, which was read as `number`, means one that is too large or too small.
fn is_beyond(number: f64, text: &str) -> bool {
    let digits = text.split(['e', 'E']).next().unwrap_or(text);
    (number.is_infinite() || number == 0.0) && digits.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
}

/// The integer that a decimal number is. `None`: it is none of 64 bits, or no number.
pub fn whole(text: &str) -> Option<i64> {
    let (decimals, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (before, behind) = decimals.split_once('.').unwrap_or((decimals, ""));
    let digits = format!("{before}{behind}");
    let is_digit = |byte: u8| byte.is_ascii_digit();
    if !digits.bytes().any(is_digit) || !behind.bytes().all(is_digit) {
        return None;
    }
    let significant = digits.trim_end_matches('0');
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(behind.len() as i64)?;
    let power = exponent.checked_add((digits.len() - significant.len()) as i64)?;
    match significant {
        "" | "-" | "+" => Some(0),
        _ => significant.parse::<i64>().ok()?.checked_mul(10_i64.checked_pow(power.try_into().ok()?)?),
    }
}

/// A numeric that was read as `number`: as that if it is written so, else as its text. A double has 15 to 17 digits.
///
/// # Errors
/// If it has too many for that, too.
pub fn numeric(number: f64, text: &str) -> Result<Value, Refusal> {
    /// As PostgreSQL's `NUMERIC_MAX_PRECISION`.
    const DIGITS_MAX: usize = 1000;
    let value = Value::DoublePrecision(number);
    if !number.is_finite() {
        return Ok(value);
    }
    let plain = plain(text);
    if plain.len() > DIGITS_MAX {
        let message = format!("a numeric has more than {DIGITS_MAX} digits");
        return Err(Refusal::new(SqlState::OUT_OF_RANGE, message));
    }
    Ok(if plain == written(&value) { value } else { Value::Text(plain) })
}

/// A decimal number without an exponent, and without zeroes that mean nothing. It must be one that a double can be.
fn plain(text: &str) -> String {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text.trim_start_matches('+')), |rest| ("-", rest));
    let (decimals, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (before, behind) = decimals.split_once('.').unwrap_or((decimals, ""));
    let digits = format!("{before}{behind}");
    let from_first = digits.trim_start_matches('0');
    let significant = from_first.trim_end_matches('0');
    if significant.is_empty() {
        return "0".to_owned();
    }
    // Digits before the point; if negative, zeroes behind it.
    let whole = before.len() as i64 - (digits.len() - from_first.len()) as i64 + exponent.parse::<i64>().unwrap_or(0);
    let zeroes = |count: i64| "0".repeat(count.max(0) as usize);
    if whole <= 0 {
        return format!("{sign}0.{}{significant}", zeroes(-whole));
    }
    match significant.split_at_checked(whole as usize) {
        Some((before, behind)) if !behind.is_empty() => format!("{sign}{before}.{behind}"),
        _ => format!("{sign}{significant}{}", zeroes(whole - significant.len() as i64)),
    }
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    match text.strip_prefix("\\x") {
        Some(digits) => hex(digits),
        None => escaped(text.as_bytes()),
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|b| char::from(b).to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The older form: `\\` and `\nnn` (8.4 "Binary Data Types").
fn escaped(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    loop {
        match text {
            [] => return Some(bytes),
            [b'\\', b'\\', rest @ ..] => {
                bytes.push(b'\\');
                text = rest;
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                text = rest;
            }
            [b'\\', ..] => return None,
            [byte, rest @ ..] => {
                bytes.push(*byte);
                text = rest;
            }
        }
    }
}

pub fn written(value: &Value) -> String {
    let mut out = BytesMut::new();
    write(value, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

pub fn write(value: &Value, out: &mut BytesMut) {
    // Writing to memory cannot fail.
    let _ = match value {
        Value::Null => Ok(()),
        Value::Bool(value) => out.write_char(if *value { 't' } else { 'f' }),
        Value::BigInt(number) => write!(out, "{number}"),
        Value::DoublePrecision(number) => write_float(*number, 1e15, out),
        Value::Text(text) => out.write_str(text),
        Value::Bytea(bytes) => {
            let _ = out.write_str("\\x");
            bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
        }
    };
}

/// A number of 32 bits.
pub fn real(number: f64) -> String {
    let mut text = String::new();
    // Writing to memory cannot fail.
    let _ = write_float(number as f32, 1e6, &mut text);
    text
}

/// The shortest digits that mean this number, as PostgreSQL since 12; with an exponent from `large` on.
fn write_float<F>(number: F, large: f64, out: &mut impl Write) -> std::fmt::Result
where
    F: Copy + Into<f64> + Display + LowerExp,
{
    let double: f64 = number.into();
    if double.is_nan() {
        return out.write_str("NaN");
    }
    if double.is_infinite() {
        return out.write_str(if double > 0.0 { "Infinity" } else { "-Infinity" });
    }
    if double == 0.0 || (1e-4..large).contains(&double.abs()) {
        return write!(out, "{number}");
    }
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return out.write_str(&text) };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    write!(out, "{digits}e{sign}{exponent:0>2}")
}
