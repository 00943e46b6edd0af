//! Values as clients write and read them: as text or in PostgreSQL's binary form.

use bytes::{BufMut, BytesMut};

use super::refusal::{Refusal, SqlState};
use crate::{Type, Value};

mod numeric;
mod text;

/// The types of parameters and results. Programs know fewer ([`Type`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SqlType {
    Bool,
    Bytea,
    Int8,
    Int2,
    Int4,
    Text,
    Oid,
    Float4,
    Float8,
    Unknown,
    Varchar,
    Numeric,
    Void,
}

/// How a value is transmitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i16)]
pub enum Format {
    #[default]
    Text = 0,
    Binary = 1,
}

impl Format {
    /// # Errors
    /// If the protocol has no such format.
    pub fn of(code: i16) -> Result<Format, Refusal> {
        match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            _ => Err(Refusal::new(SqlState::PROTOCOL_VIOLATION, format!("unsupported format code: {code}"))),
        }
    }
}

/// Types with their numbers and sizes, and their names: in `pg_type` (`oid`, `typlen`, `typname`), as shown, and others.
const TYPES: [(SqlType, u32, i16, &[&str]); 13] = [
    (SqlType::Bool, 16, 1, &["bool", "boolean"]),
    (SqlType::Bytea, 17, -1, &["bytea", "bytea"]),
    (SqlType::Int8, 20, 8, &["int8", "bigint"]),
    (SqlType::Int2, 21, 2, &["int2", "smallint"]),
    (SqlType::Int4, 23, 4, &["int4", "integer", "int"]),
    (SqlType::Text, 25, -1, &["text", "text"]),
    (SqlType::Oid, 26, 4, &["oid", "oid"]),
    (SqlType::Float4, 700, 4, &["float4", "real"]),
    (SqlType::Float8, 701, 8, &["float8", "double precision", "float"]),
    (SqlType::Unknown, 705, -2, &["unknown", "unknown"]),
    (SqlType::Varchar, 1043, -1, &["varchar", "character varying"]),
    (SqlType::Numeric, 1700, -1, &["numeric", "numeric", "decimal"]),
    (SqlType::Void, 2278, 4, &["void", "void"]),
];

impl SqlType {
    /// Those of results.
    pub fn all() -> impl Iterator<Item = SqlType> {
        TYPES.iter().map(|(of, ..)| *of).filter(|of| *of != SqlType::Unknown)
    }

    fn row(self) -> &'static (SqlType, u32, i16, &'static [&'static str]) {
        TYPES.iter().find(|(of, ..)| *of == self).unwrap_or(&TYPES[9])
    }

    pub fn oid(self) -> u32 {
        self.row().1
    }

    /// Bytes; negative: of any length.
    pub fn size(self) -> i16 {
        self.row().2
    }

    /// As shown.
    pub fn name(self) -> &'static str {
        self.row().3[1]
    }

    /// As `pg_type` has it.
    pub fn typname(self) -> &'static str {
        self.row().3[0]
    }

    pub fn of_oid(oid: u32) -> Option<SqlType> {
        TYPES.iter().find(|(_, own, ..)| *own == oid).map(|(of, ..)| *of)
    }

    pub fn named(name: &str) -> Option<SqlType> {
        TYPES.iter().find(|(_, _, _, names)| names.contains(&name)).map(|(of, ..)| *of)
    }

    /// In which values of it are given to programs.
    pub fn held_as(self) -> Type {
        match self {
            SqlType::Bool => Type::Bool,
            SqlType::Bytea => Type::Bytea,
            SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Oid => Type::BigInt,
            SqlType::Float4 | SqlType::Float8 | SqlType::Numeric => Type::DoublePrecision,
            SqlType::Text | SqlType::Varchar | SqlType::Unknown | SqlType::Void => Type::Text,
        }
    }

    /// A value as the client sent it.
    ///
    /// # Errors
    /// If it is not one of this type.
    pub fn read(self, format: Format, bytes: &[u8]) -> Result<Value, Refusal> {
        match format {
            Format::Text => {
                let invalid = || Refusal::new(SqlState::INVALID_BYTES, "invalid byte sequence for encoding \"UTF8\"");
                let text = std::str::from_utf8(bytes).map_err(|_| invalid())?;
                // It could never be returned.
                if text.contains('\0') { Err(invalid()) } else { self.read_as_text(text) }
            }
            Format::Binary => self.read_binary(bytes),
        }
    }

    /// # Errors
    /// If it is not a value of this type.
    pub fn read_as_text(self, text: &str) -> Result<Value, Refusal> {
        if self == SqlType::Numeric
            && let Some(whole) = text::whole(text.trim())
        {
            return Ok(Value::BigInt(whole));
        }
        match text::read(self.held_as(), self.name(), text)? {
            Value::DoublePrecision(number) if self == SqlType::Numeric => text::numeric(number, text.trim()),
            value => self.narrowed(value),
        }
    }

    /// `value` in as many bits as this type has.
    ///
    /// # Errors
    /// If it is too large for it, or too small.
    fn narrowed(self, value: Value) -> Result<Value, Refusal> {
        let fitting = match (self, value) {
            (SqlType::Int2, Value::BigInt(number)) if i16::try_from(number).is_err() => None,
            (SqlType::Int4, Value::BigInt(number)) if i32::try_from(number).is_err() => None,
            (SqlType::Oid, Value::BigInt(number)) if u32::try_from(number).is_err() => None,
            (SqlType::Float4, Value::DoublePrecision(number)) => {
                let real = number as f32;
                let is_lost = real.is_infinite() && number.is_finite() || real == 0.0 && number != 0.0;
                (!is_lost).then_some(Value::DoublePrecision(real.into()))
            }
            (_, value) => Some(value),
        };
        fitting.ok_or_else(|| Refusal::new(SqlState::OUT_OF_RANGE, format!("{} out of range", self.name())))
    }

    fn read_binary(self, bytes: &[u8]) -> Result<Value, Refusal> {
        let wrong = || {
            let message = format!("incorrect binary data format: {} bytes for type {}", bytes.len(), self.name());
            Refusal::new(SqlState::INVALID_BINARY, message)
        };
        Ok(match self {
            SqlType::Bool => Value::Bool(*bytes.first().filter(|_| bytes.len() == 1).ok_or_else(wrong)? != 0),
            SqlType::Int2 => Value::BigInt(i16::from_be_bytes(bytes.try_into().map_err(|_| wrong())?).into()),
            SqlType::Int4 => Value::BigInt(i32::from_be_bytes(bytes.try_into().map_err(|_| wrong())?).into()),
            SqlType::Oid => Value::BigInt(u32::from_be_bytes(bytes.try_into().map_err(|_| wrong())?).into()),
            SqlType::Int8 => Value::BigInt(i64::from_be_bytes(bytes.try_into().map_err(|_| wrong())?)),
            SqlType::Float4 => {
                Value::DoublePrecision(f32::from_be_bytes(bytes.try_into().map_err(|_| wrong())?).into())
            }
            SqlType::Float8 => Value::DoublePrecision(f64::from_be_bytes(bytes.try_into().map_err(|_| wrong())?)),
            SqlType::Numeric => return self.read_as_text(&numeric::read(bytes).ok_or_else(wrong)?),
            SqlType::Bytea => Value::Bytea(bytes.to_vec()),
            SqlType::Text | SqlType::Varchar | SqlType::Unknown | SqlType::Void => {
                return self.read(Format::Text, bytes);
            }
        })
    }

    /// `value`, of this type, as programs have numbers: a numeric may have more digits ([`text::numeric`]).
    pub fn rounded(self, value: Value) -> Value {
        match value {
            Value::Text(text) if self == SqlType::Numeric => {
                text.parse().map_or(Value::Text(text), Value::DoublePrecision)
            }
            value => value,
        }
    }

    /// `value`, of type `from`, converted by a cast to this type.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn cast(self, value: Value, from: SqlType) -> Result<Value, Refusal> {
        let keeps_digits = self == SqlType::Numeric || self.held_as() == Type::Text;
        let value = if keeps_digits { value } else { from.rounded(value) };
        let value = match (value, self.held_as()) {
            (Value::Null, _) => return Ok(Value::Null),
            (Value::Text(text), _) => return self.read_as_text(&text),
            (number @ Value::BigInt(_), _) if self == SqlType::Numeric => number,
            (Value::BigInt(number), Type::DoublePrecision) => Value::DoublePrecision(number as f64),
            (Value::DoublePrecision(number), Type::BigInt) if from == SqlType::Numeric => {
                Value::BigInt(whole(number.round())?)
            }
            (Value::DoublePrecision(number), Type::BigInt) => Value::BigInt(integer(number.round_ties_even())?),
            // With the digits of a real: as a double it has more.
            (Value::DoublePrecision(number), held)
                if from == SqlType::Float4 && (held == Type::Text || self == SqlType::Numeric) =>
            {
                return self.read_as_text(&text::real(number));
            }
            (Value::Bool(value), Type::Text) => Value::Text(value.to_string()),
            (value, Type::Text) => Value::Text(text::written(&value)),
            (value, held) if value.of() == Some(held) => value,
            (value, _) => return Err(mismatch(&value, self.name())),
        };
        self.narrowed(value)
    }

    /// Appends a value of this type, without its length.
    pub fn write(self, value: &Value, format: Format, out: &mut BytesMut) {
        match (format, self, value) {
            (Format::Binary, SqlType::Int2, Value::BigInt(number)) => out.put_i16(*number as i16),
            (Format::Binary, SqlType::Int4, Value::BigInt(number)) => out.put_i32(*number as i32),
            (Format::Binary, SqlType::Oid, Value::BigInt(number)) => out.put_u32(*number as u32),
            (Format::Binary, SqlType::Numeric, Value::BigInt(number)) => numeric::write(*number, out),
            (Format::Binary, SqlType::Numeric, Value::DoublePrecision(number)) => numeric::write_float(*number, out),
            (Format::Binary, SqlType::Numeric, Value::Text(text)) => numeric::write_text(text, out),
            (Format::Binary, SqlType::Float4, Value::DoublePrecision(number)) => out.put_f32(*number as f32),
            (Format::Binary, _, Value::BigInt(number)) => out.put_i64(*number),
            (Format::Binary, _, Value::DoublePrecision(number)) => out.put_f64(*number),
            (Format::Binary, _, Value::Bool(value)) => out.put_u8(u8::from(*value)),
            (Format::Binary, _, Value::Bytea(bytes)) => out.extend_from_slice(bytes),
            (_, SqlType::Float4, Value::DoublePrecision(number)) => out.put_slice(text::real(*number).as_bytes()),
            _ => text::write(value, out),
        }
    }
}

impl From<Type> for SqlType {
    fn from(of: Type) -> SqlType {
        match of {
            Type::Bool => SqlType::Bool,
            Type::BigInt => SqlType::Int8,
            Type::DoublePrecision => SqlType::Float8,
            Type::Text => SqlType::Text,
            Type::Bytea => SqlType::Bytea,
        }
    }
}

/// `value` as an argument of type `to`. Numbers fit each other if nothing is lost, texts what they can be read as.
///
/// # Errors
/// If it does not fit.
pub fn argument(value: Value, to: Type) -> Result<Value, Refusal> {
    match (value, to) {
        (Value::BigInt(number), Type::DoublePrecision) => Ok(Value::DoublePrecision(number as f64)),
        (Value::DoublePrecision(number), Type::BigInt) if number.fract() == 0.0 => Ok(Value::BigInt(whole(number)?)),
        (Value::Text(text), to) if to != Type::Text => text::read(to, SqlType::from(to).name(), &text),
        (value, to) if value.of().is_none_or(|of| of == to) => Ok(value),
        (value, to) => Err(mismatch(&value, SqlType::from(to).name())),
    }
}

fn mismatch(value: &Value, to: &str) -> Refusal {
    let of = value.of().map_or("unknown", |of| SqlType::from(of).name());
    Refusal::new(SqlState::TYPE_MISMATCH, format!("a value of type {of} cannot be used as {to}"))
}

/// `number`, which has no fraction.
fn integer(number: f64) -> Result<i64, Refusal> {
    // The bounds are exact as f64; NaN is outside of all.
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number);
    fits.then_some(number as i64).ok_or_else(|| Refusal::new(SqlState::OUT_OF_RANGE, "bigint out of range"))
}

/// The same, of a number that may have been written with a fraction: if it is large, its last digits may be others.
fn whole(number: f64) -> Result<i64, Refusal> {
    /// From here on an f64 has no fraction.
    const FRACTIONS_END: f64 = 4_503_599_627_370_496.0;
    let integer = integer(number)?;
    if number.abs() < FRACTIONS_END {
        return Ok(integer);
    }
    let message = "from 2^52 on, a number becomes a bigint only if it is written without a fraction";
    Err(Refusal::new(SqlState::NOT_SUPPORTED, message))
}

#[cfg(test)]
mod tests;
