//! A terminal of a database: a client of PostgreSQL's protocol that waits for each answer.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Only a server that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a query returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The first value of the first row, as text.
    pub value: Option<String>,
    /// SQLSTATE, if it was refused or failed.
    pub error: Option<String>,
}

pub struct Terminal(UnixStream);

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

pub fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Terminal {
    /// # Errors
    /// If there is no server, or it refuses.
    pub fn open(socket: &Path, database: &str) -> io::Result<Terminal> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut terminal = Terminal(stream);
        let names = format!("user\0test\0database\0{database}\0\0");
        let body = [&(3_u32 << 16).to_be_bytes()[..], names.as_bytes()].concat();
        terminal.0.write_all(&[&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat())?;
        match terminal.answer()?.error {
            None => Ok(terminal),
            Some(code) => Err(io::Error::other(format!("refused: {code}"))),
        }
    }

    /// # Errors
    /// If the connection ends.
    pub fn ask(&mut self, sql: &str) -> io::Result<Answer> {
        self.send(sql)?;
        self.answer()
    }

    /// A query whose answer is not waited for.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send(&mut self, sql: &str) -> io::Result<()> {
        self.send_bytes(&query(sql))
    }

    /// # Errors
    /// If the connection has ended.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    pub fn end_sending(&self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// The next message: its kind and body.
    ///
    /// # Errors
    /// If the connection has ended.
    ///
    /// # Panics
    /// If there is none for long.
    pub fn next(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        let read = self.0.read_exact(&mut head);
        let is_late = read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(!is_late, "no message within {TIMEOUT:?}");
        read?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; (len as usize).saturating_sub(4)];
        self.0.read_exact(&mut body)?;
        Ok((head[0], body))
    }

    /// Up to the server's readiness, or its refusal of the session.
    fn answer(&mut self) -> io::Result<Answer> {
        let mut answer = Answer::default();
        loop {
            let (kind, body) = self.next()?;
            match kind {
                b'Z' => return Ok(answer),
                b'D' if answer.value.is_none() => {
                    let len = body.get(2..6).map_or(-1, |len| i32::from_be_bytes([len[0], len[1], len[2], len[3]]));
                    answer.value = usize::try_from(len).ok().and_then(|len| body.get(6..6 + len)).map(text);
                }
                b'E' => {
                    let field = |of: u8| body.split(|byte| *byte == 0).find(|field| field.first() == Some(&of));
                    answer.error = field(b'C').map(|field| text(&field[1..]));
                    if field(b'S').is_some_and(|field| &field[1..] == b"FATAL") {
                        return Ok(answer);
                    }
                }
                _ => {}
            }
        }
    }
}
