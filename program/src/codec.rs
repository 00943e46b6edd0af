//! Reading what was encoded.

use alloc::vec::Vec;

/// Encoded bytes that are not read yet.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Bytes(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn take_byte(&mut self) -> Option<u8> {
        self.take_array().map(|[byte]| byte)
    }

    /// All the rest.
    pub fn take_all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }
}

/// A number of bytes: 7 bits in each byte, the lowest first.
pub(crate) fn put_length(mut length: usize, out: &mut Vec<u8>) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

pub(crate) fn take_length(bytes: &mut Bytes<'_>) -> Option<usize> {
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let byte = bytes.take_byte()?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(length);
        }
    }
    None
}

/// Implements a trait for tuples of what has it: encoded one after the other.
macro_rules! for_tuples {
    ($of:ident) => {
        for_tuples! { $of: (), (A), (A B), (A B C), (A B C D), (A B C D E), (A B C D E F) }
    };
    ($of:ident: $(($($name:ident)*)),*) => { $(
        impl<$($name: $of),*> $of for ($($name,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn encode(&self, out: &mut Vec<u8>) {
                let ($($name,)*) = self;
                $($name.encode(out);)*
            }

            #[allow(unused_variables)]
            fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
                Some(($($name::decode(bytes)?,)*))
            }
        }
    )* };
}
