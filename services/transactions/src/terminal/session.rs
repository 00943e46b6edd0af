//! What a session has: its statements, portals, settings and transaction.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use kernel::Processor;
use kernel::connection::Session;

use super::block::Block;
use super::cancel::Registered;
use super::cycle::Cycle;
use super::prepared::{Bound, Facts, Prepared};
use super::refusal::{Refusal, SqlState};
use super::replies::Replies;
use super::reply::complete;
use super::settings::Settings;
use super::startup::Started;
use crate::Monitor;

/// Prepared statements, and portals, of one session at most.
const NAMED_MAX: usize = 1024;
/// Names whose memory is kept.
const NAMED_REUSED: usize = 3;
/// The texts of prepared statements, and the values in portals, of one session at most. Bytes.
const NAMED_BYTES_MAX: usize = 4 << 20;

/// What has a name in a session; the empty name is one like others.
pub(super) struct Names<T> {
    all: HashMap<String, (T, usize)>,
    bytes: usize,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Names { all: HashMap::new(), bytes: 0 }
    }
}

impl<T> Names<T> {
    pub fn get(&self, name: &str) -> Option<&T> {
        self.all.get(name).map(|(value, _)| value)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.all.get_mut(name).map(|(value, _)| value)
    }

    pub fn remove(&mut self, name: &str) -> bool {
        let removed = self.all.remove(name);
        self.bytes -= removed.as_ref().map_or(0, |(_, bytes)| *bytes);
        removed.is_some()
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.all.shrink_to(NAMED_REUSED);
        self.bytes = 0;
    }

    pub fn insert(&mut self, name: String, value: T, bytes: usize) -> Result<(), Refusal> {
        let bytes = bytes + name.len();
        self.remove(&name);
        if self.all.len() == NAMED_MAX || self.bytes + bytes > NAMED_BYTES_MAX {
            let message =
                format!("a session has at most {NAMED_MAX} statements and portals, of {NAMED_BYTES_MAX} bytes");
            return Err(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
        }
        self.bytes += bytes;
        self.all.insert(name, (value, bytes));
        Ok(())
    }
}

pub(super) struct Portal {
    pub bound: Bound,
    /// A portal has one row: it is executed once.
    pub is_done: bool,
}

/// A session, which handles its client's messages.
pub struct Conversation {
    pub(super) cpu: Processor,
    pub(super) monitor: Arc<Monitor>,
    pub(super) facts: Facts,
    pub(super) settings: Settings,
    pub(super) statements: Names<Rc<Prepared>>,
    pub(super) portals: Names<Portal>,
    pub(super) block: Rc<Block>,
    pub(super) cycle: Cycle,
    pub(super) registered: Registered,
    pub(super) replies: Rc<Replies>,
}

impl Conversation {
    pub(super) fn new(session: &Session, started: Started) -> Conversation {
        let Started { monitor, user, process, settings, registered } = started;
        Conversation {
            cpu: session.cpu().clone(),
            monitor,
            facts: Facts { user, process },
            settings,
            statements: Names::default(),
            portals: Names::default(),
            block: Rc::default(),
            cycle: Cycle::default(),
            registered,
            replies: Replies::new(session.outbound()),
        }
    }

    pub(super) fn complete(&mut self, tag: &str) {
        complete(&mut self.cycle.out, tag);
    }

    pub(super) fn warn(&mut self, state: SqlState, message: &str) {
        Refusal::new(state, message).write_warning(&mut self.cycle.out);
    }

    pub(super) fn forget_statement(&mut self, name: &str) {
        self.statements.remove(name);
    }

    pub(super) fn forget_statements(&mut self) {
        self.statements.clear();
    }
}
