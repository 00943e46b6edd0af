//! Clients that cost so little that the server has to keep up with them: requests go out together, replies are counted
//! and not looked at. (fio needs several times the processor time of the server for a small request: beside it, no server's
//! queue ever fills on a few cores.)

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that each request reads or writes.
const BLOCK_BYTES: usize = 4096;

/// Of a simple reply's header (NBD protocol, "Simple reply message").
const REPLY_HEAD_BYTES: usize = 16;

/// Of a request ("Request message").
const REQUEST_BYTES: usize = 28;

/// What is received at a time, at most.
const BUFFER_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

impl Kind {
    fn reply_bytes(self) -> usize {
        match self {
            Kind::Read => REPLY_HEAD_BYTES + BLOCK_BYTES,
            Kind::Write => REPLY_HEAD_BYTES,
        }
    }

    fn request(self, block: u64) -> Vec<u8> {
        let mut request = vec![0; REQUEST_BYTES];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        request[16..24].copy_from_slice(&(block * BLOCK_BYTES as u64).to_be_bytes());
        request[24..].copy_from_slice(&(BLOCK_BYTES as u32).to_be_bytes());
        if self == Kind::Write {
            // NBD_CMD_WRITE.
            request[7] = 1;
            request.resize(REQUEST_BYTES + BLOCK_BYTES, 7);
        }
        request
    }
}

#[derive(Clone, Debug)]
pub enum At {
    Unix(PathBuf),
    /// A port of this host.
    Port(u16),
}

/// A connection in its transmission phase.
pub struct Connection {
    stream: Box<dyn Stream>,
    blocks: u64,
    /// Of the offsets: any will do.
    state: u64,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Connection {
    /// Connects and asks for an export.
    pub fn open(at: &At, export: &str) -> io::Result<Connection> {
        let mut stream: Box<dyn Stream> = match at {
            At::Unix(path) => Box::new(UnixStream::connect(path)?),
            At::Port(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME.
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let mut answer = 3_u32.to_be_bytes().to_vec();
        answer.extend_from_slice(b"IHAVEOPT");
        answer.extend_from_slice(&1_u32.to_be_bytes());
        answer.extend_from_slice(&(export.len() as u32).to_be_bytes());
        answer.extend_from_slice(export.as_bytes());
        stream.write_all(&answer)?;
        let mut facts = [0; 10];
        stream.read_exact(&mut facts)?;
        let bytes = facts[..8].iter().fold(0, |bytes, byte| bytes << 8 | u64::from(*byte));
        Ok(Connection { stream, blocks: (bytes / BLOCK_BYTES as u64).max(1), state: 0x9e37_79b9_7f4a_7c15 })
    }

    /// Keeps so many requests in flight until told to end. How many were answered.
    pub fn keep_in_flight(&mut self, kind: Kind, depth: usize, ends: &AtomicBool) -> io::Result<u64> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut answered, mut begun) = (0, 0);
        self.ask(kind, depth)?;
        while !ends.load(Ordering::Relaxed) {
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            begun += count;
            let done = begun / kind.reply_bytes();
            begun %= kind.reply_bytes();
            answered += done as u64;
            self.ask(kind, done)?;
        }
        Ok(answered)
    }

    pub fn read_all(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; Kind::Read.reply_bytes()];
        for block in 0..self.blocks {
            self.stream.write_all(&Kind::Read.request(block))?;
            self.stream.read_exact(&mut buffer)?;
        }
        Ok(())
    }

    /// Reads one block after the other for so long. How long each took.
    pub fn one_at_a_time(&mut self, duration: Duration) -> io::Result<Vec<Duration>> {
        let mut buffer = vec![0; Kind::Read.reply_bytes()];
        let mut took = Vec::with_capacity(1 << 16);
        let end = Instant::now() + duration;
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(took);
            }
            self.ask(Kind::Read, 1)?;
            self.stream.read_exact(&mut buffer)?;
            took.push(began.elapsed());
        }
    }

    fn ask(&mut self, kind: Kind, number: usize) -> io::Result<()> {
        let mut requests = Vec::new();
        for _ in 0..number {
            // Marsaglia, "Xorshift RNGs".
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            requests.extend_from_slice(&kind.request(self.state % self.blocks));
        }
        if requests.is_empty() { Ok(()) } else { self.stream.write_all(&requests) }
    }
}
