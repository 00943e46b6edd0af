//! The start of a session: encryption is declined, the client says who it is and which database it wants, and proves it.

use std::sync::Arc;

use bytes::BytesMut;
use kernel::Processor;
use kernel::connection::{Gone, Session, receive_exact, send_all};
use machine::Connection;
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::response::TransactionStatus;
use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, PasswordMessageFamily, SecretKey, Startup,
};
use pgwire::messages::{DecodeContext, Message, ProtocolVersion};

use super::cancel::Registered;
use super::refusal::{Refusal, SqlState};
use super::reply::ready;
use super::scram::{Exchange, MECHANISM};
use super::settings::{Lasts, Settings};
use super::shape::{self, Misshapen};
use super::terminals::Terminals;
use super::wire::put;
use crate::Monitor;

/// Longest message before a session, in bytes (PostgreSQL's `MAX_STARTUP_PACKET_LENGTH`).
const STARTUP_BYTES_MAX: u32 = 10_000;
/// Longest message with a password or a proof, in bytes (PostgreSQL's `PG_MAX_SASL_MESSAGE_LENGTH`).
const PASSWORD_BYTES_MAX: u32 = 1024;
/// Longest name of a user or database, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// Questions for encryption before the client must begin: one of each kind, each asked at most twice.
const ENCRYPTION_REQUESTS_MAX: usize = 4;

const SSL_REQUEST: i32 = 80_877_103;
const GSS_REQUEST: i32 = 80_877_104;
const CANCEL_REQUEST: i32 = 80_877_102;
const CANCEL_REQUEST_BYTES: usize = 16;
/// The newest minor version of the protocol that is spoken here: 3.0.
const NEWEST_PROTOCOL: i32 = 3 << 16;

/// Which a session begins with.
pub struct Started {
    pub monitor: Arc<Monitor>,
    pub user: String,
    pub process: i32,
    pub settings: Settings,
    pub registered: Registered,
}

/// Why there is no session.
enum Ended {
    /// The client is gone, or wanted no session.
    Gone,
    Refused(Refusal),
    /// It does not speak the protocol.
    Malformed,
}

impl From<Gone> for Ended {
    fn from(_: Gone) -> Ended {
        Ended::Gone
    }
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Ended {
        Ended::Refused(refusal)
    }
}

/// Begins a session; `None` if there is none.
pub async fn start(terminals: &Terminals, session: &Session) -> Option<Started> {
    match begin(terminals, session).await {
        Ok(started) => Some(started),
        Err(Ended::Gone) => None,
        Err(Ended::Malformed) => {
            session.note_malformed();
            None
        }
        Err(Ended::Refused(refusal)) => {
            let mut out = BytesMut::new();
            refusal.write_fatal(&mut out);
            let _ = Line::of(session).send(&out).await;
            None
        }
    }
}

/// Tells a client that there are too many. It hears nothing before it has said what it wants.
pub async fn turn_away(terminals: &Terminals, line: Line<'_>) {
    if startup(terminals, line).await.is_ok() {
        let mut out = BytesMut::new();
        let refusal = Refusal::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already");
        let hint = "A client gets at most half of the connections that there are (limits.connections).";
        refusal.hint(hint).write_fatal(&mut out);
        let _ = line.send(&out).await;
    }
}

/// The connection of one client.
#[derive(Clone, Copy)]
pub struct Line<'a>(pub &'a Processor, pub Connection);

impl Line<'_> {
    fn of(session: &Session) -> Line<'_> {
        Line(session.cpu(), session.connection())
    }

    async fn send(self, bytes: &[u8]) -> Result<(), Gone> {
        send_all(self.0, self.1, bytes.to_vec()).await
    }

    async fn receive(self, len: usize) -> Result<Vec<u8>, Gone> {
        receive_exact(self.0, self.1, len).await
    }
}

/// Of the version that is spoken here.
fn context() -> DecodeContext {
    let mut context = DecodeContext::default();
    context.protocol_version = ProtocolVersion::PROTOCOL3_0;
    context
}

async fn begin(terminals: &Terminals, session: &Session) -> Result<Started, Ended> {
    let line = Line::of(session);
    let startup = startup(terminals, line).await?;
    let get = |name: &str| startup.parameters.get(name).map(String::as_str);
    let user = get("user").filter(|user| !user.is_empty()).ok_or_else(|| {
        Refusal::new(SqlState::INVALID_AUTHORIZATION, "no PostgreSQL user name specified in startup packet")
    })?;
    let database = get("database").filter(|name| !name.is_empty()).unwrap_or(user);
    if user.len() > NAME_BYTES_MAX || database.len() > NAME_BYTES_MAX {
        return Err(Refusal::new(SqlState::INVALID_NAME, "a user or database name is too long").into());
    }
    let mut out = BytesMut::new();
    negotiate_version(&startup, &mut out);
    line.send(&out.split()).await?;
    authenticate(terminals, line, user).await?;
    // Before the database is looked up, as by PostgreSQL: HAProxy takes a server for up that says this.
    put(&mut out, &Authentication::Ok);
    line.send(&out.split()).await?;
    let monitor = terminals.find(database).ok_or_else(|| no_database(terminals, database))?;
    let settings = settings(&startup)?;
    let process = (session.tally().number().0 & 0x7fff_ffff) as i32;
    let key = terminals.cancel_key();
    let registered = terminals.cancels.register(process, key);
    settings.report(&mut out);
    super::settings::report(&mut out, "session_authorization", user);
    put(&mut out, &BackendKeyData::new(process, SecretKey::I32(key)));
    ready(&mut out, TransactionStatus::Idle);
    line.send(&out).await?;
    Ok(Started { monitor, user: user.to_owned(), process, settings, registered })
}

/// The client's first message that is about a session.
async fn startup(terminals: &Terminals, line: Line<'_>) -> Result<Startup, Ended> {
    for _ in 0..=ENCRYPTION_REQUESTS_MAX {
        let head = line.receive(8).await?;
        let word = |at: usize| i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, code) = (word(0) as u32, word(4));
        if !(8..=STARTUP_BYTES_MAX).contains(&len) {
            return Err(Ended::Malformed);
        }
        let rest = line.receive(len as usize - 8).await?;
        match code {
            SSL_REQUEST | GSS_REQUEST if rest.is_empty() => line.send(b"N").await?,
            CANCEL_REQUEST if len as usize == CANCEL_REQUEST_BYTES => {
                cancel(terminals, &[head, rest].concat());
                return Err(Ended::Gone);
            }
            _ => return parse_startup(code, [head, rest].concat()),
        }
    }
    Err(Ended::Malformed)
}

fn parse_startup(code: i32, bytes: Vec<u8>) -> Result<Startup, Ended> {
    let major = code >> 16;
    if (1..=9).contains(&major) && major != 3 {
        let message = format!("unsupported frontend protocol {major}.{}: server supports 3.0", code & 0xffff);
        return Err(Refusal::new(SqlState::PROTOCOL_VIOLATION, message).into());
    }
    if std::str::from_utf8(&bytes[8..]).is_err() {
        return Err(Refusal::new(SqlState::INVALID_BYTES, "a startup parameter is no UTF-8").into());
    }
    let mut bytes = BytesMut::from(&bytes[..]);
    Startup::decode(&mut bytes, &context()).ok().flatten().ok_or(Ended::Malformed)
}

fn cancel(terminals: &Terminals, bytes: &[u8]) {
    let mut bytes = BytesMut::from(bytes);
    if let Ok(Some(request)) = CancelRequest::decode(&mut bytes, &context())
        && let SecretKey::I32(key) = request.secret_key
    {
        terminals.cancels.request(request.pid, key);
    }
}

/// What a newer client asked for and does not get.
fn negotiate_version(startup: &Startup, out: &mut BytesMut) {
    let options = startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect::<Vec<_>>();
    if startup.protocol_number_minor > 0 || !options.is_empty() {
        put(out, &NegotiateProtocolVersion::new(NEWEST_PROTOCOL, options));
    }
}

fn no_database(terminals: &Terminals, name: &str) -> Refusal {
    if let Some(why) = terminals.absence(name) {
        return Refusal::new(SqlState::CANNOT_CONNECT_NOW, format!("database {name:?} {why}"));
    }
    let databases = terminals.databases();
    let names: Vec<_> = databases.iter().map(|monitor| format!("{:?}", monitor.name())).collect();
    Refusal::new(SqlState::UNKNOWN_DATABASE, format!("database {name:?} does not exist"))
        .hint(format!("Databases here: {}.", names.join(", ")))
}

fn settings(startup: &Startup) -> Result<Settings, Refusal> {
    let mut settings = Settings::default();
    for (name, value) in &startup.parameters {
        match name.as_str() {
            "user" | "database" => {}
            "options" => set_options(&mut settings, value)?,
            "replication" if matches!(value.as_str(), "false" | "off" | "no" | "0") => {}
            "replication" => return Err(Refusal::new(SqlState::NOT_SUPPORTED, "replication is not served")),
            name if name.starts_with("_pq_.") => {}
            name => drop(settings.set(name, Some(value), Lasts::Session)?),
        }
    }
    settings.begin();
    Ok(settings)
}

/// Command line options as libpq's `options`: `-c name=value` and `--name=value`.
fn set_options(settings: &mut Settings, options: &str) -> Result<(), Refusal> {
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        let assigned = match word.strip_prefix("-c") {
            Some("") => words.next(),
            Some(assigned) => Some(assigned.to_owned()),
            None => word.strip_prefix("--").map(str::to_owned),
        };
        let (name, value) = assigned.as_deref().and_then(|assigned| assigned.split_once('=')).ok_or_else(|| {
            Refusal::new(SqlState::SYNTAX, format!("invalid command-line argument for server process: {word}"))
        })?;
        settings.set(&name.replace('-', "_"), Some(value), Lasts::Session)?;
    }
    Ok(())
}

/// With spaces between them, each of which a backslash protects, as any character (PostgreSQL's `pg_split_opts`).
fn words(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut rest = options.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '\\' => word.get_or_insert_default().extend(rest.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Where there are users, the client must be one of them.
async fn authenticate(terminals: &Terminals, line: Line<'_>, user: &str) -> Result<(), Ended> {
    let users = terminals.users();
    if users.is_empty() {
        return Ok(());
    }
    let failed = || {
        let message = format!("password authentication failed for user {user:?}");
        Ended::Refused(Refusal::new(SqlState::INVALID_PASSWORD, message))
    };
    let mut out = BytesMut::new();
    put(&mut out, &Authentication::SASL(vec![MECHANISM.to_owned()]));
    line.send(&out.split()).await?;
    let first = password(line, shape::check_first_proof).await?;
    let first = first.into_sasl_initial_response().map_err(|_| Ended::Malformed)?;
    if first.auth_method != MECHANISM {
        return Err(Refusal::new(SqlState::PROTOCOL_VIOLATION, "client selected an invalid SASL mechanism").into());
    }
    let verifier = users.iter().find(|known| known.name == user).map(|known| &known.verifier);
    let first = first.data.unwrap_or_default();
    let exchange = Exchange::begin(&first, user, verifier, &terminals.secret, &terminals.fresh());
    let exchange = exchange.map_err(|_| failed())?;
    put(&mut out, &Authentication::SASLContinue(exchange.server_first.clone().into()));
    line.send(&out.split()).await?;
    let last = password(line, |_| Ok(())).await?.into_sasl_response().map_err(|_| Ended::Malformed)?;
    let ours = exchange.finish(&last.data).map_err(|_| failed())?;
    put(&mut out, &Authentication::SASLFinal(ours.into()));
    Ok(line.send(&out).await?)
}

/// A message of the kind that clients prove who they are with. `check`: of its content.
async fn password(
    line: Line<'_>,
    check: impl Fn(&[u8]) -> Result<(), Misshapen>,
) -> Result<PasswordMessageFamily, Ended> {
    let head = line.receive(5).await?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if head[0] != b'p' || !(4..=PASSWORD_BYTES_MAX).contains(&len) {
        return Err(Ended::Malformed);
    }
    let rest = line.receive(len as usize - 4).await?;
    check(&rest).map_err(|_| Ended::Malformed)?;
    let mut bytes = BytesMut::from(&[head, rest].concat()[..]);
    PasswordMessageFamily::decode(&mut bytes, &context()).ok().flatten().ok_or(Ended::Malformed)
}

#[cfg(test)]
mod tests;
