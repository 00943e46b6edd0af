//! The decoder alone: any bytes, in pieces of any size.

use proptest::prelude::*;

use super::{MOUNT, NFS, fragments, lookup, null, opaque, read_call, record, wait, write_call, xdr};
use crate::TRANSFER_BYTES_MAX;
use crate::record::{Decoded, EMPTY_FRAGMENTS_MAX, decode};
use testkit::random::Random;
use testkit::rounds::for_seeds;

/// Records as clients send them, some of them damaged.
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
        prop_assert!(whole.understood <= whole.calls);
    }

    /// Arguments of any procedure are decoded or refused.
    #[test]
    fn arguments_of_every_procedure_are_decoded_or_refused(
        (program, procedure) in prop_oneof![(Just(NFS), 0u32..=22), (Just(MOUNT), 0u32..=6)],
        words in prop::collection::vec(prop_oneof![0u32..5, 0u32..70, any::<u32>()], 0..60),
    ) {
        let words = [&[1, 0, 2, program, 3, procedure, 0, 0, 0, 0], &words[..]].concat();
        let decoded = decode(&record(&xdr(&words, &[])), &[usize::MAX]);
        prop_assert!(!decoded.malformed);
        prop_assert_eq!(decoded.calls + decoded.refused, 1);
    }
}

/// Random damage to valid streams, for the requested number of seeds: a fuzzer without coverage.
#[test]
fn streams_with_random_damage_are_taken_apart_or_end() {
    let handle = opaque(&[7; 32]);
    let two = [&handle[..], &opaque(b"name")].concat();
    let attributes = xdr(&[1, 0o644, 0, 0, 1, 0, 5, 2, 7, 8, 1], &[]);
    let rest = xdr(&[0, 1, 0, 0, 0, 4096, 0, 4096], &[]);
    let corpus: Vec<Vec<u8>> = (0..22)
        .map(|procedure| {
            let words = xdr(&[9, 0, 2, NFS, 3, procedure, 1, 20, 0, 0, 1, 1, 0, 0, 0], &[]);
            let arguments = match procedure {
                2 => [&handle[..], &attributes, &xdr(&[0], &[])].concat(),
                7 => [&handle[..], &xdr(&[0, 5, 9, 2], &[]), &opaque(b"nine byte")].concat(),
                8 => [&two[..], &xdr(&[1], &[]), &attributes].concat(),
                9 => [&two[..], &attributes].concat(),
                10 => [&two[..], &attributes, &opaque(b"target")].concat(),
                11 => [&two[..], &xdr(&[7], &[]), &attributes].concat(),
                14 => [&two[..], &two].concat(),
                15 => [&handle[..], &two].concat(),
                3 | 12 | 13 => two.clone(),
                _ => [&handle[..], &rest].concat(),
            };
            record(&[words, arguments].concat())
        })
        .chain([1, 3].map(|procedure| {
            record(&[xdr(&[9, 0, 2, MOUNT, 3, procedure, 0, 0, 0, 0], &[]), opaque(b"/files")].concat())
        }))
        .collect();
    let all = decode(&corpus.concat(), &[usize::MAX]);
    assert_eq!((all.calls, all.understood, all.refused), (24, 24, 0), "the corpus is right before it is damaged");
    for_seeds("streams_with_random_damage_are_taken_apart_or_end", 2000, |seed| {
        let mut random = Random(seed);
        for _ in 0..20 {
            let mut stream: Vec<u8> = Vec::new();
            for _ in 0..1 + random.below(3) {
                stream.extend(&corpus[random.below(corpus.len() as u64) as usize]);
            }
            for _ in 0..random.below(4) {
                let at = random.below(stream.len() as u64) as usize;
                match random.below(4) {
                    0 => stream[at] = random.next() as u8,
                    1 => stream[at] ^= 1 << random.below(8),
                    2 => drop(stream.remove(at)),
                    _ => stream.insert(at, random.next() as u8),
                }
            }
            let cut = 1 + random.below(40) as usize;
            assert_eq!(decode(&stream, &[cut]), decode(&stream, &[usize::MAX]), "pieces of {cut}");
        }
    });
}

#[test]
fn what_clients_send_is_understood() {
    let stream = [record(&null(1)), record(&write_call(2, 1, &[1; 1001])), record(&lookup(3, b"name"))].concat();
    assert_eq!(decode(&stream, &[7]), Decoded { calls: 3, understood: 3, refused: 0, data: 1001, malformed: false });
}

#[test]
fn fragments_without_bytes_are_bounded_and_such_of_one_byte_need_not_be() {
    let message = write_call(1, 0, &vec![0xee; TRANSFER_BYTES_MAX as usize]);
    let tiny = fragments(&message, &vec![1; message.len() - 1]);
    let whole = Decoded { calls: 1, understood: 1, refused: 0, data: TRANSFER_BYTES_MAX as usize, malformed: false };
    assert_eq!(decode(&tiny, &[4096]), whole);
    assert_eq!(decode(&fragments(&message, &[0; EMPTY_FRAGMENTS_MAX]), &[4096]), whole);
    let empty = fragments(&message, &[0; EMPTY_FRAGMENTS_MAX + 1]);
    assert_eq!(decode(&empty, &[4096]), Decoded { malformed: true, ..Decoded::default() });
}
