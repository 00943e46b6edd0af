//! What a client asked for since the last Sync, in order: replies that are known, and steps that are still to be executed.
//!
//! Calls outside of a transaction block are executed when the Sync arrives, all of them as one transaction, as in
//! PostgreSQL. Nothing of its replies has been sent then, so where it conflicts it is executed again without the client
//! noticing. Only those before a Flush are executed then, once, and those before a DEALLOCATE or DISCARD ALL when what comes
//! after it depends on that.

use bytes::BytesMut;
use kernel::connection::Header;

use super::evaluated::Evaluated;
use super::message::Message;
use super::prepared::Bound;
use super::refusal::{Refusal, SqlState};
use super::sql::Statement;
use crate::store::Commit;

/// Arguments between two Syncs, and results, at most. Bytes.
pub const CYCLE_BYTES_MAX: usize = 4 << 20;

/// Statements that wait to be executed, at most: as many as there may be between two Syncs.
pub const STEPS_MAX: usize = 4096;

/// Items that wait, at most: statements, with a reply before each.
pub const ITEMS_MAX: usize = 2 * STEPS_MAX;

/// Items whose memory is kept for the next cycle.
const ITEMS_REUSED: usize = 4;

/// Memory of a reply that is kept for the next, at most. Bytes.
const OUT_BYTES_REUSED: usize = 1024;

pub enum Item {
    Reply(BytesMut),
    Step(Step),
    /// The client is refused: what is not committed is given up.
    Failure(Refusal),
}

pub struct Step {
    pub bound: Bound,
    /// The simple protocol describes each result.
    pub describes: bool,
}

/// When steps are executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// What was asked for outside of a block is committed.
    Sync,
    /// The client wants what is known; more may follow.
    Flush,
}

/// Which prepared statements are forgotten when the items are executed.
#[derive(Default)]
pub enum Forgotten {
    #[default]
    None,
    One(String),
    Several,
}

impl Forgotten {
    pub fn add(&mut self, statement: &Statement) {
        *self = match (&*self, statement) {
            (Forgotten::None, Statement::Deallocate(Some(name))) => Forgotten::One(name.clone()),
            (_, Statement::Deallocate(_) | Statement::DiscardAll) => Forgotten::Several,
            _ => return,
        };
    }

    /// Does what `message` does depend on that?
    pub fn concerns(&self, message: &Message) -> bool {
        let only = match self {
            Forgotten::None => return false,
            Forgotten::One(name) => Some(name),
            Forgotten::Several => None,
        };
        let forgets = |used: &str| only.is_none_or(|name| name == used);
        match message {
            // There must be room for it.
            Message::Parse(_) => true,
            Message::Bind(bind) => forgets(bind.statement()),
            Message::Describe(named) | Message::Close(named) => named.is_statement && forgets(named.name()),
            _ => false,
        }
    }
}

#[derive(Default)]
pub struct Cycle {
    /// What is sent next.
    pub out: BytesMut,
    pub items: Vec<Item>,
    /// Each must be durable before what follows it in `out`, from a position on.
    pub commits: Vec<(usize, Commit)>,
    /// Until the next Sync, everything is ignored.
    pub failed: bool,
    /// Of messages, and of what they have described.
    pub bytes: usize,
    pub evaluated: Evaluated,
    /// In a catalogue, since the client was last answered.
    pub has_looked_up: bool,
    pub forgotten: Forgotten,
    /// Named statements made since, and how many items were before each.
    pub made: Vec<(usize, String)>,
}

/// The client asks for too much at a time.
pub fn too_much() -> Refusal {
    let bounds = format!("{STEPS_MAX} statements or {CYCLE_BYTES_MAX} bytes of arguments or results");
    Refusal::new(SqlState::LIMIT_EXCEEDED, format!("more than {bounds} without a Sync"))
}

impl Cycle {
    /// In memory, about. Bytes.
    pub fn held(&self) -> usize {
        self.bytes + self.out.len()
    }

    /// Where the reply to the next message goes.
    pub fn reply(&mut self) -> &mut BytesMut {
        if self.items.is_empty() {
            return &mut self.out;
        }
        if !matches!(self.items.last(), Some(Item::Reply(_))) {
            self.items.push(Item::Reply(BytesMut::new()));
        }
        match self.items.last_mut() {
            Some(Item::Reply(bytes)) => bytes,
            _ => &mut self.out,
        }
    }

    /// What is sent now. Memory for an ordinary reply stays for the next.
    pub fn take(&mut self) -> Header {
        if self.out.capacity() > OUT_BYTES_REUSED {
            return Header::from_slice(&std::mem::take(&mut self.out));
        }
        let out = Header::from_slice(&self.out);
        self.out.clear();
        out
    }

    /// Memory of items that are done with, for the next ones.
    pub fn reuse(&mut self, mut items: Vec<Item>) {
        items.clear();
        items.shrink_to(ITEMS_REUSED);
        self.items = items;
    }

    pub fn fail(&mut self, refusal: Refusal) {
        self.items.push(Item::Failure(refusal));
        self.failed = true;
    }
}
