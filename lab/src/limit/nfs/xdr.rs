//! XDR (RFC 4506), as far as it is needed: numbers and opaque data.

/// Arguments of a call. What is missing reads as nothing; [`Arguments::is_short`] tells.
pub struct Arguments<'a> {
    rest: &'a [u8],
    pub is_short: bool,
}

impl<'a> Arguments<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Arguments { rest, is_short: false }
    }

    pub fn len(&self) -> usize {
        self.rest.len()
    }

    pub fn skip(&mut self, bytes: usize) -> &'a [u8] {
        let Some((head, rest)) = self.rest.split_at_checked(bytes) else {
            self.is_short = true;
            return &[];
        };
        self.rest = rest;
        head
    }

    pub fn number(&mut self) -> u32 {
        self.skip(4).first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    pub fn hyper(&mut self) -> u64 {
        self.skip(8).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    pub fn opaque(&mut self) -> &'a [u8] {
        let bytes = self.number() as usize;
        let data = self.skip(bytes);
        self.skip(padding(bytes));
        data
    }
}

/// Bytes to the next multiple of four.
pub fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(4) - bytes
}

pub fn put(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

pub fn put_hyper(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}
