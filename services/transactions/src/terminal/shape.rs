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

/// Of the kinds of messages of a session.
pub fn check(kind: u8, body: &[u8]) -> Result<(), Misshapen> {
    let mut rest = Cursor(body);
    match kind {
        b'Q' => rest.text()?,
        b'P' => {
            rest.text()?;
            rest.text()?;
            let types = rest.count()?;
            rest.skip(4 * types)?;
        }
        b'B' => {
            rest.text()?;
            rest.text()?;
            let formats = rest.count()?;
            rest.skip(2 * formats)?;
            for _ in 0..rest.count()? {
                rest.value()?;
            }
            let formats = rest.count()?;
            rest.skip(2 * formats)?;
        }
        b'D' | b'C' => {
            if !matches!(rest.bytes(1)?, b"S" | b"P") {
                return Err(Misshapen::Malformed);
            }
            rest.text()?;
        }
        b'E' => {
            rest.text()?;
            rest.skip(4)?;
        }
        b'H' | b'S' | b'X' => {}
        // Of an ended COPY; their content does not matter.
        b'd' | b'c' | b'f' => return Ok(()),
        _ => return Err(Misshapen::Malformed),
    }
    if rest.0.is_empty() { Ok(()) } else { Err(Misshapen::Malformed) }
}

/// Of a client's first message of an authentication: the mechanism and its data.
pub fn check_first_proof(body: &[u8]) -> Result<(), Misshapen> {
    let mut rest = Cursor(body);
    rest.text()?;
    rest.value()?;
    if rest.0.is_empty() { Ok(()) } else { Err(Misshapen::Malformed) }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Misshapen> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Misshapen::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, len: usize) -> Result<(), Misshapen> {
        self.bytes(len).map(drop)
    }

    fn count(&mut self) -> Result<usize, Misshapen> {
        let bytes = self.bytes(2)?;
        Ok(usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    }

    /// With a zero byte at its end.
    fn text(&mut self) -> Result<(), Misshapen> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Misshapen::Malformed)?;
        let text = self.bytes(end + 1)?;
        std::str::from_utf8(&text[..end]).map(drop).map_err(|_| Misshapen::NotUtf8)
    }

    /// A parameter; a length of -1 is NULL.
    fn value(&mut self) -> Result<(), Misshapen> {
        let bytes = self.bytes(4)?;
        match i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) {
            -1 => Ok(()),
            len => self.skip(usize::try_from(len).map_err(|_| Misshapen::Malformed)?),
        }
    }
}
