//! The stream of replies on one connection, cut into records. The data of a READ does not pass through here: where it
//! begins, the record's head ends, and the rest goes straight into the frames that wait for it.

use kernel::connection::{Decoder, Headers, Next};

use super::message::{LAST_FRAGMENT, MARK_BYTES, Parsed, parse};
use crate::results::Results;

/// Longest record that is accepted, in bytes: the longest data, and room for what is around it.
const RECORD_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Bytes taken at a time.
const PIECE_BYTES: usize = 8 << 10;

/// A reply up to its data.
pub(crate) struct Arrived {
    pub xid: u32,
    /// From its number on.
    pub bytes: Vec<u8>,
    /// Bytes of the record that follow.
    pub rest: usize,
}

pub(crate) struct Records {
    /// Does the call of this number have a place for its reply's data?
    awaits_data: Box<dyn Fn(u32) -> bool>,
    mark: [u8; MARK_BYTES],
    marked: usize,
    /// Of the present fragment.
    left: usize,
    is_last: bool,
    /// The record has several fragments.
    is_split: bool,
    bytes: Vec<u8>,
}

impl Records {
    pub fn new(awaits_data: impl Fn(u32) -> bool + 'static) -> Self {
        let awaits_data = Box::new(awaits_data);
        let (mark, bytes) = ([0; MARK_BYTES], Vec::new());
        Records { awaits_data, mark, marked: 0, left: 0, is_last: false, is_split: false, bytes }
    }

    /// Reads the mark of the next fragment. False: it is longer than any reply.
    fn begin_fragment(&mut self) -> bool {
        let mark = u32::from_be_bytes(self.mark);
        self.marked = 0;
        self.is_last = mark & LAST_FRAGMENT != 0;
        self.is_split |= !self.is_last;
        self.left = (mark & !LAST_FRAGMENT) as usize;
        self.bytes.len() + self.left <= RECORD_BYTES_MAX
    }

    fn number(&self) -> Option<u32> {
        Results::new(&self.bytes).u32()
    }

    /// Bytes of the record's head that are still needed; 0: it is whole.
    fn missing(&self) -> usize {
        let all = self.left;
        let Some(xid) = self.number() else { return all.min(4) };
        // A record in several fragments is collected as a whole.
        if self.is_split || !(self.awaits_data)(xid) {
            return all;
        }
        let needed = match head_of_read(&self.bytes) {
            Some(needed) => needed,
            None => return all,
        };
        needed.saturating_sub(self.bytes.len()).min(all)
    }

    fn take(&mut self) -> Option<Arrived> {
        let xid = self.number()?;
        let arrived = Arrived { xid, bytes: std::mem::take(&mut self.bytes), rest: self.left };
        (self.left, self.is_last, self.is_split) = (0, false, false);
        Some(arrived)
    }
}

/// Length of the head of READ's reply, or of as much as must be there to know more of it. `None`: it has no data.
fn head_of_read(reply: &[u8]) -> Option<usize> {
    let at = match parse(reply) {
        Parsed::More(needed) => return Some(needed),
        Parsed::Accepted(at) => at,
        Parsed::Refused(_) | Parsed::Malformed => return None,
    };
    let mut results = Results::new(&reply[at..]);
    let Some(status) = results.u32() else { return Some(at + 4) };
    if status != 0 {
        return None;
    }
    let Some(follow) = results.boolean() else { return Some(at + 8) };
    // The attributes; count, end of file, length of the data.
    Some(at + 8 + if follow { 84 } else { 0 } + 12)
}

impl Decoder for Records {
    type Call = Arrived;

    fn next(&mut self) -> Next<Arrived> {
        loop {
            if self.left == 0 && !self.is_last {
                if self.marked < MARK_BYTES {
                    return Next::Bytes(MARK_BYTES - self.marked);
                }
                if !self.begin_fragment() {
                    return Next::Malformed;
                }
                continue;
            }
            match self.missing() {
                0 if self.is_last => return self.take().map_or(Next::Malformed, Next::Call),
                0 => {}
                missing => return Next::Bytes(missing.min(PIECE_BYTES)),
            }
        }
    }

    fn give(&mut self, most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize {
        if self.left == 0 {
            let count = source(&mut self.mark[self.marked..]);
            self.marked += count;
            return count;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + most.min(self.left), 0);
        let count = source(&mut self.bytes[at..]);
        self.bytes.truncate(at + count);
        self.left -= count;
        count
    }

    fn is_within_message(&self) -> bool {
        self.marked > 0 || self.left > 0 || !self.bytes.is_empty()
    }

    fn has_payload(&self, _arrived: &Arrived) -> bool {
        // Data goes into frames that are known when it comes.
        false
    }

    fn headers(&self) -> Headers {
        Headers { first: 0, each: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number 7, accepted, of READ with attributes, end of file and `data`.
    fn reply(data: &[u8]) -> Vec<u8> {
        let mut reply: Vec<u8> = [7, 1, 0, 0, 0, 0, 0, 1].into_iter().flat_map(u32::to_be_bytes).collect();
        reply.extend([0; 84]);
        for number in [data.len() as u32, 1, data.len() as u32] {
            reply.extend(number.to_be_bytes());
        }
        reply.extend(data);
        reply
    }

    /// What arrives if the fragments come as much at a time as is asked for; what follows it is not consumed.
    fn arrived(fragments: &[&[u8]]) -> Arrived {
        let mut stream = Vec::new();
        for (number, fragment) in fragments.iter().enumerate() {
            let last = if number + 1 == fragments.len() { LAST_FRAGMENT } else { 0 };
            stream.extend((fragment.len() as u32 | last).to_be_bytes());
            stream.extend_from_slice(fragment);
        }
        let (mut records, mut stream) = (Records::new(|_| true), &stream[..]);
        loop {
            match records.next() {
                Next::Call(arrived) => return arrived,
                Next::Bytes(most) => {
                    records.give(most, |into| {
                        let (here, rest) = stream.split_at(into.len().min(stream.len()));
                        assert!(!here.is_empty(), "more is asked for than there is");
                        into[..here.len()].copy_from_slice(here);
                        stream = rest;
                        here.len()
                    });
                }
                Next::Skip(_) | Next::Malformed => panic!("it is well-formed, and all of it counts"),
            }
        }
    }

    #[test]
    fn the_data_of_a_read_is_not_collected_unless_the_record_comes_in_pieces() {
        let (data, whole) = ([9; 10_000], reply(&[9; 10_000]));
        let head = whole.len() - data.len();
        let one = arrived(&[&whole]);
        assert_eq!((one.xid, one.bytes.len(), one.rest), (7, head, data.len()));
        for cut in [3, 20, head - 1, head, head + 1, head + 5000] {
            let split = arrived(&[&whole[..cut], &whole[cut..]]);
            assert!(split.bytes == whole && split.rest == 0, "cut at {cut}");
        }
    }
}
