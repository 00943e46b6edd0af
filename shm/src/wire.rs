//! What a program and the server say to each other before, and beside, the faults.
//!
//! The program connects and says [`Hello`]; the [`Answer`] has the volume's size. It maps memory of that size, and sends
//! an [`Offer`] with two descriptors: the userfaultfd and the memfd. The second answer has one descriptor, which the
//! program holds as long as it may have pages, and closes when it has none any more after the server has ended: the next
//! server waits for that. From then on the program sends requests, one at a time ([`FLUSH`]), and gets the error number or
//! 0 for each, 8 bytes each. Integers are little-endian.

use std::io::{self, Read};

/// Every hello begins with it; its last byte is the version.
pub const MAGIC: [u8; 8] = *b"awshm\0\0\x01";

/// Longest name of a volume, and longest text of an answer. Bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// The request to make durable what this program has written.
pub const FLUSH: u64 = 1;

/// Bytes of a request, and of its answer.
pub const REQUEST_BYTES: usize = 8;

/// The name of the volume that a program wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub volume: String,
}

/// "Yes", with the volume's size in bytes, or why not.
pub type Answer = Result<u64, String>;

/// Where the program has mapped the memory, and how much. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub base: u64,
    pub len: u64,
}

/// Bytes of an offer.
pub const OFFER_BYTES: usize = 16;

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| malformed("a text that is not UTF-8"))
}

fn receive_text(from: &mut impl Read) -> io::Result<String> {
    let len = usize::from(u16::from_le_bytes(take(from)?));
    if len > TEXT_BYTES_MAX {
        return Err(malformed("a text that is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    text(bytes)
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The text with its length, cut to the longest.
fn append_text(bytes: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    bytes.extend((end as u16).to_le_bytes());
    bytes.extend(&text.as_bytes()[..end]);
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        append_text(&mut bytes, &self.volume);
        bytes
    }

    /// # Errors
    /// The stream's, and `InvalidData` for what is no hello of this version.
    pub fn receive(from: &mut impl Read) -> io::Result<Hello> {
        if take(from)? != MAGIC {
            return Err(malformed("no hello of this version"));
        }
        Ok(Hello { volume: receive_text(from)? })
    }
}

pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    let mut bytes = vec![u8::from(answer.is_ok())];
    match answer {
        Ok(size) => bytes.extend(size.to_le_bytes()),
        Err(why) => append_text(&mut bytes, why),
    }
    bytes
}

/// # Errors
/// The stream's, and `InvalidData` for what is no answer.
pub fn receive_answer(from: &mut impl Read) -> io::Result<Answer> {
    match take(from)? {
        [1] => Ok(Ok(u64::from_le_bytes(take(from)?))),
        [0] => receive_text(from).map(Err),
        _ => Err(malformed("no answer")),
    }
}

impl Offer {
    pub fn encode(self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..8].copy_from_slice(&self.base.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; OFFER_BYTES]) -> Offer {
        let [base, len] =
            [&bytes[..8], &bytes[8..]].map(|half| half.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
        Offer { base, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello { volume: "s".into() };
        assert_eq!(Hello::receive(&mut &hello.encode()[..]).expect("a hello"), hello);
        for answer in [Ok(1 << 40), Err("no such volume".to_owned())] {
            assert_eq!(receive_answer(&mut &encode_answer(&answer)[..]).expect("an answer"), answer);
        }
        let offer = Offer { base: 0x7f00_1234_5000, len: 1 << 33 };
        assert_eq!(Offer::decode(&offer.encode()), offer);
    }

    #[test]
    fn what_is_too_long_is_cut_or_refused() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let answer = receive_answer(&mut &encode_answer(&Err(long))[..]).expect("an answer");
        assert_eq!(answer, Err("ä".repeat(TEXT_BYTES_MAX / 2)));
        let mut hello = Hello { volume: String::new() }.encode();
        hello[MAGIC.len()..].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(Hello::receive(&mut &hello[..]).expect_err("too long").kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            Hello::receive(&mut &b"GET / HTTP/1.1\r\n"[..]).expect_err("other").kind(),
            io::ErrorKind::InvalidData
        );
    }
}
