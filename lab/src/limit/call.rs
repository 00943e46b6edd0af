//! What a client asks for, whatever its protocol: what protocols parse and storage carries out.

use std::io;

use super::outbound::Outbound;

/// When a write is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// As soon as it has arrived: a flush follows, and covers it.
    Unstable,
    /// When it is durable.
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Read,
    Write(Stability),
    /// All that was written is to be durable.
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The client's name for it, which the reply repeats.
    pub tag: u64,
    pub file: u32,
    pub offset: u64,
    pub bytes: u32,
    pub what: What,
}

/// What the start of some received bytes is.
#[derive(Clone, Copy, Debug)]
pub enum Parsed {
    /// Too little to say.
    Incomplete,
    /// A call with a head of so many bytes, behind which those come that a write writes, and some to skip.
    Call { head: usize, call: Call, padding: usize },
    /// So many bytes that are answered already.
    Answered(usize),
    /// The client's end.
    End,
}

/// The files of an export, by name and by number.
pub trait Files {
    /// The number of a file, if it exists.
    fn lookup(&mut self, name: &[u8]) -> Option<u32>;
    fn create(&mut self, name: &[u8]) -> io::Result<u32>;
    fn remove(&mut self, name: &[u8]) -> io::Result<()>;
    fn truncate(&mut self, file: u32, bytes: u64) -> io::Result<()>;
    /// Size of a file in bytes.
    fn bytes(&self, file: u32) -> u64;
}

pub trait Protocol {
    /// Looks at the start of `input`; what needs no storage is answered at once.
    ///
    /// # Errors
    /// When the client does not speak the protocol.
    fn parse(&self, input: &[u8], out: &mut Outbound, files: &mut dyn Files) -> io::Result<Parsed>;

    /// Adds the head of the reply: the call was done for `done` bytes of a file of `file_bytes` bytes, or failed.
    fn reply(&self, out: &mut Vec<u8>, call: &Call, done: io::Result<u32>, file_bytes: u64);

    /// Bytes that follow the data of a read, to a multiple of what the protocol counts in.
    fn padding(&self, bytes: u32) -> usize;
}
