//! The decoder alone: any bytes, in any pieces.

use proptest::prelude::*;

use super::{fragments, lookup, null, read_call, record, wait, write_call};
use crate::TRANSFER_BYTES_MAX;
use crate::record::{Decoded, EMPTY_FRAGMENTS_MAX, decode};

/// Records as clients send them, some of them damaged in a few places.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let message = prop_oneof![
        Just(null(1)),
        Just(lookup(2, b"a name of some length")),
        Just(read_call(3, 4096, 8192)),
        Just(wait(4, 0)),
        (0u64..10_000, 0usize..9000).prop_map(|(offset, len)| write_call(5, offset, &vec![0xee; len])),
    ];
    let cut = prop::collection::vec(0usize..2000, 0..5);
    let one = (message, cut).prop_map(|(message, lengths)| fragments(&message, &lengths));
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (prop::collection::vec(one, 1..8), damage).prop_map(|(records, damage)| {
        let mut stream = records.concat();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream
    })
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1usize..10, 1usize..5000], 1..10)
}

proptest! {
    #[test]
    fn any_bytes_hold_the_same_in_whatever_pieces_they_arrive(
        stream in prop_oneof![prop::collection::vec(any::<u8>(), 0..2000), nearly_right()],
        cuts in pieces(),
    ) {
        let whole = decode(&stream, &[usize::MAX]);
        prop_assert_eq!(decode(&stream, &cuts), whole);
        prop_assert!(whole.data <= stream.len());
    }
}

#[test]
fn what_clients_send_is_understood() {
    let stream = [record(&null(1)), record(&write_call(2, 1, &[1; 1001])), record(&lookup(3, b"name"))].concat();
    assert_eq!(decode(&stream, &[7]), Decoded { calls: 3, refused: 0, data: 1001, broken: false });
}

#[test]
fn fragments_without_bytes_are_bounded_and_such_of_one_byte_need_not_be() {
    let message = write_call(1, 0, &vec![0xee; TRANSFER_BYTES_MAX as usize]);
    let tiny = fragments(&message, &vec![1; message.len() - 1]);
    let whole = Decoded { calls: 1, refused: 0, data: TRANSFER_BYTES_MAX as usize, broken: false };
    assert_eq!(decode(&tiny, &[4096]), whole);
    assert_eq!(decode(&fragments(&message, &[0; EMPTY_FRAGMENTS_MAX]), &[4096]), whole);
    let empty = fragments(&message, &[0; EMPTY_FRAGMENTS_MAX + 1]);
    assert_eq!(decode(&empty, &[4096]), Decoded { broken: true, ..Decoded::default() });
}
