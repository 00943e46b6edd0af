//! Rows: the values beside a key.

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{Bytes, put_length, take_length};

/// What may be a row: numbers, booleans, texts, bytes, options and tuples of them, and structures made with [`row!`].
/// Encoded, at most 1024 bytes.
///
/// [`row!`]: crate::row!
pub trait Row: Sized {
    fn encode(&self, out: &mut Vec<u8>);

    /// `None`: this is no encoded row of this type.
    fn decode(bytes: &mut Bytes<'_>) -> Option<Self>;

    /// What a field is in rows that were stored before it was added.
    #[doc(hidden)]
    fn missing() -> Option<Self> {
        None
    }
}

macro_rules! number {
    ($($number:ty)*) => { $(
        impl Row for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
                bytes.take_array().map(<$number>::from_le_bytes)
            }
        }
    )* };
}

number! { i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 f32 f64 }

impl Row for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        match bytes.take_byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Row for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        out.extend_from_slice(self);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let length = take_length(bytes)?;
        bytes.take(length).map(<[u8]>::to_vec)
    }
}

impl Row for String {
    fn encode(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        String::from_utf8(Vec::decode(bytes)?).ok()
    }
}

impl<R: Row> Row for Option<R> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(row) = self {
            row.encode(out);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        if bool::decode(bytes)? { R::decode(bytes).map(Some) } else { Some(None) }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

for_tuples! { Row }

/// A structure that can be a row. Rows that are stored already know nothing of a field that is added; it can be an
/// `Option` at the end: it is `None` for them.
///
/// ```
/// awase_program::row! {
///     #[derive(Debug, PartialEq)]
///     pub struct Customer { name: String, balance: i64, note: Option<String> }
/// }
/// ```
#[macro_export]
macro_rules! row {
    ($(#[$meta:meta])* $visible:vis struct $name:ident { $($(#[$field_meta:meta])* $field_visible:vis $field:ident: $of:ty),* $(,)? }) => {
        $(#[$meta])*
        $visible struct $name { $($(#[$field_meta])* $field_visible $field: $of),* }

        impl $crate::Row for $name {
            fn encode(&self, out: &mut $crate::internal::Vec<u8>) {
                $($crate::Row::encode(&self.$field, out);)*
            }

            fn decode(bytes: &mut $crate::Bytes<'_>) -> ::core::option::Option<Self> {
                ::core::option::Option::Some($name { $($field: $crate::internal::decode_field(bytes)?),* })
            }
        }
    };
}

/// A field of a structure.
pub fn decode_field<R: Row>(bytes: &mut Bytes<'_>) -> Option<R> {
    if bytes.is_empty() { R::missing().or_else(|| R::decode(bytes)) } else { R::decode(bytes) }
}
