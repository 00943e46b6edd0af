//! A minimal NBD client, written from the protocol's text, so that a test knows exactly what was acknowledged.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;

/// Durable before the reply.
pub const FLAG_FUA: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's names")]
#[repr(u16)]
pub enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

pub struct Client {
    stream: UnixStream,
    pub size: u64,
    cookie: u64,
}

impl Client {
    /// Connects and negotiates an export.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut client = Client { stream, size: 0, cookie: 0 };
        client.negotiate(export)?;
        Ok(client)
    }

    fn negotiate(&mut self, export: &str) -> io::Result<()> {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        assert_eq!(greeting[8..16], IHAVEOPT.to_be_bytes());
        // Fixed newstyle, no zeroes.
        let export = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &0u16.to_be_bytes()].concat();
        let message = [&3u32.to_be_bytes()[..], &option(OPT_GO, &export)].concat();
        self.stream.write_all(&message)?;
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head)?;
            assert_eq!(head[..8], OPTION_REPLY.to_be_bytes());
            let kind = be_u32(&head[12..16]);
            let mut payload = vec![0; be_u32(&head[16..20]) as usize];
            self.stream.read_exact(&mut payload)?;
            match kind {
                REP_ACK => return Ok(()),
                REP_INFO if payload[..2] == INFO_EXPORT.to_be_bytes() => {
                    self.size = u64::from_be_bytes(payload[2..10].try_into().expect("8 bytes"));
                }
                REP_INFO => {}
                _ => {
                    let text = String::from_utf8_lossy(&payload).into_owned();
                    return Err(io::Error::other(format!("refused with {kind:#x}: {text}")));
                }
            }
        }
    }

    pub fn read(&mut self, at: u64, len: u32) -> io::Result<Vec<u8>> {
        self.send(Command::Read, 0, at, len, &[])?;
        self.reply()?;
        self.payload(len as usize)
    }

    /// Sends a read without waiting for the answer. Returns its cookie.
    pub fn ask_to_read(&mut self, at: u64, len: u32) -> io::Result<u64> {
        self.send(Command::Read, 0, at, len, &[])
    }

    /// Receives the answer to any read of `len` bytes. Returns its cookie.
    pub fn take_read(&mut self, len: u32) -> io::Result<u64> {
        let cookie = self.any_reply()?;
        self.payload(len as usize)?;
        Ok(cookie)
    }

    /// Writes; not durable when it returns.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.send(Command::Write, 0, at, bytes.len() as u32, bytes)?;
        self.reply()
    }

    /// Writes with forced unit access: durable when it returns.
    pub fn write_stable(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.send(Command::Write, FLAG_FUA, at, bytes.len() as u32, bytes)?;
        self.reply()
    }

    /// Makes all earlier writes durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.send(Command::Flush, 0, 0, 0, &[])?;
        self.reply()
    }

    pub fn disconnect(mut self) -> io::Result<()> {
        self.send(Command::Disconnect, 0, 0, 0, &[])?;
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map(|_| ())
    }

    /// Sends a request without waiting for the answer. Returns its cookie.
    pub fn send(&mut self, command: Command, flags: u16, at: u64, len: u32, payload: &[u8]) -> io::Result<u64> {
        self.cookie += 1;
        self.stream.write_all(&request(flags, command as u16, self.cookie, at, len, payload))?;
        Ok(self.cookie)
    }

    /// Receives the answer to any request: its cookie, and the error or 0. Data follows ([`Client::payload`]).
    pub fn answer(&mut self) -> io::Result<(u64, u32)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        assert_eq!(head[..4], SIMPLE_REPLY.to_be_bytes());
        Ok((u64::from_be_bytes(head[8..].try_into().expect("8 bytes")), be_u32(&head[4..8])))
    }

    pub fn payload(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn reply(&mut self) -> io::Result<()> {
        let cookie = self.any_reply()?;
        assert_eq!(cookie, self.cookie, "a reply to another request");
        Ok(())
    }

    fn any_reply(&mut self) -> io::Result<u64> {
        match self.answer()? {
            (cookie, 0) => Ok(cookie),
            (_, error) => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

/// An option of the negotiation.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let head = [&IHAVEOPT.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
    [&head, data].concat()
}

pub fn request(flags: u16, kind: u16, cookie: u64, at: u64, len: u32, payload: &[u8]) -> Vec<u8> {
    let head = [&REQUEST.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes()];
    [&head.concat()[..], &at.to_be_bytes(), &len.to_be_bytes(), payload].concat()
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("4 bytes"))
}
