//! What clients send is decoded or refused, whatever it is and however it arrives.

use bytes::BytesMut;
use pgwire::messages::extendedquery::{Bind, Close, Describe, Execute, Parse, Sync};
use pgwire::messages::simplequery::Query;
use proptest::prelude::*;

use super::message::decode;
use super::wire::put;

/// Messages as the codec of clients makes them.
fn good(text: &str, numbers: &[i16], values: Vec<Option<Vec<u8>>>) -> (Vec<u8>, usize) {
    let mut out = BytesMut::new();
    let name = Some(text.to_owned()).filter(|text| !text.is_empty());
    put(&mut out, &Query::new(text.to_owned()));
    put(&mut out, &Parse::new(name.clone(), text.to_owned(), numbers.iter().map(|number| *number as u32).collect()));
    let values = values.into_iter().map(|value| value.map(Into::into)).collect();
    put(&mut out, &Bind::new(name.clone(), None, numbers.to_vec(), values, numbers.to_vec()));
    put(&mut out, &Describe::new(b'P', name.clone()));
    put(&mut out, &Execute::new(name.clone(), 0));
    put(&mut out, &Close::new(b'S', name));
    put(&mut out, &Sync::new());
    (out.to_vec(), 7)
}

proptest! {
    #[test]
    fn messages_of_clients_are_decoded_in_whatever_pieces_they_arrive(
        text in "[^\\x00]{0,20}",
        numbers: Vec<i16>,
        values: Vec<Option<Vec<u8>>>,
        cuts in prop::collection::vec(1_usize..50, 1..5),
    ) {
        let (stream, count) = good(&text, &numbers, values);
        prop_assert_eq!(decode(&stream, &cuts), (count, 0, false));
    }

    /// The codec would panic at many of these.
    #[test]
    fn damaged_messages_are_decoded_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(1_usize..50, 1..5),
    ) {
        let (mut stream, _) = good("SELECT f($1)", &[0, 1], vec![None, Some(vec![1, 2, 3])]);
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream.truncate(cut.index(stream.len() + 1));
        let whole = decode(&stream, &[usize::MAX]);
        prop_assert_eq!(decode(&stream, &cuts), whole);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(stream: Vec<u8>) {
        let _ = decode(&stream, &[7]);
    }
}
