//! A client that speaks the protocol message by message.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::bank::Bank;

/// A message of a session.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

pub fn query(text: &str) -> Vec<u8> {
    message(b'Q', &[text.as_bytes(), b"\0"].concat())
}

pub fn startup() -> Vec<u8> {
    startup_with(b"")
}

/// `more`: parameters besides the user and the database.
pub fn startup_with(more: &[u8]) -> Vec<u8> {
    let body = [&(3_u32 << 16).to_be_bytes()[..], b"user\0ann\0database\0bank\0", more, b"\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

pub struct Client(pub UnixStream);

impl Client {
    pub fn connect(bank: &Bank) -> Client {
        Client::to(&bank.socket())
    }

    pub fn to(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Client(stream)
    }

    pub fn session(bank: &Bank) -> Client {
        let mut client = Client::connect(bank);
        client.send(&startup());
        let begun = client.until_ready();
        assert_eq!(begun.first().map(|(kind, _)| *kind), Some(b'R'));
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    /// `None`: the server has ended the connection.
    pub fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        match self.0.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return None,
            Err(error) => panic!("{error}"),
        }
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; len as usize - 4];
        self.0.read_exact(&mut body).expect("a whole message");
        Some((head[0], body))
    }

    /// The first value that a query returns, as a number; or the code of the error.
    pub fn number(&mut self, sql: &str) -> Result<i64, String> {
        self.try_number(sql).expect("the session goes on")
    }

    /// The same; `None` when the server is gone.
    pub fn try_number(&mut self, sql: &str) -> Option<Result<i64, String>> {
        self.0.write_all(&query(sql)).ok()?;
        let mut messages = Vec::new();
        while messages.last().is_none_or(|(kind, _)| *kind != b'Z') {
            messages.push(self.next()?);
        }
        Some(number(&messages))
    }

    /// All messages up to the server's readiness.
    pub fn until_ready(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            let message = self.next().expect("the session goes on");
            let is_ready = message.0 == b'Z';
            all.push(message);
            if is_ready {
                return all;
            }
        }
    }

    /// The code of the first error.
    pub fn refused(&mut self) -> String {
        let messages = self.until_ready();
        let (_, body) = messages.iter().find(|(kind, _)| *kind == b'E').expect("an error");
        code(body)
    }
}

fn number(messages: &[(u8, Vec<u8>)]) -> Result<i64, String> {
    if let Some((_, body)) = messages.iter().find(|(kind, _)| *kind == b'E') {
        return Err(code(body));
    }
    let (_, row) = messages.iter().find(|(kind, _)| *kind == b'D').expect("a row");
    Ok(String::from_utf8_lossy(&row[6..]).parse().expect("a number"))
}

pub fn code(body: &[u8]) -> String {
    let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&b'C')).expect("a code");
    String::from_utf8(field[1..].to_vec()).expect("text")
}
