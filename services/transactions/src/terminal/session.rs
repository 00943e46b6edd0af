//! What a session has: its statements, portals, settings and transaction.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use kernel::Processor;
use kernel::connection::Session;

use super::block::Block;
use super::budget::{Budget, Budgets, Share};
use super::cancel::Registered;
use super::cycle::Cycle;
use super::exits::Exits;
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
/// What prepared statements take, and what portals do with their statements and values, of one session at most. Bytes.
const NAMED_BYTES_MAX: usize = 4 << 20;
/// The one without a name has this whatever others hold: what ends a block is always possible. Bytes.
const UNNAMED_BYTES_GRANTED: usize = 4 << 10;

/// What has a name in a session. The empty name, which most portals have, is found without a search.
pub(super) struct Names<T> {
    unnamed: Option<(T, usize)>,
    named: HashMap<String, (T, usize)>,
    bytes: usize,
    share: Share,
}

impl<T> Names<T> {
    fn new(budget: &Arc<Budget>) -> Names<T> {
        Names { unnamed: None, named: HashMap::new(), bytes: 0, share: Share::new(budget) }
    }

    pub fn get(&self, name: &str) -> Option<&T> {
        let found = if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) };
        found.map(|(value, _)| value)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        let found = if name.is_empty() { self.unnamed.as_mut() } else { self.named.get_mut(name) };
        found.map(|(value, _)| value)
    }

    pub fn remove(&mut self, name: &str) -> bool {
        let removed = if name.is_empty() { self.unnamed.take() } else { self.named.remove(name) };
        self.bytes -= removed.as_ref().map_or(0, |(_, bytes)| *bytes);
        self.share.release(self.shared());
        removed.is_some()
    }

    /// Of its bytes, those that others cannot have.
    fn shared(&self) -> usize {
        self.bytes - self.unnamed.as_ref().map_or(0, |(_, bytes)| *bytes.min(&UNNAMED_BYTES_GRANTED))
    }

    /// Of those with a name.
    pub fn retain_named(&mut self, is_kept: impl Fn(&T) -> bool) {
        let bytes = &mut self.bytes;
        self.named.retain(|_, (value, own)| {
            let stays = is_kept(value);
            *bytes -= if stays { 0 } else { *own };
            stays
        });
        self.share.release(self.shared());
    }

    pub fn clear(&mut self) {
        self.unnamed = None;
        self.named.clear();
        self.named.shrink_to(NAMED_REUSED);
        self.bytes = 0;
        self.share.release(0);
    }

    pub fn insert(&mut self, cpu: &Processor, name: &str, value: T, bytes: usize) -> Result<(), Refusal> {
        let bytes = bytes + name.len();
        self.remove(name);
        if self.named.len() == NAMED_MAX || self.bytes + bytes > NAMED_BYTES_MAX {
            let message = format!(
                "a session has at most {NAMED_MAX} statements and as many portals, of {NAMED_BYTES_MAX} bytes each"
            );
            return Err(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
        }
        let granted = if name.is_empty() { bytes.min(UNNAMED_BYTES_GRANTED) } else { 0 };
        self.share.hold(self.shared() + bytes - granted, cpu)?;
        self.bytes += bytes;
        match name {
            "" => self.unnamed = Some((value, bytes)),
            name => drop(self.named.insert(name.to_owned(), (value, bytes))),
        }
        Ok(())
    }
}

pub(super) struct Portal {
    pub bound: Bound,
    /// A portal has one row: it is executed once.
    pub is_done: bool,
    /// How many with a name were made before it, or with it.
    pub made: u64,
}

/// A session, which handles its client's messages.
pub struct Conversation {
    pub(super) cpu: Processor,
    pub(super) monitor: Arc<Monitor>,
    pub(super) facts: Facts,
    pub(super) settings: Settings,
    pub(super) statements: Names<Rc<Prepared>>,
    pub(super) portals: Names<Portal>,
    /// Portals with a name that were made.
    pub(super) portals_made: u64,
    pub(super) block: Rc<Block>,
    pub(super) cycle: Cycle,
    pub(super) registered: Registered,
    pub(super) replies: Rc<Replies>,
    pub(super) exits: Rc<Exits>,
    /// For messages, and replies that are not yet sent.
    share: Share,
}

impl Conversation {
    pub(super) fn new(session: &Session, started: Started, budgets: &Budgets) -> Conversation {
        let Started { monitor, user, process, settings, registered } = started;
        Conversation {
            cpu: session.cpu().clone(),
            monitor,
            facts: Facts { user, process },
            settings,
            statements: Names::new(&budgets.statements),
            portals: Names::new(&budgets.portals),
            portals_made: 0,
            block: Rc::default(),
            cycle: Cycle::default(),
            registered,
            replies: Replies::new(session.outbound()),
            exits: session.cpu().own(),
            share: Share::new(&budgets.cycles),
        }
    }

    /// Before there are `more` bytes of messages or results.
    ///
    /// # Errors
    /// If all sessions together hold too much for that.
    pub(super) fn hold(&self, more: usize) -> Result<(), Refusal> {
        self.share.hold(self.cycle.held() + more, &self.cpu)
    }

    /// After replies were sent.
    pub(super) fn release(&self) {
        self.share.release(self.cycle.held());
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
