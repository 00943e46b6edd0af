//! Whatever a client sends is taken apart or refused, and the same in whatever pieces it comes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nfs::record::decode;

fuzz_target!(|input: (Vec<u8>, Vec<usize>)| {
    let (stream, cuts) = input;
    let cuts = if cuts.is_empty() { vec![1] } else { cuts };
    assert_eq!(decode(&stream, &cuts), decode(&stream, &[usize::MAX]));
});
