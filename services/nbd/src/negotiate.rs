//! The handshake: fixed newstyle ("Handshake phase").

use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{Gone, Session, receive_exact, send_all};

use crate::export::{Export, NAME_BYTES_MAX, Nbd, REQUEST_BYTES_MAX};
use crate::proto::{
    self, BASE_ALLOCATION, NBD_MAGIC, NBD_OPTS_MAGIC, Reader, handshake, info, option, option_reply, rep,
};

/// Longest option payload that is parsed, in bytes; the largest useful one is a list of contexts.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longer options up to this many bytes are skipped and refused; beyond, the client is disconnected.
const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// Options before a client must have chosen an export, besides those about each.
const OPTIONS_MAX: usize = 256;
/// Options about each export: `nbdinfo --list` asks for the information and the contexts of all on one connection.
const OPTIONS_AN_EXPORT_MAX: usize = 4;
/// How long a client waits for an export that may not answer: a node that goes on has a new lease after a few round trips to etcd,
/// also if its last of 2 s has to end there before. Clients that have timeouts for this wait 10 s and more. Judged.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The context id of [`BASE_ALLOCATION`] in block status.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// The client's choices.
pub(crate) struct Negotiated {
    pub(crate) export: Arc<Export>,
    pub(crate) structured: bool,
    pub(crate) allocation: bool,
}

struct Negotiation<'a> {
    nbd: &'a Nbd,
    session: &'a Session,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    allocation: Option<String>,
}

enum Next {
    Option,
    Transmission(Negotiated),
    End,
}

/// Negotiates; `None` if the client disconnected or was refused.
pub(crate) async fn negotiate(nbd: &Nbd, session: &Session) -> Option<Negotiated> {
    let mut negotiation = Negotiation { nbd, session, no_zeroes: false, structured: false, allocation: None };
    negotiation.run().await.ok().flatten()
}

impl Negotiation<'_> {
    async fn run(&mut self) -> Result<Option<Negotiated>, Gone> {
        let mut hello = Vec::with_capacity(18);
        hello.extend_from_slice(&NBD_MAGIC.to_be_bytes());
        hello.extend_from_slice(&NBD_OPTS_MAGIC.to_be_bytes());
        let offered = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        hello.extend_from_slice(&offered.to_be_bytes());
        self.send(hello).await?;
        let flags = self.receive(4).await?;
        let flags = Reader::new(&flags).u32().ok_or(Gone)?;
        if flags & !u32::from(offered) != 0 || flags & u32::from(handshake::FIXED_NEWSTYLE) == 0 {
            self.session.note_malformed();
            return Ok(None);
        }
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        for _ in 0..OPTIONS_MAX + OPTIONS_AN_EXPORT_MAX * self.nbd.exports().len() {
            match self.option().await? {
                Next::Option => {}
                Next::Transmission(negotiated) => return Ok(Some(negotiated)),
                Next::End => return Ok(None),
            }
        }
        self.session.note_malformed();
        Ok(None)
    }

    async fn option(&mut self) -> Result<Next, Gone> {
        let header = self.receive(16).await?;
        let mut header = Reader::new(&header);
        let magic = header.u64().ok_or(Gone)?;
        let option = header.u32().ok_or(Gone)?;
        let len = header.u32().ok_or(Gone)?;
        if magic != NBD_OPTS_MAGIC || len > OPTION_BYTES_SKIPPED_MAX {
            self.session.note_malformed();
            return Ok(Next::End);
        }
        if len > OPTION_BYTES_MAX {
            self.skip(len).await?;
            if option == option::EXPORT_NAME {
                return Ok(Next::End);
            }
            return self.refuse(option, rep::ERR_TOO_BIG, "the option is too long").await;
        }
        let payload = self.receive(len as usize).await?;
        match option {
            option::EXPORT_NAME => self.export_name(&payload).await,
            option::ABORT => {
                // The client may disconnect without waiting for the reply.
                let _ = self.reply(option, rep::ACK, &[]).await;
                Ok(Next::End)
            }
            option::LIST => self.list(&payload).await,
            option::INFO | option::GO => self.info(option, &payload).await,
            option::STRUCTURED_REPLY if payload.is_empty() => {
                self.structured = true;
                self.reply(option, rep::ACK, &[]).await?;
                Ok(Next::Option)
            }
            option::STRUCTURED_REPLY => {
                self.refuse(option, rep::ERR_INVALID, "NBD_OPT_STRUCTURED_REPLY takes no data").await
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, &payload).await,
            option::STARTTLS => self.refuse(option, rep::ERR_POLICY, "TLS is not offered here").await,
            _ => self.refuse(option, rep::ERR_UNSUP, "the option is not known here").await,
        }
    }

    async fn export_name(&mut self, payload: &[u8]) -> Result<Next, Gone> {
        // A refusal is impossible: "the server MUST disconnect".
        let name = std::str::from_utf8(payload).ok().filter(|name| name.len() <= NAME_BYTES_MAX);
        let Some(name) = name else { return Ok(Next::End) };
        let Some(export) = self.choose(name).await else { return Ok(Next::End) };
        let mut reply = Vec::with_capacity(134);
        reply.extend_from_slice(&export.volume.size().to_be_bytes());
        reply.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            reply.resize(reply.len() + 124, 0);
        }
        self.send(reply).await?;
        Ok(Next::Transmission(self.negotiated(export)))
    }

    async fn list(&mut self, payload: &[u8]) -> Result<Next, Gone> {
        if !payload.is_empty() {
            return self.refuse(option::LIST, rep::ERR_INVALID, "NBD_OPT_LIST takes no data").await;
        }
        let mut replies = Vec::new();
        for export in self.nbd.exports().iter() {
            let mut entry = Vec::new();
            entry.extend_from_slice(&(export.name.len() as u32).to_be_bytes());
            entry.extend_from_slice(export.name.as_bytes());
            entry.extend_from_slice(export.description.as_bytes());
            option_reply(&mut replies, option::LIST, rep::SERVER, &entry);
        }
        option_reply(&mut replies, option::LIST, rep::ACK, &[]);
        self.send(replies).await?;
        Ok(Next::Option)
    }

    async fn info(&mut self, option: u32, payload: &[u8]) -> Result<Next, Gone> {
        let Some((name, wanted)) = read_info(payload) else {
            return self.refuse(option, rep::ERR_INVALID, "the request for information is malformed").await;
        };
        let found = if option == option::GO { self.choose(name).await } else { self.nbd.find(name) };
        let Some(export) = found else {
            return self.refuse(option, rep::ERR_UNKNOWN, "there is no export of that name").await;
        };
        let mut replies = Vec::new();
        let mut reply = |kind: u16, data: &[u8]| {
            let payload = [&kind.to_be_bytes(), data].concat();
            option_reply(&mut replies, option, rep::INFO, &payload);
        };
        let size = export.volume.size().to_be_bytes();
        reply(info::EXPORT, &[&size[..], &export.flags(self.structured).to_be_bytes()].concat());
        // At most once each, however often requested, to bound the reply's size.
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if wanted.contains(&kind) {
                reply(kind, text.as_bytes());
            }
        }
        // Sent even if not requested: clients that know it perform better.
        let preferred = 4096_u32.max(export.block_size);
        reply(info::BLOCK_SIZE, &[export.block_size, preferred, REQUEST_BYTES_MAX].map(u32::to_be_bytes).concat());
        option_reply(&mut replies, option, rep::ACK, &[]);
        self.send(replies).await?;
        if option == option::GO { Ok(Next::Transmission(self.negotiated(export))) } else { Ok(Next::Option) }
    }

    async fn meta_context(&mut self, option: u32, payload: &[u8]) -> Result<Next, Gone> {
        let setting = option == option::SET_META_CONTEXT;
        if setting {
            self.allocation = None;
        }
        let Some((name, queries)) = read_meta_context(payload) else {
            return self.refuse(option, rep::ERR_INVALID, "the request for contexts is malformed").await;
        };
        if !self.structured {
            return self.refuse(option, rep::ERR_INVALID, "contexts need structured replies").await;
        }
        let Some(export) = self.nbd.find(name) else {
            return self.refuse(option, rep::ERR_UNKNOWN, "there is no export of that name").await;
        };
        let matches = |query: &&str| *query == BASE_ALLOCATION || (!setting && *query == "base:");
        let found = queries.iter().any(matches) || (!setting && queries.is_empty());
        let mut replies = Vec::new();
        if found {
            let id = if setting { BASE_ALLOCATION_ID } else { 0 };
            option_reply(
                &mut replies,
                option,
                rep::META_CONTEXT,
                &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat(),
            );
            if setting {
                self.allocation = Some(export.name.clone());
            }
        }
        option_reply(&mut replies, option, rep::ACK, &[]);
        self.send(replies).await?;
        Ok(Next::Option)
    }

    /// The export of that name, which the client has for the life of its connection. If its volume may not answer, it may soon
    /// be another one, as when the lease of a node is over that goes on: whoever had this one would get errors for good. So it
    /// is waited for. If that takes long, the client has what there is, and errors that say why.
    async fn choose(&self, name: &str) -> Option<Arc<Export>> {
        let cpu = self.session.cpu();
        let end = cpu.now() + LEASE_TIMEOUT;
        loop {
            let export = self.nbd.find(name)?;
            if export.volume.may_answer() || cpu.now() >= end || self.nbd.sessions.is_stopping() {
                return Some(export);
            }
            cpu.sleep(LOOK_AGAIN).await;
        }
    }

    /// Contexts apply to the export for which they were selected.
    fn negotiated(&self, export: Arc<Export>) -> Negotiated {
        let allocation = self.allocation.as_ref() == Some(&export.name);
        Negotiated { export, structured: self.structured, allocation }
    }

    async fn refuse(&self, option: u32, error: u32, why: &str) -> Result<Next, Gone> {
        self.reply(option, error, why.as_bytes()).await?;
        Ok(Next::Option)
    }

    async fn reply(&self, option: u32, kind: u32, payload: &[u8]) -> Result<(), Gone> {
        let mut bytes = Vec::new();
        option_reply(&mut bytes, option, kind, payload);
        self.send(bytes).await
    }

    async fn skip(&self, len: u32) -> Result<(), Gone> {
        let mut left = len as usize;
        while left > 0 {
            let some = left.min(16 << 10);
            self.receive(some).await?;
            left -= some;
        }
        Ok(())
    }

    async fn receive(&self, len: usize) -> Result<Vec<u8>, Gone> {
        receive_exact(self.session.cpu(), self.session.connection(), len).await
    }

    async fn send(&self, bytes: Vec<u8>) -> Result<(), Gone> {
        send_all(self.session.cpu(), self.session.connection(), bytes).await
    }
}

/// The name and the requested kinds of information.
fn read_info(payload: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut at = proto::Reader::new(payload);
    let name = at.string()?;
    let count = at.u16()?;
    let kinds = (0..count).map(|_| at.u16()).collect::<Option<Vec<_>>>()?;
    (at.is_empty() && name.len() <= NAME_BYTES_MAX).then_some((name, kinds))
}

/// The export's name and the queries.
fn read_meta_context(payload: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut at = proto::Reader::new(payload);
    let name = at.string()?;
    let count = at.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Each takes at least four bytes: a wrong count runs out of payload, not of memory.
        queries.push(at.string()?);
    }
    (at.is_empty() && name.len() <= NAME_BYTES_MAX).then_some((name, queries))
}
