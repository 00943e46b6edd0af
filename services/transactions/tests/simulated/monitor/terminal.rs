//! A client of PostgreSQL's protocol in the simulated network.

use kernel::Processor;
use kernel::connection::{Gone, receive_exact, send_all};
use machine::Connection;
use sim::{HostId, World};

pub const PORT: u16 = 5433;

/// A message of a session.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

pub fn query(text: &str) -> Vec<u8> {
    message(b'Q', &[text.as_bytes(), b"\0"].concat())
}

/// A statement in the extended protocol, to be followed by [`sync`].
pub fn step(text: &str) -> Vec<u8> {
    [parse("", text), bind(""), message(b'E', b"\0\0\0\0\0")].concat()
}

/// A statement of this name.
pub fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0\0\0").as_bytes())
}

/// A portal of this name, for the statement without one.
pub fn bind(name: &str) -> Vec<u8> {
    message(b'B', format!("{name}\0\0\0\0\0\0\0\0").as_bytes())
}

/// The statement of this name, in the portal without one.
pub fn execute(statement: &str) -> Vec<u8> {
    let bind = message(b'B', format!("\0{statement}\0\0\0\0\0\0\0").as_bytes());
    [bind, message(b'E', b"\0\0\0\0\0")].concat()
}

pub fn flush() -> Vec<u8> {
    message(b'H', b"")
}

pub fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// The reply up to the server's readiness.
#[derive(Debug, Default)]
pub struct Reply {
    /// The first value of each row; `None`: NULL.
    pub values: Vec<Option<String>>,
    pub tags: Vec<String>,
    /// SQLSTATE.
    pub error: Option<String>,
    /// Those that it tells of, each as `name=value`.
    pub settings: Vec<String>,
    /// `I`, `T` or `E`: whether there is a block, and it has failed.
    pub status: u8,
}

/// A session, and what others need to cancel what it does.
pub struct Terminal {
    cpu: Processor,
    connection: Connection,
    pub key: Vec<u8>,
}

impl Terminal {
    /// `None`: there is no server, or it died.
    pub async fn open(cpu: &Processor, world: &World, from: HostId, to: HostId) -> Option<Terminal> {
        let connection = world.connect(from, to, PORT).ok()?;
        let mut terminal = Terminal { cpu: cpu.clone(), connection, key: Vec::new() };
        let body =
            [&(3_u32 << 16).to_be_bytes()[..], b"user\0ann\0database\0bank\0application_name\0test\0\0"].concat();
        let startup = [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat();
        match terminal.begin(&startup).await {
            Ok(()) => Some(terminal),
            Err(Gone) => {
                terminal.close();
                None
            }
        }
    }

    async fn begin(&mut self, startup: &[u8]) -> Result<(), Gone> {
        self.send(startup.to_vec()).await?;
        loop {
            match self.next().await? {
                (b'K', key) => self.key = key,
                (b'Z', _) => return Ok(()),
                (b'E', body) => panic!("refused: {}", code(&body)),
                _ => {}
            }
        }
    }

    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), Gone> {
        send_all(&self.cpu, self.connection, bytes).await
    }

    async fn next(&self) -> Result<(u8, Vec<u8>), Gone> {
        let head = receive_exact(&self.cpu, self.connection, 5).await?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        Ok((head[0], receive_exact(&self.cpu, self.connection, len as usize - 4).await?))
    }

    /// All messages up to the server's readiness.
    pub async fn reply(&self) -> Result<Reply, Gone> {
        let mut reply = Reply::default();
        loop {
            match self.next().await? {
                (b'D', body) => reply.values.push(value(&body)),
                (b'C', body) => reply.tags.push(text(&body)),
                (b'E', body) => reply.error = Some(code(&body)),
                (b'S', body) => reply.settings.push(text(&body).replace('\0', "=")),
                (b'Z', body) => {
                    reply.status = body[0];
                    return Ok(reply);
                }
                _ => {}
            }
        }
    }

    pub async fn ask(&self, text: &str) -> Result<Reply, Gone> {
        self.send(query(text)).await?;
        self.reply().await
    }

    pub fn close(self) {
        self.cpu.shutdown(self.connection);
        self.cpu.close(self.connection);
    }
}

/// Has what a session executes cancelled, on a connection of its own.
pub async fn cancel(cpu: &Processor, world: &World, from: HostId, to: HostId, key: &[u8]) {
    let Ok(connection) = world.connect(from, to, PORT) else { return };
    let request = [&16_u32.to_be_bytes()[..], &80_877_102_u32.to_be_bytes(), key].concat();
    if send_all(cpu, connection, request).await.is_ok() {
        // Until the server closes it.
        let _ = receive_exact(cpu, connection, 1).await;
    }
    cpu.close(connection);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn value(row: &[u8]) -> Option<String> {
    let len = row.get(2..6).map_or(-1, |len| i32::from_be_bytes([len[0], len[1], len[2], len[3]]));
    usize::try_from(len).ok().map(|len| text(&row[6..6 + len]))
}

fn code(body: &[u8]) -> String {
    let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&b'C'));
    text(&field.expect("a code")[1..])
}
