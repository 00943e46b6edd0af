//! The decoder of protocols whose messages begin with a header of fixed size. Payloads are left to the handler.

use std::marker::PhantomData;

use super::{Decoder, Headers, Next};

/// The header of every message, of `BYTES` bytes.
pub trait FixedHeader<const BYTES: usize>: Sized {
    /// `None`: not a message of the protocol.
    fn decode(bytes: &[u8; BYTES]) -> Option<Self>;

    /// As [`Decoder::has_payload`].
    fn has_payload(&self) -> bool;
}

pub struct Headerwise<T, const BYTES: usize> {
    /// The next header, and the number of its bytes received.
    header: [u8; BYTES],
    begun: usize,
    of: PhantomData<fn() -> T>,
}

impl<T, const BYTES: usize> Default for Headerwise<T, BYTES> {
    fn default() -> Self {
        Headerwise { header: [0; BYTES], begun: 0, of: PhantomData }
    }
}

impl<T: FixedHeader<BYTES>, const BYTES: usize> Decoder for Headerwise<T, BYTES> {
    type Call = T;

    fn next(&mut self) -> Next<T> {
        if self.begun < BYTES {
            return Next::Bytes(BYTES - self.begun);
        }
        self.begun = 0;
        T::decode(&self.header).map_or(Next::Malformed, Next::Call)
    }

    fn give(&mut self, _most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let count = source(&mut self.header[self.begun..]);
        self.begun += count;
        count
    }

    fn is_within_message(&self) -> bool {
        self.begun > 0
    }

    fn has_payload(&self, header: &T) -> bool {
        header.has_payload()
    }

    fn headers(&self) -> Headers {
        Headers { first: BYTES - self.begun, each: BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four bytes, the first of which is not 0; a payload follows if it is 2.
    #[derive(Debug, PartialEq, Eq)]
    struct Word([u8; 4]);

    impl FixedHeader<4> for Word {
        fn decode(bytes: &[u8; 4]) -> Option<Self> {
            (bytes[0] != 0).then_some(Word(*bytes))
        }

        fn has_payload(&self) -> bool {
            self.0[0] == 2
        }
    }

    fn give(decoder: &mut Headerwise<Word, 4>, bytes: &[u8]) {
        let given = decoder.give(bytes.len(), |to| {
            to[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
        assert_eq!(given, bytes.len());
    }

    #[test]
    fn a_header_that_comes_in_pieces_is_decoded_when_it_is_whole() {
        let mut decoder = Headerwise::default();
        assert!(matches!(decoder.next(), Next::Bytes(4)) && !decoder.is_within_message());
        give(&mut decoder, &[2, 7, 8]);
        assert!(matches!(decoder.next(), Next::Bytes(1)) && decoder.is_within_message());
        assert_eq!((decoder.headers().first, decoder.headers().each), (1, 4));
        give(&mut decoder, &[9]);
        let Next::Call(word) = decoder.next() else { panic!("it is whole") };
        assert!(word == Word([2, 7, 8, 9]) && decoder.has_payload(&word));
        assert!(matches!(decoder.next(), Next::Bytes(4)), "the next one");
    }

    #[test]
    fn what_is_no_header_is_malformed() {
        let mut decoder = Headerwise::<Word, 4>::default();
        give(&mut decoder, &[0; 4]);
        assert!(matches!(decoder.next(), Next::Malformed));
    }
}
