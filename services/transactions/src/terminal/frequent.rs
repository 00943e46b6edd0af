//! The messages of each call, decoded in place: the codec allocates for every name, format and value.

use smallvec::SmallVec;

use super::shape::{Cursor, Misshapen, Span};

/// Bytes of a message that need no allocation.
const BODY_BYTES_INLINE: usize = 128;

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
pub struct Name(SmallVec<[u8; 16]>);

impl Bind {
    pub fn decode(body: &[u8]) -> Result<Bind, Misshapen> {
        let mut rest = Cursor::new(body);
        let (portal, statement) = (rest.text()?, rest.text()?);
        let mut bind = Bind { portal, statement, ..Bind::default() };
        for _ in 0..rest.count()? {
            bind.formats.push(rest.number()?);
        }
        for _ in 0..rest.count()? {
            bind.values.push(rest.value()?);
        }
        for _ in 0..rest.count()? {
            bind.results.push(rest.number()?);
        }
        rest.end()?;
        bind.body = SmallVec::from_slice(body);
        Ok(bind)
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
    pub fn decode(body: &[u8]) -> Result<Named, Misshapen> {
        let mut rest = Cursor::new(body);
        let kind = rest.byte()?;
        if !matches!(kind, b'S' | b'P') {
            return Err(Misshapen::Malformed);
        }
        let name = Name::read(&mut rest, body)?;
        rest.end()?;
        Ok(Named { is_statement: kind == b'S', name })
    }

    pub fn name(&self) -> &str {
        self.name.get()
    }
}

impl Name {
    /// Of an Execute: the portal; the number of rows that follows does not matter, as there is one.
    pub fn decode(body: &[u8]) -> Result<Name, Misshapen> {
        let mut rest = Cursor::new(body);
        let name = Name::read(&mut rest, body)?;
        rest.skip(4)?;
        rest.end()?;
        Ok(name)
    }

    fn read(rest: &mut Cursor<'_>, body: &[u8]) -> Result<Name, Misshapen> {
        let (from, to) = rest.text()?;
        Ok(Name(SmallVec::from_slice(&body[from..to])))
    }

    pub fn get(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
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
            let read = Bind::decode(&body(&bind)).expect("well formed");
            prop_assert_eq!((read.portal(), read.statement()), (&*portal, &*statement));
            prop_assert_eq!((&*read.formats, &*read.results), (&*formats, &*results));
            let found: Vec<_> = read.values().map(|value| value.map(<[u8]>::to_vec)).collect();
            prop_assert_eq!(found, values);
            let kind = if is_statement { b'S' } else { b'P' };
            let named = Named::decode(&body(&codec::Close::new(kind, name(&portal)))).expect("well formed");
            prop_assert_eq!((named.is_statement, named.name()), (is_statement, &*portal));
            let execute = body(&codec::Execute::new(name(&portal), 7));
            let name = Name::decode(&execute).expect("well formed");
            prop_assert_eq!(name.get(), &*portal);
        }

        /// What is cut short, or goes on, is not taken for something else.
        #[test]
        fn what_is_malformed_is_refused(bytes: Vec<u8>, values: Vec<Option<Vec<u8>>>, cut in 1..40_usize) {
            let _ = (Bind::decode(&bytes).is_ok(), Named::decode(&bytes).is_ok(), Name::decode(&bytes).is_ok());
            let given = values.iter().map(|value| value.clone().map(Into::into)).collect();
            let whole = body(&codec::Bind::new(Some("p".to_owned()), None, vec![1], given, vec![0, 1]));
            let short = &whole[..whole.len().saturating_sub(cut)];
            prop_assert_eq!(Bind::decode(short).err(), Some(Misshapen::Malformed));
            prop_assert_eq!(Bind::decode(&[whole.as_slice(), &[0]].concat()).err(), Some(Misshapen::Malformed));
        }
    }
}
