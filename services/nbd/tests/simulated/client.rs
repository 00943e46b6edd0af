//! A client on the simulated machine.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use kernel::Processor;
use kernel::connection::{Gone, receive_exact, send_all};
use machine::Connection;

use nbd::proto::{
    BASE_ALLOCATION, NBD_MAGIC, NBD_OPTS_MAGIC, NBD_REP_MAGIC, NBD_REQUEST_MAGIC, NBD_SIMPLE_REPLY_MAGIC,
    NBD_STRUCTURED_REPLY_MAGIC, NbdError, Reader, Request, chunk, cmd, handshake, info, option, rep,
};

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused it or failed.
    #[error("the server answered with error {}", .0.0)]
    Refused(NbdError),
    /// The connection ended: whether the request was executed is unknown.
    #[error("the connection is gone")]
    Gone,
    /// The server violated the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
}

impl From<Gone> for ClientError {
    fn from(_: Gone) -> Self {
        ClientError::Gone
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub data: Vec<u8>,
    /// Extents of a block status: length and flags.
    pub extents: Vec<(u32, u32)>,
}

struct Pending {
    request: Request,
    answer: Answer,
    error: Option<NbdError>,
    done: bool,
    waker: Option<Waker>,
}

/// A session with a server. Many requests may be in flight.
pub struct Client {
    cpu: Processor,
    connection: Connection,
    /// Bytes.
    pub size: u64,
    pub flags: u16,
    cookie: Cell<u64>,
    pending: RefCell<BTreeMap<u64, Pending>>,
    outgoing: RefCell<Vec<u8>>,
    sending: Cell<bool>,
    failure: Cell<Option<ClientError>>,
}

impl Client {
    /// Negotiates `export` on a new connection. With `structured`, requests structured replies and `base:allocation`.
    ///
    /// # Errors
    /// If the server refuses or disconnects.
    pub async fn connect(
        cpu: &Processor,
        connection: Connection,
        export: &str,
        structured: bool,
    ) -> Result<Rc<Client>, ClientError> {
        let (size, flags) = negotiate(cpu, connection, export, structured).await?;
        let client = Rc::new(Client {
            cpu: cpu.clone(),
            connection,
            size,
            flags,
            cookie: Cell::new(0),
            pending: RefCell::default(),
            outgoing: RefCell::default(),
            sending: Cell::new(false),
            failure: Cell::new(None),
        });
        let reader = Rc::clone(&client);
        cpu.spawn(async move {
            let Err(failure) = reader.read_replies().await;
            reader.fail(failure);
        });
        Ok(client)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn request(
        self: &Rc<Self>,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> Result<Answer, ClientError> {
        if let Some(failure) = self.failure.get() {
            return Err(failure);
        }
        self.cookie.set(self.cookie.get() + 1);
        let cookie = self.cookie.get();
        let request = Request { flags, kind, cookie, offset, len };
        let data = if kind == cmd::READ { vec![0; len as usize] } else { Vec::new() };
        let answer = Answer { data, extents: Vec::new() };
        let pending = Pending { request, answer, error: None, done: false, waker: None };
        self.pending.borrow_mut().insert(cookie, pending);
        self.outgoing.borrow_mut().extend_from_slice(&request.encode());
        self.outgoing.borrow_mut().extend_from_slice(payload);
        self.start_sending();
        poll_fn(|cx| {
            let mut all = self.pending.borrow_mut();
            let Some(pending) = all.get_mut(&cookie) else {
                return Poll::Ready(Err(self.failure.get().unwrap_or(ClientError::Gone)));
            };
            if !pending.done {
                pending.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let Some(pending) = all.remove(&cookie) else { return Poll::Pending };
            Poll::Ready(pending.error.map_or(Ok(pending.answer), |error| Err(ClientError::Refused(error))))
        })
        .await
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn read(self: &Rc<Self>, offset: u64, len: u32) -> Result<Vec<u8>, ClientError> {
        Ok(self.request(cmd::READ, 0, offset, len, &[]).await?.data)
    }

    /// Writes `data`; with `fua`, durably.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn write(self: &Rc<Self>, offset: u64, data: &[u8], fua: bool) -> Result<(), ClientError> {
        let flags = if fua { cmd::FLAG_FUA } else { 0 };
        self.request(cmd::WRITE, flags, offset, data.len() as u32, data).await.map(drop)
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn flush(self: &Rc<Self>) -> Result<(), ClientError> {
        self.request(cmd::FLUSH, 0, 0, 0, &[]).await.map(drop)
    }

    /// Shuts the connection down in any state.
    pub fn hang_up(&self) {
        self.cpu.shutdown(self.connection);
    }

    fn start_sending(self: &Rc<Self>) {
        if self.sending.replace(true) {
            return;
        }
        let client = Rc::clone(self);
        self.cpu.spawn(async move {
            loop {
                let bytes = client.outgoing.take();
                if bytes.is_empty() {
                    client.sending.set(false);
                    return;
                }
                if send_all(&client.cpu, client.connection, bytes).await.is_err() {
                    return client.fail(ClientError::Gone);
                }
            }
        });
    }

    fn fail(&self, failure: ClientError) {
        self.failure.set(self.failure.get().or(Some(failure)));
        for pending in self.pending.take().into_values() {
            if let Some(waker) = pending.waker {
                waker.wake();
            }
        }
    }

    async fn read_replies(&self) -> Result<std::convert::Infallible, ClientError> {
        loop {
            let start = self.receive(4).await?;
            match Reader::new(&start).u32() {
                Some(NBD_SIMPLE_REPLY_MAGIC) => self.simple_reply().await?,
                Some(NBD_STRUCTURED_REPLY_MAGIC) => self.structured_chunk().await?,
                _ => return Err(ClientError::Protocol("a reply has a wrong magic")),
            }
        }
    }

    async fn simple_reply(&self) -> Result<(), ClientError> {
        let header = self.receive(12).await?;
        let mut at = Reader::new(&header);
        let (error, cookie) = at.u32().zip(at.u64()).ok_or(ClientError::Gone)?;
        let request = self.request_of(cookie)?;
        let data = match request.kind {
            cmd::READ if error == 0 => self.receive(request.len as usize).await?,
            _ => Vec::new(),
        };
        self.update(cookie, true, |pending| {
            pending.answer.data = data;
            pending.error = (error != 0).then_some(NbdError(error));
            Ok(())
        })
    }

    async fn structured_chunk(&self) -> Result<(), ClientError> {
        let header = self.receive(16).await?;
        let mut at = Reader::new(&header);
        let (flags, kind) = at.u16().zip(at.u16()).ok_or(ClientError::Gone)?;
        let (cookie, len) = at.u64().zip(at.u32()).ok_or(ClientError::Gone)?;
        if len > (40 << 20) {
            return Err(ClientError::Protocol("a chunk is too long"));
        }
        self.request_of(cookie)?;
        let payload = self.receive(len as usize).await?;
        self.update(cookie, flags & chunk::FLAG_DONE != 0, |pending| {
            let fits = apply(pending, kind, &payload);
            fits.ok_or(ClientError::Protocol("a chunk is malformed"))
        })
    }

    fn request_of(&self, cookie: u64) -> Result<Request, ClientError> {
        let pending = self.pending.borrow();
        pending.get(&cookie).map(|p| p.request).ok_or(ClientError::Protocol("a reply to no request"))
    }

    fn update(
        &self,
        cookie: u64,
        done: bool,
        change: impl FnOnce(&mut Pending) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut all = self.pending.borrow_mut();
        let pending = all.get_mut(&cookie).ok_or(ClientError::Protocol("a reply to no request"))?;
        change(pending)?;
        pending.done = done;
        if done && let Some(waker) = pending.waker.take() {
            drop(all);
            waker.wake();
        }
        Ok(())
    }

    async fn receive(&self, len: usize) -> Result<Vec<u8>, Gone> {
        receive_exact(&self.cpu, self.connection, len).await
    }
}

/// Applies a chunk to its request; `None` if it does not fit.
fn apply(pending: &mut Pending, kind: u16, payload: &[u8]) -> Option<()> {
    let mut at = Reader::new(payload);
    match kind {
        chunk::NONE => {}
        chunk::OFFSET_DATA => {
            let from = at.u64()?.checked_sub(pending.request.offset)? as usize;
            let data = at.take(payload.len() - 8)?;
            pending.answer.data.get_mut(from..from + data.len())?.copy_from_slice(data);
        }
        chunk::OFFSET_HOLE => {
            let from = at.u64()?.checked_sub(pending.request.offset)? as usize;
            let len = at.u32()? as usize;
            pending.answer.data.get_mut(from..from + len)?.fill(0);
        }
        chunk::BLOCK_STATUS => {
            at.u32()?;
            while !at.is_empty() {
                pending.answer.extents.push((at.u32()?, at.u32()?));
            }
        }
        chunk::ERROR | chunk::ERROR_OFFSET => pending.error = Some(NbdError(at.u32()?)),
        _ => return None,
    }
    Some(())
}

/// Negotiates `export`; returns its size and flags.
async fn negotiate(
    cpu: &Processor,
    connection: Connection,
    export: &str,
    structured: bool,
) -> Result<(u64, u16), ClientError> {
    let hello = receive_exact(cpu, connection, 18).await?;
    let mut at = Reader::new(&hello);
    if (at.u64(), at.u64()) != (Some(NBD_MAGIC), Some(NBD_OPTS_MAGIC)) {
        return Err(ClientError::Protocol("not a newstyle server"));
    }
    let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    send_all(cpu, connection, flags.to_be_bytes().to_vec()).await?;
    let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
    if structured {
        ask(cpu, connection, option::STRUCTURED_REPLY, &[]).await?;
        let query = [&(BASE_ALLOCATION.len() as u32).to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
        let contexts = [&name[..], &1_u32.to_be_bytes(), &query].concat();
        ask(cpu, connection, option::SET_META_CONTEXT, &contexts).await?;
    }
    let replies = ask(cpu, connection, option::GO, &[&name[..], &0_u16.to_be_bytes()].concat()).await?;
    for reply in replies {
        let mut at = Reader::new(&reply);
        if at.u16() == Some(info::EXPORT) {
            return at.u64().zip(at.u16()).ok_or(ClientError::Protocol("NBD_INFO_EXPORT is too short"));
        }
    }
    Err(ClientError::Protocol("no NBD_INFO_EXPORT"))
}

/// Sends an option; returns the payloads of the replies before the acknowledgement.
async fn ask(
    cpu: &Processor,
    connection: Connection,
    option: u32,
    payload: &[u8],
) -> Result<Vec<Vec<u8>>, ClientError> {
    let mut bytes = NBD_OPTS_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    send_all(cpu, connection, bytes).await?;
    let mut replies = Vec::new();
    loop {
        let header = receive_exact(cpu, connection, 20).await?;
        let mut at = Reader::new(&header);
        let magic = at.u64();
        let (Some(_), Some(kind), Some(len)) = (at.u32(), at.u32(), at.u32()) else { return Err(ClientError::Gone) };
        if magic != Some(NBD_REP_MAGIC) || len > (1 << 20) {
            return Err(ClientError::Protocol("an option's reply is malformed"));
        }
        let payload = receive_exact(cpu, connection, len as usize).await?;
        match kind {
            rep::ACK => return Ok(replies),
            kind if kind & rep::ERR != 0 => return Err(ClientError::Refused(NbdError(kind))),
            _ => replies.push(payload),
        }
    }
}

/// A request's bytes with any magic, for tests of hostile clients.
pub fn raw_request(magic: u32, request: &Request) -> Vec<u8> {
    let mut bytes = request.encode().to_vec();
    if magic != NBD_REQUEST_MAGIC {
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
    }
    bytes
}
