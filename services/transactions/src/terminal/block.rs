//! The transaction that is open between two messages of a client.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use kernel::Processor;
use pgwire::messages::response::TransactionStatus;
use policy::unit::Instant;

use super::settings::Settings;
use crate::program::Version;
use crate::store::{Mark, Transaction};

/// How often an open transaction's age is looked at.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub enum State {
    #[default]
    None,
    Open {
        transaction: Transaction,
        /// By BEGIN; else it ends at the next Sync.
        explicit: bool,
    },
    /// A statement of it is being executed; it has the transaction.
    Busy { explicit: bool },
    /// It failed, and its end is awaited; or the return to a savepoint, for which the transaction is kept.
    Failed(Option<Transaction>),
    /// Its client was idle for too long.
    Expired { explicit: bool },
}

/// Where its client may return to.
pub(super) struct Savepoint {
    /// As the settings, shared with the savepoint before if it is the same.
    pub name: Rc<str>,
    pub mark: Mark,
    /// As they were.
    pub settings: Rc<Settings>,
    /// Portals with a name that were made before it.
    pub portals: u64,
    /// So many of this name that were made one after the other without a change in between.
    pub times: usize,
    /// In memory, of it and all before it, about.
    pub bytes: usize,
}

/// A session's transaction block.
#[derive(Default)]
pub struct Block {
    pub state: RefCell<State>,
    programs: RefCell<Option<Version>>,
    pub(super) savepoints: RefCell<Vec<Savepoint>>,
    used: Cell<Option<Instant>>,
    is_watched: Cell<bool>,
    timeout: Cell<Option<Duration>>,
    /// Counts the blocks that have ended.
    ended: Cell<u64>,
}

impl Block {
    pub fn status(&self) -> TransactionStatus {
        if !self.is_explicit() {
            return TransactionStatus::Idle;
        }
        match &*self.state.borrow() {
            State::Failed(_) | State::Expired { .. } => TransactionStatus::Error,
            _ => TransactionStatus::Transaction,
        }
    }

    /// Was it begun by BEGIN, and is its end awaited?
    pub fn is_explicit(&self) -> bool {
        match &*self.state.borrow() {
            State::None => false,
            State::Open { explicit, .. } | State::Busy { explicit } | State::Expired { explicit } => *explicit,
            State::Failed(_) => true,
        }
    }

    /// Takes the transaction to execute a statement in it; [`Block::put_back`] follows, or the state is set otherwise.
    pub fn take(&self) -> Option<(Transaction, bool, Option<Version>)> {
        let mut state = self.state.borrow_mut();
        match std::mem::take(&mut *state) {
            State::Open { transaction, explicit } => {
                *state = State::Busy { explicit };
                Some((transaction, explicit, self.programs.take()))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    pub fn put_back(&self, transaction: Transaction, explicit: bool, programs: Option<Version>) {
        self.programs.replace(programs);
        let mut state = self.state.borrow_mut();
        // It may have failed meanwhile.
        *state = match &*state {
            State::Failed(_) => State::Failed(self.has_savepoints().then_some(transaction)),
            _ => State::Open { transaction, explicit },
        };
    }

    /// May its client return to what it has written earlier?
    pub fn has_savepoints(&self) -> bool {
        !self.savepoints.borrow().is_empty()
    }

    /// In which its statements are executed; none before the first.
    pub fn programs(&self) -> Option<Version> {
        self.programs.borrow().clone()
    }

    pub fn set(&self, state: State) {
        self.programs.take();
        if matches!(state, State::None) {
            self.savepoints.take();
            self.ended.set(self.ended.get() + 1);
        }
        self.state.replace(state);
    }

    /// The block ends. Returns its transaction, if it has one: also that of a block that has failed.
    pub fn end(&self) -> Option<Transaction> {
        let state = self.state.take();
        self.set(State::None);
        match state {
            State::Open { transaction, .. } | State::Failed(Some(transaction)) => Some(transaction),
            _ => None,
        }
    }

    pub fn has_failed(&self) -> bool {
        matches!(&*self.state.borrow(), State::Failed(_))
    }

    /// A statement of it has failed.
    pub fn fail(&self) {
        let mut state = self.state.borrow_mut();
        let kept = match std::mem::take(&mut *state) {
            State::Open { transaction, .. } if self.has_savepoints() => Some(transaction),
            State::Failed(kept) => kept.filter(|_| self.has_savepoints()),
            _ => None,
        };
        if kept.is_none() {
            self.programs.take();
        }
        *state = State::Failed(kept);
    }

    /// It has returned to a savepoint.
    pub(super) fn go_on(&self) {
        let mut state = self.state.borrow_mut();
        if let State::Failed(kept) = &mut *state
            && let Some(transaction) = kept.take()
        {
            *state = State::Open { transaction, explicit: true };
        }
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// A statement of it was executed, and its client was told of a failure instead: what it read is not durable. So the
    /// block has failed, if it is still the one after `ended` others.
    pub fn fail_since(&self, ended: u64) {
        let is_open = !matches!(&*self.state.borrow(), State::None | State::Expired { .. });
        if self.ended() == ended && self.is_explicit() && is_open {
            // Those that were made after it would bring it back.
            self.savepoints.take();
            self.fail();
        }
    }

    /// The client's turn: from now on it has `timeout` until the transaction is given up.
    pub fn await_client(self: &Rc<Self>, cpu: &Processor, timeout: Option<Duration>) {
        if !matches!(&*self.state.borrow(), State::Open { .. } | State::Failed(Some(_))) {
            return;
        }
        self.used.set(Some(cpu.now()));
        self.timeout.set(timeout);
        if timeout.is_some() && !self.is_watched.replace(true) {
            let (here, block) = (cpu.clone(), Rc::downgrade(self));
            cpu.spawn(async move { Block::watch(block, &here).await });
        }
    }

    /// Ends the transaction if its client was idle for too long. [`Block::watch`] may be late.
    pub fn expire(&self, cpu: &Processor) {
        let (Some(used), Some(timeout)) = (self.used.get(), self.timeout.get()) else { return };
        let mut state = self.state.borrow_mut();
        let explicit = match &*state {
            State::Open { explicit, .. } => *explicit,
            State::Failed(Some(_)) => true,
            _ => return,
        };
        if cpu.now() >= used + timeout {
            *state = State::Expired { explicit };
        }
    }

    /// Ends the transaction when its client is idle for too long. Ends when there is none: a task for each transaction
    /// would outlive it by the timeout. The transaction of a client that is gone is not kept by it.
    async fn watch(block: Weak<Block>, cpu: &Processor) {
        while let Some(next) = block.upgrade().and_then(|block| block.look(cpu)) {
            cpu.sleep_until(next).await;
        }
    }

    /// Returns when to look again.
    fn look(&self, cpu: &Processor) -> Option<Instant> {
        self.expire(cpu);
        let is_open = matches!(&*self.state.borrow(), State::Open { .. } | State::Busy { .. } | State::Failed(Some(_)));
        let (Some(used), Some(timeout), true) = (self.used.get(), self.timeout.get(), is_open) else {
            self.is_watched.set(false);
            return None;
        };
        let (now, deadline) = (cpu.now(), used + timeout);
        let look = now + LOOK_INTERVAL_MAX.min(timeout);
        Some(if now < deadline { deadline.min(look) } else { look })
    }
}
