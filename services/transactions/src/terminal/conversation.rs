//! What a client's messages do.

use std::rc::Rc;

use bytes::BytesMut;
use kernel::connection::{End, Handler, Header, Holds, Inbound, Release, Step as Next};
use kernel::trace::{Event, Whose};
use pgwire::messages::extendedquery::{BindComplete, CloseComplete, Parse, ParseComplete};
use pgwire::messages::response::EmptyQueryResponse;

use super::cycle::{CYCLE_BYTES_MAX, ITEMS_MAX, Item, Step, Until, too_much};
use super::evaluated::Evaluated;
use super::exits::{Asked, Exit};
use super::frequent::{Bind, Named};
use super::message::{Call, Message, Messages};
use super::prepared::{Bound, Prepared};
use super::refusal::{Refusal, SqlState};
use super::reply::{complete, ready};
use super::session::{Conversation, Portal};
use super::sql::{Statement, parse};
use super::wire::put;
use crate::Value;
use crate::program::Version;

impl Conversation {
    fn query(&mut self, query: &str) -> Result<(), Refusal> {
        let statements = parse(query)?;
        if statements.is_empty() {
            put(self.cycle.reply(), &EmptyQueryResponse::new());
        }
        let programs = self.programs();
        for statement in statements {
            // What comes before one that is refused is executed.
            let prepared = Prepared::new(&self.monitor, &programs, statement, &[])?;
            if !prepared.parameters.is_empty() {
                return Err(super::sql::no_parameter(&prepared.parameters.len()));
            }
            self.cycle.items.push(Item::Step(Step { bound: Bound::plain(Rc::new(prepared)), describes: true }));
        }
        Ok(())
    }

    fn parse(&mut self, parse_message: Parse) -> Result<(), Refusal> {
        let name = parse_message.name.unwrap_or_default();
        if !name.is_empty() && self.statements.get(&name).is_some() {
            let message = format!("prepared statement {name:?} already exists");
            return Err(Refusal::new(SqlState::DUPLICATE_STATEMENT, message));
        }
        let mut statements = parse(&parse_message.query)?;
        if statements.len() > 1 {
            let message = "cannot insert multiple commands into a prepared statement";
            return Err(Refusal::new(SqlState::SYNTAX, message));
        }
        let statement = statements.pop().unwrap_or(Statement::Nothing(""));
        let prepared = Prepared::new(&self.monitor, &self.programs(), statement, &parse_message.type_oids)?;
        let bytes = prepared.bytes();
        self.statements.insert(&self.cpu, &name, Rc::new(prepared), bytes)?;
        self.cycle.made.push((self.cycle.items.len(), name));
        put(self.cycle.reply(), &ParseComplete::new());
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), Refusal> {
        let prepared = Rc::clone(self.statement(bind.statement())?);
        let name = bind.portal();
        if !name.is_empty() && self.portals.get(name).is_some() {
            return Err(Refusal::new(SqlState::DUPLICATE_PORTAL, format!("portal {name:?} already exists")));
        }
        let bound = Bound::new(prepared, &bind.formats, bind.values(), &bind.results)?;
        // The statement is kept by the portal, also when its name is another's.
        let bytes = bound.prepared.bytes() + bound.values.iter().map(Value::bytes).sum::<usize>();
        self.portals_made += u64::from(!name.is_empty());
        let portal = Portal { bound, is_done: false, made: self.portals_made };
        self.portals.insert(&self.cpu, name, portal, bytes)?;
        put(self.cycle.reply(), &BindComplete::new());
        Ok(())
    }

    /// Those of the block, or the newest.
    fn programs(&self) -> Version {
        self.block.programs().unwrap_or_else(|| self.monitor.programs().version())
    }

    fn statement(&self, name: &str) -> Result<&Rc<Prepared>, Refusal> {
        self.statements.get(name).ok_or_else(|| {
            Refusal::new(SqlState::UNKNOWN_STATEMENT, format!("prepared statement {name:?} does not exist"))
        })
    }

    fn describe(&mut self, described: &Named) -> Result<(), Refusal> {
        let before = self.cycle.reply().len();
        if described.is_statement {
            let prepared = Rc::clone(self.statement(described.name())?);
            super::answer::describe_statement(self.cycle.reply(), &prepared);
        } else {
            let bound = self.portal(described.name())?.bound.clone();
            super::answer::describe_portal(self.cycle.reply(), &bound);
        }
        // No other reply that is known at once is much longer than its message.
        let after = self.cycle.reply().len();
        self.cycle.bytes += after - before;
        Ok(())
    }

    fn portal(&mut self, name: &str) -> Result<&mut Portal, Refusal> {
        let found = self.portals.get_mut(name);
        found.ok_or_else(|| Refusal::new(SqlState::UNKNOWN_PORTAL, format!("portal {name:?} does not exist")))
    }

    /// Returns whether it is to be executed before more is received.
    fn execute_portal(&mut self, name: &str) -> Result<bool, Refusal> {
        let portal = self.portal(name)?;
        let prepared = &portal.bound.prepared;
        let has_rows = prepared.query().is_some() || prepared.columns.is_some();
        if std::mem::replace(&mut portal.is_done, true) && has_rows {
            complete(self.cycle.reply(), "SELECT 0");
            return Ok(false);
        }
        let bound = portal.bound.clone();
        let is_control = bound.prepared.is_control();
        self.cycle.forgotten.add(&bound.prepared.statement);
        self.cycle.items.push(Item::Step(Step { bound, describes: false }));
        // In a block there is nothing to wait for: it is committed by a statement of its own.
        Ok(is_control || self.block.is_explicit())
    }

    fn close(&mut self, closed: &Named) {
        if closed.is_statement {
            self.statements.remove(closed.name());
        } else {
            self.portals.remove(closed.name());
        }
        put(self.cycle.reply(), &CloseComplete::new());
    }

    /// Returns whether what it asks for is to be executed before more is received.
    fn begin_extended(&mut self, message: Message) -> Result<bool, Refusal> {
        self.hold(0)?;
        match message {
            Message::Parse(parse) => self.parse(*parse)?,
            Message::Bind(bind) => self.bind(&bind)?,
            Message::Describe(describe) => self.describe(&describe)?,
            Message::Execute(portal) => return self.execute_portal(portal.get()),
            Message::Close(close) => self.close(&close),
            Message::Refused { refusal, .. } => return Err(*refusal),
            _ => {}
        }
        Ok(false)
    }

    async fn extended(&mut self, message: Message) {
        let done = self.begin_extended(message);
        if let Ok(true) = done {
            // Its future is large, and would be copied with that of each message.
            Box::pin(self.work_off(Until::Flush)).await;
        }
        let is_too_much = self.cycle.bytes > CYCLE_BYTES_MAX || self.cycle.items.len() > ITEMS_MAX;
        if let Err(refusal) = done.and_then(|_| if is_too_much { Err(too_much()) } else { Ok(()) }) {
            self.cycle.fail(refusal);
        }
    }

    /// Executes what is pending, and sends the replies when what they say is durable.
    async fn answer(&mut self, until: Until, inbound: &mut Inbound<'_, Messages>) {
        inbound.session().end_batch();
        let asked = self.begin(inbound);
        if until == Until::Flush || !self.answer_at_once(inbound, asked) {
            Box::pin(self.answer_in_general(until, inbound, asked)).await;
        }
    }

    async fn answer_in_general(&mut self, until: Until, inbound: &mut Inbound<'_, Messages>, asked: Asked) {
        let bytes = self.cycle.bytes as u64;
        let release = inbound.admit(bytes, Holds::Nothing).await;
        self.work_off(until).await;
        self.end_cycle(until);
        self.send(until, release, asked);
    }

    /// What was asked for is executed.
    pub(super) fn end_cycle(&mut self, until: Until) {
        if until == Until::Sync {
            ready(&mut self.cycle.out, self.block.status());
            self.cycle.failed = false;
            if !self.block.is_explicit() {
                self.portals.clear();
            }
        }
        self.cycle.bytes = 0;
        self.cycle.evaluated = Evaluated::default();
        self.cycle.has_looked_up = false;
    }

    /// The client waits for replies from now on.
    fn begin(&self, inbound: &Inbound<'_, Messages>) -> Asked {
        let calls = |item: &Item| matches!(item, Item::Step(step) if step.bound.prepared.calls());
        let event = if self.cycle.items.iter().any(calls) { Event::PostgresCall } else { Event::PostgresOther };
        let whose = Whose::from(&**inbound.session().tally());
        let (steps, bytes) = (self.cycle.items.len() as u64, self.cycle.bytes as u64);
        Asked::begin(&self.cpu, event, whose, steps, bytes)
    }

    /// Sends the replies when what they say is durable.
    pub(super) fn send(&mut self, until: Until, release: Release, asked: Asked) {
        let out = self.cycle.take();
        self.release();
        let release = self.replies.hold(release, out.len());
        let (slot, replies) = (self.replies.reserve(), Rc::clone(&self.replies));
        if self.cycle.commits.iter().all(|(_, commit)| commit.is_durable()) {
            self.cycle.commits.clear();
            asked.end(&self.cpu);
            return replies.fill(slot, out, release);
        }
        let (block, ended, status) = (Rc::clone(&self.block), self.block.ended(), self.block.status());
        let exit = Exit { out, slot, replies, release, asked, until, block, ended, status };
        self.exits.add(&self.cpu, &mut self.cycle.commits, exit);
    }

    /// The client does not speak the protocol.
    async fn refuse_malformed(&mut self, inbound: &mut Inbound<'_, Messages>) {
        let release = inbound.admit(0, Holds::Nothing).await;
        let mut out = BytesMut::new();
        Refusal::new(SqlState::PROTOCOL_VIOLATION, "invalid message format").write_fatal(&mut out);
        let slot = self.replies.reserve();
        self.replies.fill(slot, Header::from_slice(&out), release);
    }
}

impl Handler for Conversation {
    type Decoder = Messages;

    fn decoder(&self) -> Messages {
        Messages::default()
    }

    async fn call(&mut self, call: Call, inbound: &mut Inbound<'_, Messages>) -> Next {
        self.cycle.bytes += call.bytes;
        if !self.cycle.failed && self.cycle.forgotten.concerns(&call.message) {
            Box::pin(self.work_off(Until::Flush)).await;
        }
        match call.message {
            Message::Terminate => return Next::Break(End::Closed),
            Message::Malformed => {
                self.refuse_malformed(inbound).await;
                return Next::Break(End::Malformed);
            }
            Message::Sync => self.answer(Until::Sync, inbound).await,
            // Also after a failure: the client waits to be told of it.
            Message::Flush => self.answer(Until::Flush, inbound).await,
            _ if self.cycle.failed => self.cycle.bytes -= call.bytes,
            Message::Query(query) => {
                if let Err(refusal) = self.query(&query) {
                    self.cycle.fail(refusal);
                }
                self.answer(Until::Sync, inbound).await;
            }
            Message::Refused { refusal, of_simple: true } => {
                self.cycle.fail(*refusal);
                self.answer(Until::Sync, inbound).await;
            }
            message => self.extended(message).await,
        }
        Next::Continue(())
    }
}
