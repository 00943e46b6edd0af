//! Keys: bytes whose order is that of the values, so that a range of values is a range of keys.

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::Bytes;

/// What may be a key: integers, booleans, texts, bytes, and tuples of them. Encoded, at most 512 bytes.
pub trait Key: Sized {
    /// Appends bytes whose order among all encoded values is that of the values. No encoded value is the beginning of
    /// another one.
    fn encode(&self, out: &mut Vec<u8>);

    /// `None`: this is no encoded key of this type.
    fn decode(bytes: &mut Bytes<'_>) -> Option<Self>;
}

pub(crate) fn encoded(key: &impl Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    key.encode(&mut bytes);
    bytes
}

macro_rules! integer {
    ($($signed:ty, $unsigned:ty;)*) => { $(
        impl Key for $unsigned {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
                bytes.take_array().map(<$unsigned>::from_be_bytes)
            }
        }

        /// The sign is inverted: negative numbers come first.
        impl Key for $signed {
            fn encode(&self, out: &mut Vec<u8>) {
                ((*self ^ <$signed>::MIN) as $unsigned).encode(out);
            }

            fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
                <$unsigned>::decode(bytes).map(|value| value as $signed ^ <$signed>::MIN)
            }
        }
    )* };
}

integer! { i8, u8; i16, u16; i32, u32; i64, u64; i128, u128; }

impl Key for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u8::from(*self).encode(out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        match u8::decode(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// A zero byte in bytes is followed by this one, and the end is a zero byte followed by [`END`]: what follows a key in a
/// tuple cannot change the order.
const ZERO: u8 = 0xff;
const END: u8 = 0x01;

impl Key for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(self, out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let mut decoded = Vec::new();
        loop {
            match bytes.take_byte()? {
                0 => match bytes.take_byte()? {
                    ZERO => decoded.push(0),
                    END => return Some(decoded),
                    _ => return None,
                },
                byte => decoded.push(byte),
            }
        }
    }
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(ZERO);
        }
    }
    out.extend_from_slice(&[0, END]);
}

/// In the order of its bytes in UTF-8, which is that of its characters.
impl Key for String {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(self.as_bytes(), out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        String::from_utf8(Vec::decode(bytes)?).ok()
    }
}

for_tuples! { Key }

/// A tuple with which the tuple `K` begins.
pub trait Prefix<K>: Key {}

macro_rules! prefixes {
    ($(($($first:ident)*) $($rest:ident)*,)*) => { $(
        impl<$($first: Key,)* $($rest: Key),*> Prefix<($($first,)* $($rest,)*)> for ($($first,)*) {}
    )* };
}

prefixes! {
    (A) B,
    (A) B C, (A B) C,
    (A) B C D, (A B) C D, (A B C) D,
    (A) B C D E, (A B) C D E, (A B C) D E, (A B C D) E,
    (A) B C D E F, (A B) C D E F, (A B C) D E F, (A B C D) E F, (A B C D E) F,
}
