//! Savepoints of a block: where its client may return to, also when the block has failed since.

use std::rc::Rc;

use super::block::{Block, Savepoint, State};
use super::refusal::{Refusal, SqlState};
use super::session::Conversation;
use super::settings::Settings;
use super::sql::SavepointAction;
use crate::store::Transaction;

impl Conversation {
    /// # Errors
    /// If there is no block, or no savepoint of that name, or the transaction is too long.
    pub(super) fn savepoint(&mut self, action: SavepointAction, name: &str) -> Result<(), Refusal> {
        let (statement, tag) = match action {
            SavepointAction::Make => ("SAVEPOINT", "SAVEPOINT"),
            SavepointAction::Release => ("RELEASE SAVEPOINT", "RELEASE"),
            SavepointAction::RollBackTo => ("ROLLBACK TO SAVEPOINT", "ROLLBACK"),
        };
        match action {
            SavepointAction::Make | SavepointAction::Release => self.refuse_after_failure()?,
            SavepointAction::RollBackTo => self.refuse_after_expiry()?,
        }
        if !self.block.is_explicit() {
            let message = format!("{statement} can only be used in transaction blocks");
            return Err(Refusal::new(SqlState::NO_ACTIVE_TRANSACTION, message));
        }
        match action {
            SavepointAction::Make => self.block.make_savepoint(name, &self.settings)?,
            SavepointAction::Release => self.block.release(name)?,
            SavepointAction::RollBackTo => {
                let settings = self.block.roll_back_to(name)?;
                self.settings.return_to(&settings, &mut self.cycle.out);
            }
        }
        self.complete(tag);
        Ok(())
    }
}

impl Block {
    /// # Errors
    /// If the transaction is too long: then no savepoint is left.
    fn make_savepoint(&self, name: &str, settings: &Settings) -> Result<(), Refusal> {
        let mut savepoints = self.savepoints.borrow_mut();
        let before = savepoints.last().map(|last| &last.settings).filter(|before| ***before == *settings);
        let (settings, bytes) = match before {
            Some(before) => (Rc::clone(before), 0),
            None => (Rc::new(settings.clone()), settings.bytes()),
        };
        let mark = self.with_transaction(|transaction| transaction.mark(name.len() + bytes));
        let mark = mark.ok_or_else(|| unknown(name))?.map_err(|error| {
            // A client that takes an older one of that name for this one would undo what came between without knowing.
            savepoints.clear();
            Refusal::from(&error)
        })?;
        savepoints.push(Savepoint { name: name.to_owned(), mark, settings });
        Ok(())
    }

    /// It and later ones are forgotten.
    ///
    /// # Errors
    /// If there is none of that name.
    fn release(&self, name: &str) -> Result<(), Refusal> {
        let at = self.find(name)?;
        let forgotten = self.savepoints.borrow_mut().split_off(at);
        self.with_transaction(|transaction| forgotten.iter().for_each(|one| transaction.forget(one.mark)));
        Ok(())
    }

    /// Returns to it, and forgets later ones; the block goes on if it had failed. Returns the settings that it had.
    ///
    /// # Errors
    /// If there is none of that name.
    fn roll_back_to(&self, name: &str) -> Result<Rc<Settings>, Refusal> {
        let at = self.find(name)?;
        let mut savepoints = self.savepoints.borrow_mut();
        savepoints.truncate(at + 1);
        let Savepoint { mark, settings, .. } = &savepoints[at];
        let returned = self.with_transaction(|transaction| transaction.return_to(*mark));
        returned.ok_or_else(|| unknown(name))?;
        self.go_on();
        Ok(Rc::clone(settings))
    }

    /// The newest of that name.
    fn find(&self, name: &str) -> Result<usize, Refusal> {
        self.savepoints.borrow().iter().rposition(|savepoint| savepoint.name == name).ok_or_else(|| unknown(name))
    }

    fn with_transaction<T>(&self, with: impl FnOnce(&mut Transaction) -> T) -> Option<T> {
        match &mut *self.state.borrow_mut() {
            State::Open { transaction, .. } | State::Failed(Some(transaction)) => Some(with(transaction)),
            _ => None,
        }
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(SqlState::INVALID_SAVEPOINT, format!("savepoint {name:?} does not exist"))
}
