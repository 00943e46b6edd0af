//! One connection to a server that speaks PostgreSQL's protocol.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::BytesMut;
use pgwire::error::PgWireResult;
use pgwire::messages::extendedquery::{Bind, Execute, Parse, Sync};
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::{Authentication, SASLInitialResponse, SASLResponse, Startup};
use pgwire::messages::{DecodeContext, Message, PgWireBackendMessage, ProtocolVersion};
use transactions::terminal::{Login, MECHANISM};

use super::password;

/// PostgreSQL's port here (5432 is that of PostgreSQL itself).
const PORT: u16 = 5433;

/// A server that says nothing for so long is given up while a terminal is set up.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

const READ_BYTES: usize = 16 << 10;

/// Where the server is, and as whom to come.
#[derive(Clone, Debug)]
pub struct Target {
    place: Place,
    database: String,
    user: String,
}

#[derive(Clone, Debug)]
enum Place {
    Tcp(String),
    /// The socket itself, or the directory that has it, as libpq's `host`.
    Unix(PathBuf),
}

impl Target {
    /// `server`: an address, a socket or its directory; by default this host.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn new(server: Option<&str>, database: &str, user: &str) -> anyhow::Result<Target> {
        let place = match server.unwrap_or("127.0.0.1") {
            "" => bail!("--server is empty"),
            path if path.contains('/') => {
                let path = PathBuf::from(path);
                Place::Unix(if path.is_dir() { path.join(format!(".s.PGSQL.{PORT}")) } else { path })
            }
            address if address.parse::<std::net::SocketAddr>().is_ok() => Place::Tcp(address.to_owned()),
            address if address.parse::<std::net::Ipv6Addr>().is_ok() => Place::Tcp(format!("[{address}]:{PORT}")),
            address if address.contains(':') => Place::Tcp(address.to_owned()),
            address => Place::Tcp(format!("{address}:{PORT}")),
        };
        Ok(Target { place, database: database.to_owned(), user: user.to_owned() })
    }

    /// As a password file has it: host, port, database, user. libpq's `localhost` is a socket in any directory.
    fn entry(&self) -> [String; 4] {
        let (host, port) = match &self.place {
            Place::Unix(_) => ("localhost".to_owned(), PORT.to_string()),
            Place::Tcp(address) => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
                (host.trim_matches(['[', ']']).to_owned(), port.to_owned())
            }
        };
        [host, port, self.database.clone(), self.user.clone()]
    }

    fn name(&self) -> String {
        match &self.place {
            Place::Tcp(address) => address.clone(),
            Place::Unix(path) => path.display().to_string(),
        }
    }

    fn connect(&self) -> io::Result<Stream> {
        match &self.place {
            Place::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Place::Tcp(address) => {
                let found = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
                let stream = TcpStream::connect_timeout(&found, SETUP_TIMEOUT)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }
}

/// An error that the server replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// SQLSTATE.
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

/// A query that the server refused.
#[derive(Debug, thiserror::Error)]
#[error("the server refused {sql:?}: {} ({})", .refusal.message, .refusal.code)]
pub struct Refused {
    pub sql: String,
    pub refusal: Refusal,
}

/// The reply to all that was sent up to a `Sync` or `Query`.
#[derive(Debug, Default)]
pub struct Reply {
    pub refusal: Option<Refusal>,
    /// The first value of the first row, as text.
    pub value: Option<String>,
}

pub struct Wire {
    stream: Stream,
    inbound: BytesMut,
    outbound: BytesMut,
    reply: Reply,
    /// What the password is for, if the server asks for it.
    entry: [String; 4],
    /// While the server asks for the password.
    login: Option<Login>,
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

fn encoded(result: PgWireResult<()>) -> anyhow::Result<()> {
    result.map_err(|error| anyhow!("a message cannot be encoded: {error}"))
}

impl Wire {
    /// Connects and waits until the server is ready.
    ///
    /// # Errors
    /// If it cannot be reached, refuses, or wants a password.
    pub fn open(target: &Target) -> anyhow::Result<Wire> {
        let at = || target.name();
        let stream = target.connect().with_context(|| format!("cannot connect to {}", at()))?;
        stream.set_timeout(Some(SETUP_TIMEOUT))?;
        let (inbound, outbound) = (BytesMut::new(), BytesMut::new());
        let mut wire = Wire { stream, inbound, outbound, reply: Reply::default(), entry: target.entry(), login: None };
        let mut startup = Startup::default();
        let mut parameters = BTreeMap::from([("user".to_owned(), target.user.clone())]);
        if !target.database.is_empty() {
            parameters.insert("database".to_owned(), target.database.clone());
        }
        startup.parameters = parameters;
        encoded(startup.encode(&mut wire.outbound))?;
        let reply = wire.wait().with_context(|| format!("no answer from {}", at()))?;
        match reply.refusal {
            Some(Refusal { code, message, hint }) => {
                let hint = hint.map_or_else(String::new, |hint| format!(". {hint}"));
                bail!("{} refused the terminal: {message} ({code}){hint}", at())
            }
            None => Ok(wire),
        }
    }

    /// Prepares statements by the names `s0`, `s1` and so on.
    ///
    /// # Errors
    /// If the server refuses one.
    pub fn prepare<'s>(&mut self, statements: impl Iterator<Item = &'s str>) -> anyhow::Result<()> {
        for (index, sql) in statements.enumerate() {
            encoded(Parse::new(Some(name(index)), sql.to_owned(), Vec::new()).encode(&mut self.outbound))?;
            encoded(Sync::new().encode(&mut self.outbound))?;
            if let Some(refusal) = self.wait()?.refusal {
                return Err(Refused { sql: sql.to_owned(), refusal }.into());
            }
        }
        Ok(())
    }

    /// A query of one value.
    ///
    /// # Errors
    /// If the server refuses it or does not answer.
    pub fn ask(&mut self, sql: &str) -> anyhow::Result<Option<String>> {
        encoded(Query::new(sql.to_owned()).encode(&mut self.outbound))?;
        let reply = self.wait()?;
        match reply.refusal {
            Some(refusal) => Err(Refused { sql: sql.to_owned(), refusal }.into()),
            None => Ok(reply.value),
        }
    }

    /// From now on nothing waits.
    ///
    /// # Errors
    /// The host's.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.stream.set_nonblocking()
    }

    /// Has a prepared statement executed by what [`Wire::send`] sends next; [`Wire::receive`] finds the reply.
    ///
    /// # Errors
    /// If it cannot be said in the protocol.
    pub fn execute(&mut self, statement: usize, arguments: &[String]) -> anyhow::Result<()> {
        let values = arguments.iter().map(|text| Some(bytes::Bytes::copy_from_slice(text.as_bytes()))).collect();
        encoded(Bind::new(None, Some(name(statement)), Vec::new(), values, Vec::new()).encode(&mut self.outbound))?;
        encoded(Execute::new(None, 0).encode(&mut self.outbound))?;
        encoded(Sync::new().encode(&mut self.outbound))
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send(&mut self) -> anyhow::Result<()> {
        while !self.outbound.is_empty() {
            match self.stream.write(&self.outbound) {
                Ok(sent) => drop(self.outbound.split_to(sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(())
    }

    /// Is there more to be sent?
    pub fn is_blocked(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// What has arrived. `None`: the reply is not complete.
    ///
    /// # Errors
    /// If the connection has ended or what came makes no sense.
    pub fn receive(&mut self) -> anyhow::Result<Option<Reply>> {
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(Some(reply));
            }
            let mut piece = [0; READ_BYTES];
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => self.inbound.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
    }

    /// Sends and waits for the reply, while the socket still blocks.
    fn wait(&mut self) -> anyhow::Result<Reply> {
        self.send()?;
        self.receive()?.ok_or_else(|| anyhow!("nothing came within {SETUP_TIMEOUT:?}"))
    }

    fn next_reply(&mut self) -> anyhow::Result<Option<Reply>> {
        let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
        context.awaiting_frontend_startup = false;
        context.awaiting_frontend_ssl = false;
        loop {
            let decoded = PgWireBackendMessage::decode(&mut self.inbound, &context);
            let message = decoded.map_err(|error| anyhow!("what the server sent makes no sense: {error}"))?;
            match message {
                None => return Ok(None),
                Some(PgWireBackendMessage::ReadyForQuery(_)) => return Ok(Some(std::mem::take(&mut self.reply))),
                Some(PgWireBackendMessage::ErrorResponse(error)) => {
                    let field =
                        |of: u8| error.fields.iter().find(|(kind, _)| *kind == of).map(|(_, text)| text.clone());
                    let code = field(b'C').unwrap_or_default();
                    let message = field(b'M').unwrap_or_default();
                    // Before the session no `ReadyForQuery` follows.
                    let is_fatal = field(b'S').is_some_and(|severity| severity == "FATAL");
                    self.reply.refusal.get_or_insert(Refusal { code, message, hint: field(b'H') });
                    if is_fatal {
                        return Ok(Some(std::mem::take(&mut self.reply)));
                    }
                }
                Some(PgWireBackendMessage::DataRow(row)) if self.reply.value.is_none() => {
                    let len = row.data.first_chunk().map_or(-1, |len| i32::from_be_bytes(*len));
                    let value = usize::try_from(len).ok().and_then(|len| row.data.get(4..4 + len));
                    self.reply.value = value.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                }
                Some(PgWireBackendMessage::Authentication(asked)) => self.authenticate(&asked)?,
                Some(_) => {}
            }
        }
    }
}

impl Wire {
    /// Answers what the server asks before the session.
    fn authenticate(&mut self, asked: &Authentication) -> anyhow::Result<()> {
        match asked {
            Authentication::Ok if self.login.is_some() => bail!("the server does not prove that it knows the password"),
            Authentication::Ok => return Ok(()),
            Authentication::SASL(mechanisms) if mechanisms.iter().any(|known| known == MECHANISM) => {
                let password = password::find(&self.entry)?.context(
                    "the server wants a password: set PGPASSWORD, or write a line host:port:database:user:password \
                     to ~/.pgpass",
                )?;
                let mut random = [0; 18];
                getrandom::fill(&mut random).map_err(io::Error::from)?;
                let login = Login::new(&password, &random);
                let first = SASLInitialResponse::new(MECHANISM.to_owned(), Some(login.first().into()));
                encoded(first.encode(&mut self.outbound))?;
                self.login = Some(login);
            }
            Authentication::SASLContinue(data) => {
                let login = self.login.as_mut().context("the server continues what it has not begun")?;
                let last = login.last(data)?;
                encoded(SASLResponse::new(last.into()).encode(&mut self.outbound))?;
            }
            Authentication::SASLFinal(data) => {
                let login = self.login.take().context("the server ends what it has not begun")?;
                return Ok(login.finish(data)?);
            }
            _ => bail!(
                "the server wants a password in a way other than {MECHANISM}, which is the one that is known here"
            ),
        }
        self.send()
    }
}

fn name(statement: usize) -> String {
    format!("s{statement}")
}
