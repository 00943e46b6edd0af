//! Whether a message has the shape of its kind. The codec trusts lengths and counts, so what is malformed must not reach
//! it; and it replaces what is no UTF-8, so that must not reach it either.

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misshapen {
    /// Its lengths and counts do not agree: the stream is not to be trusted.
    Malformed,
    /// A text is no UTF-8.
    NotUtf8,
}

/// Where something is in a body.
pub(super) type Span = (usize, usize);

/// Of the kinds of messages of a session that the codec decodes, and of those without a body. The others are checked while
/// they are decoded ([`super::frequent`]).
pub fn check(kind: u8, body: &[u8]) -> Result<(), Misshapen> {
    let mut rest = Cursor::new(body);
    match kind {
        b'Q' => drop(rest.text()?),
        b'P' => {
            rest.text()?;
            rest.text()?;
            let types = rest.count()?;
            rest.skip(4 * types)?;
        }
        b'H' | b'S' | b'X' => {}
        // Of an ended COPY; their content does not matter.
        b'd' | b'c' | b'f' => return Ok(()),
        _ => return Err(Misshapen::Malformed),
    }
    rest.end()
}

/// Of a client's first message of an authentication: the mechanism and its data.
pub fn check_first_proof(body: &[u8]) -> Result<(), Misshapen> {
    let mut rest = Cursor::new(body);
    rest.text()?;
    rest.value()?;
    rest.end()
}

/// Reads a body field by field.
pub(super) struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Cursor { body, at: 0 }
    }

    fn bytes(&mut self, len: usize) -> Result<Span, Misshapen> {
        let from = self.at;
        self.at = from.checked_add(len).filter(|to| *to <= self.body.len()).ok_or(Misshapen::Malformed)?;
        Ok((from, self.at))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Misshapen> {
        let (from, to) = self.bytes(N)?;
        self.body[from..to].try_into().map_err(|_| Misshapen::Malformed)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<(), Misshapen> {
        self.bytes(len).map(drop)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Misshapen> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<i16, Misshapen> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn count(&mut self) -> Result<usize, Misshapen> {
        self.number().map(|count| usize::from(count as u16))
    }

    /// Up to a zero byte, which is not part of it.
    pub(super) fn text(&mut self) -> Result<Span, Misshapen> {
        let rest = &self.body[self.at..];
        let len = rest.iter().position(|byte| *byte == 0).ok_or(Misshapen::Malformed)?;
        let span = self.bytes(len)?;
        self.skip(1)?;
        std::str::from_utf8(&rest[..len]).map(|_| span).map_err(|_| Misshapen::NotUtf8)
    }

    /// A parameter; a length of -1 is NULL (`None`).
    pub(super) fn value(&mut self) -> Result<Option<Span>, Misshapen> {
        match i32::from_be_bytes(self.array()?) {
            -1 => Ok(None),
            len => self.bytes(usize::try_from(len).map_err(|_| Misshapen::Malformed)?).map(Some),
        }
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), Misshapen> {
        if self.at == self.body.len() { Ok(()) } else { Err(Misshapen::Malformed) }
    }
}
