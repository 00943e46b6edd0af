//! The messages of each call, decoded in place: the codec allocates for every name, format and value.
//!
//! Their shape was checked ([`super::shape`]), so what is missing here is not there, and is taken for empty.

use smallvec::SmallVec;

/// Bytes of a message that need no allocation.
const BODY_BYTES_INLINE: usize = 128;

/// Where something is in a body.
type Span = (usize, usize);

/// The content of a Bind.
#[derive(Debug, Default)]
pub struct Bind {
    body: SmallVec<[u8; BODY_BYTES_INLINE]>,
    portal: Span,
    statement: Span,
    pub formats: SmallVec<[i16; 4]>,
    /// `None`: NULL.
    values: SmallVec<[Option<Span>; 4]>,
    pub results: SmallVec<[i16; 4]>,
}

/// A statement or a portal.
#[derive(Debug)]
pub struct Named {
    pub is_statement: bool,
    name: Name,
}

/// A name within a session.
#[derive(Debug)]
pub struct Name(SmallVec<[u8; 32]>);

impl Bind {
    pub fn decode(body: &[u8]) -> Bind {
        let mut bind = Bind { body: SmallVec::from_slice(body), ..Bind::default() };
        let mut rest = Cursor { body, at: 0 };
        bind.portal = rest.text();
        bind.statement = rest.text();
        bind.formats = (0..rest.count()).map(|_| rest.number()).collect();
        bind.values = (0..rest.count()).map(|_| rest.value()).collect();
        bind.results = (0..rest.count()).map(|_| rest.number()).collect();
        bind
    }

    pub fn portal(&self) -> &str {
        self.text(self.portal)
    }

    pub fn statement(&self) -> &str {
        self.text(self.statement)
    }

    /// `None`: NULL.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        self.values.iter().map(|value| value.map(|(from, to)| &self.body[from..to]))
    }

    fn text(&self, (from, to): Span) -> &str {
        str::from_utf8(&self.body[from..to]).unwrap_or_default()
    }
}

impl Named {
    /// Of a Describe or Close.
    pub fn decode(body: &[u8]) -> Named {
        let (kind, name) = body.split_first().unwrap_or((&b'P', &[]));
        Named { is_statement: *kind == b'S', name: Name::decode(name) }
    }

    pub fn name(&self) -> &str {
        self.name.get()
    }
}

impl Name {
    /// What `body` begins with.
    pub fn decode(body: &[u8]) -> Name {
        let (from, to) = Cursor { body, at: 0 }.text();
        Name(SmallVec::from_slice(&body[from..to]))
    }

    pub fn get(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Up to a zero byte.
    fn text(&mut self) -> Span {
        let from = self.at.min(self.body.len());
        let rest = &self.body[from..];
        let to = from + rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        self.at = to + 1;
        (from, to)
    }

    fn number(&mut self) -> i16 {
        let bytes = self.body.get(self.at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        self.at += 2;
        i16::from_be_bytes(bytes)
    }

    fn count(&mut self) -> usize {
        usize::from(self.number() as u16)
    }

    fn value(&mut self) -> Option<Span> {
        let bytes = self.body.get(self.at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        self.at += 4;
        let len = usize::try_from(i32::from_be_bytes(bytes)).ok()?;
        let from = self.at;
        self.at = from.saturating_add(len).min(self.body.len());
        Some((from.min(self.at), self.at))
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use pgwire::messages::Message;
    use pgwire::messages::extendedquery as codec;
    use proptest::prelude::*;

    use super::*;
    use crate::terminal::wire::put;

    /// After kind and length.
    fn body(message: &impl Message) -> Vec<u8> {
        let mut out = BytesMut::new();
        put(&mut out, message);
        out[5..].to_vec()
    }

    proptest! {
        #[test]
        fn what_the_codec_wrote_is_read(
            portal in "[^\\x00]{0,40}",
            statement in "[^\\x00]{0,40}",
            formats: Vec<i16>,
            values: Vec<Option<Vec<u8>>>,
            results: Vec<i16>,
            is_statement: bool,
        ) {
            let name = |text: &String| Some(text.clone());
            let given = values.iter().map(|value| value.clone().map(Into::into)).collect();
            let (portals, statements) = (name(&portal), name(&statement));
            let bind = codec::Bind::new(portals, statements, formats.clone(), given, results.clone());
            let read = Bind::decode(&body(&bind));
            prop_assert_eq!((read.portal(), read.statement()), (&*portal, &*statement));
            prop_assert_eq!((&*read.formats, &*read.results), (&*formats, &*results));
            let found: Vec<_> = read.values().map(|value| value.map(<[u8]>::to_vec)).collect();
            prop_assert_eq!(found, values);
            let kind = if is_statement { b'S' } else { b'P' };
            let named = Named::decode(&body(&codec::Close::new(kind, name(&portal))));
            prop_assert_eq!((named.is_statement, named.name()), (is_statement, &*portal));
            let execute = body(&codec::Execute::new(name(&portal), 7));
            let name = Name::decode(&execute);
            prop_assert_eq!(name.get(), &*portal);
        }

        /// Their shape is checked before; without that they are wrong, but nothing panics.
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let bind = Bind::decode(&bytes);
            let _ = (bind.portal(), bind.statement(), bind.values().count());
            let _ = (Named::decode(&bytes).name(), Name::decode(&bytes).get());
        }
    }
}
