use policy::pages::PageSize;
use proptest::prelude::*;

use super::*;
use crate::frame::{FramePool, PoolConfig};

/// A message of an invented protocol: whether payload follows, its offset, its length.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Message {
    is_write: bool,
    offset: u64,
    len: u32,
}

const HEADER_BYTES: usize = 28;
const WRITE: bool = true;
const READ: bool = false;

impl Message {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0xaa; HEADER_BYTES];
        bytes[0] = u8::from(self.is_write);
        bytes[1..9].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; HEADER_BYTES]) -> Message {
        assert!(bytes[9..24].iter().all(|byte| *byte == 0xaa), "headers are where headers are");
        let offset = u64::from_be_bytes(bytes[1..9].try_into().expect("8 bytes"));
        let len = u32::from_be_bytes(bytes[24..].try_into().expect("4 bytes"));
        Message { is_write: bytes[0] == 1, offset, len }
    }
}

fn pool() -> FramePool {
    let pool = FramePool::new(PoolConfig { bytes_max: 4 << 20, chunk_bytes: 4 << 20, register: false, processors: 1 })
        .expect("address space");
    assert!(pool.grow(1, PageSize::Small));
    pool
}

/// What a client sends: each request with its payload (empty unless it is a write).
fn stream(requests: &[(bool, u64, usize)]) -> (Vec<u8>, Vec<(Message, Vec<u8>)>) {
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for (no, &(is_write, offset, len)) in requests.iter().enumerate() {
        let request = Message { is_write, offset, len: len as u32 };
        let payload: Vec<u8> =
            if is_write { (0..len).map(|at| (at * 31 + no * 7) as u8).collect() } else { Vec::new() };
        bytes.extend_from_slice(&request.encode());
        bytes.extend_from_slice(&payload);
        expected.push((request, payload));
    }
    (bytes, expected)
}

/// Feeds `bytes` in pieces according to `cuts`, and takes the requests as a connection would. Returns them and the
/// number of receives.
fn take_all(pool: &FramePool, bytes: &[u8], cuts: &[usize]) -> (Vec<(Message, Vec<u8>)>, usize) {
    let mut scatter = Scatter::new();
    let mut taken = Vec::new();
    let mut at = 0;
    let mut receives = 0;
    let mut open: Option<Message> = None;
    let (mut header, mut begun) = ([0; HEADER_BYTES], 0);
    loop {
        if let Some(request) = open {
            if let Some(frames) = scatter.payload() {
                let all: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
                let start = (request.offset % FRAME_BYTES as u64) as usize;
                taken.push((request, all[start..start + request.len as usize].to_vec()));
                open = None;
                continue;
            }
        } else {
            begun += scatter.take(&mut header[begun..]);
            if begun == HEADER_BYTES {
                begun = 0;
                let request = Message::decode(header);
                if !request.is_write {
                    scatter.on_other();
                    taken.push((request, Vec::new()));
                    continue;
                }
                let (offset, len) = ((request.offset % FRAME_BYTES as u64) as usize, request.len as usize);
                let mut fresh = Frames::new();
                if !scatter.is_predicted(offset, len) {
                    pool.take(frames_for((offset, len)), &mut fresh);
                }
                scatter.begin_payload(offset, len, fresh);
                open = Some(request);
                continue;
            }
        }
        if at == bytes.len() {
            assert!(begun == 0 && !scatter.is_within_payload(), "nothing is left over");
            return (taken, receives);
        }
        // The budget changes with what other connections hold.
        let budget = if receives % 7 == 6 { receives % 5 } else { usize::MAX };
        let headers = Headers { first: HEADER_BYTES - begun, each: HEADER_BYTES };
        let (hold, segments) = scatter.plan(headers, budget, |count, into| pool.take(count, into));
        let cut = cuts[receives % cuts.len()].max(1);
        let mut left = cut.min(bytes.len() - at);
        let mut received = 0;
        for segment in segments {
            let len = left.min(segment.len as usize);
            // SAFETY: the segment lies in the hold, to which nothing else has access now.
            unsafe { segment.ptr.copy_from_nonoverlapping(bytes[at..].as_ptr(), len) };
            at += len;
            received += len;
            left -= len;
        }
        scatter.land(hold, received);
        receives += 1;
    }
}

fn request() -> impl Strategy<Value = (bool, u64, usize)> {
    let write = (0u64..3, prop_oneof![Just(4096usize), 1usize..9000]).prop_map(|(at, len)| (WRITE, at * 2048, len));
    let other = (Just(READ), Just(0u64), 1usize..100_000);
    prop_oneof![3 => write, 1 => other, 2 => Just((WRITE, 8192, 4096))]
}

proptest! {
    #[test]
    fn every_request_comes_out_as_it_went_in(
        requests in prop::collection::vec(request(), 1..40),
        cuts in prop::collection::vec(prop_oneof![1usize..60, 1usize..40_000, Just(1 << 20)], 1..20),
    ) {
        let pool = pool();
        let (bytes, expected) = stream(&requests);
        let (taken, _) = take_all(&pool, &bytes, &cuts);
        prop_assert_eq!(taken, expected);
    }
}

#[test]
fn a_pipeline_of_equal_writes_needs_few_receives() {
    let pool = pool();
    let (bytes, expected) = stream(&[(WRITE, 4096, 4096); 256]);
    let (taken, receives) = take_all(&pool, &bytes, &[1 << 20]);
    assert!(taken == expected);
    assert!(receives <= 256 / 16 + 10, "{receives} receives for 256 writes");
}

#[test]
fn a_pipeline_of_reads_needs_few_receives() {
    let pool = pool();
    let (bytes, expected) = stream(&[(READ, 4096, 4096); 256]);
    let (taken, receives) = take_all(&pool, &bytes, &[1 << 20]);
    assert!(taken == expected);
    assert!(receives <= 3, "{receives} receives for 256 reads");
}

#[test]
fn frames_predicted_in_vain_are_given_back_or_used() {
    let pool = pool();
    let before = pool.frames_free();
    let mut requests = vec![(WRITE, 4096, 4096); 64];
    requests.extend([(READ, 0, 1); 64]);
    let (bytes, _) = stream(&requests);
    take_all(&pool, &bytes, &[5000]);
    assert_eq!(pool.frames_free(), before);
}
