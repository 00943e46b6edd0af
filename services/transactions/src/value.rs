//! What programs are given and return.

use std::fmt;

/// SQL's types of these names, as far as programs know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Bool,
    /// 64 bits.
    BigInt,
    /// IEEE 754, 64 bits.
    DoublePrecision,
    /// UTF-8.
    Text,
    Bytea,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    BigInt(i64),
    DoublePrecision(f64),
    Text(String),
    Bytea(Vec<u8>),
}

impl Value {
    /// `None` for NULL, which is of every type.
    pub fn of(&self) -> Option<Type> {
        match self {
            Value::Null => None,
            Value::Bool(_) => Some(Type::Bool),
            Value::BigInt(_) => Some(Type::BigInt),
            Value::DoublePrecision(_) => Some(Type::DoublePrecision),
            Value::Text(_) => Some(Type::Text),
            Value::Bytea(_) => Some(Type::Bytea),
        }
    }
}

impl Value {
    /// In memory, about.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Value>()
            + match self {
                Value::Text(text) => text.len(),
                Value::Bytea(bytes) => bytes.len(),
                _ => 0,
            }
    }
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub of: Type,
}

/// A function of a program, as clients call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// `None`: it returns nothing (`void`).
    pub returns: Option<Type>,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Bool => "boolean",
            Type::BigInt => "bigint",
            Type::DoublePrecision => "double precision",
            Type::Text => "text",
            Type::Bytea => "bytea",
        })
    }
}

/// As SQL declares it: `transfer(from bigint, to bigint, amount bigint) returns bigint`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} {}", argument.name, argument.of)?;
        }
        match self.returns {
            Some(returns) => write!(f, ") returns {returns}"),
            None => write!(f, ") returns void"),
        }
    }
}
