//! Savepoints of a block: where its client may return to, also when the block has failed since.

use std::rc::Rc;

use super::block::{Block, Savepoint, State};
use super::refusal::{Refusal, SqlState};
use super::session::Conversation;
use super::settings::Settings;
use super::sql::SavepointAction;
use crate::store::Transaction;

/// What a block's savepoints may take. Bytes. Those of one name with nothing changed in between are one: some drivers (JDBC's
/// `autosave`) make one before each statement, and never release it.
const SAVEPOINTS_BYTES_MAX: usize = 1 << 20;

impl Conversation {
    /// # Errors
    /// If there is no block, or no savepoint of that name, or there are too many.
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
            SavepointAction::Make => self.block.make_savepoint(name, &self.settings, self.portals_made)?,
            SavepointAction::Release => self.block.release(name)?,
            SavepointAction::RollBackTo => {
                let (settings, portals) = self.block.roll_back_to(name)?;
                // The one without a name is ended by the Bind of this statement, unless that names its own.
                self.portals.retain_named(|portal| portal.made <= portals);
                self.settings.return_to(&settings, &mut self.cycle.out);
            }
        }
        self.complete(tag);
        Ok(())
    }
}

impl Block {
    /// # Errors
    /// If there are too many: then no savepoint is left.
    fn make_savepoint(&self, name: &str, settings: &Settings, portals: u64) -> Result<(), Refusal> {
        let mark = self.with_transaction(Transaction::mark).ok_or_else(|| unknown(name))?;
        let mut savepoints = self.savepoints.borrow_mut();
        let (mut bytes, mut shared) = (size_of::<Savepoint>(), (None, None));
        if let Some(last) = savepoints.last_mut() {
            let (same_name, same_settings) = (*last.name == *name, *last.settings == *settings);
            if same_name && same_settings && last.mark == mark && last.portals == portals {
                last.times += 1;
                return Ok(());
            }
            bytes += last.bytes;
            shared = (same_name.then(|| Rc::clone(&last.name)), same_settings.then(|| Rc::clone(&last.settings)));
        }
        let name = shared.0.unwrap_or_else(|| {
            bytes += name.len();
            name.into()
        });
        let settings = shared.1.unwrap_or_else(|| {
            bytes += settings.bytes();
            Rc::new(settings.clone())
        });
        if bytes > SAVEPOINTS_BYTES_MAX {
            // A client that takes an older one of that name for this one would undo what came between without knowing.
            savepoints.clear();
            let message = format!("the savepoints of a block take more than {SAVEPOINTS_BYTES_MAX} bytes");
            return Err(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
        }
        savepoints.push(Savepoint { name, mark, settings, portals, times: 1, bytes });
        Ok(())
    }

    /// It and later ones are forgotten.
    ///
    /// # Errors
    /// If there is none of that name.
    fn release(&self, name: &str) -> Result<(), Refusal> {
        let at = self.find(name)?;
        let mut savepoints = self.savepoints.borrow_mut();
        savepoints[at].times -= 1;
        let left = at + usize::from(savepoints[at].times > 0);
        savepoints.truncate(left);
        Ok(())
    }

    /// Returns to it, and forgets later ones; the block goes on if it had failed. Returns the settings that it had, and
    /// how many portals with a name had been made.
    ///
    /// # Errors
    /// If there is none of that name.
    fn roll_back_to(&self, name: &str) -> Result<(Rc<Settings>, u64), Refusal> {
        let at = self.find(name)?;
        let mut savepoints = self.savepoints.borrow_mut();
        savepoints.truncate(at + 1);
        let Savepoint { mark, settings, portals, .. } = &savepoints[at];
        let returned = self.with_transaction(|transaction| transaction.return_to(*mark));
        returned.ok_or_else(|| unknown(name))?;
        self.go_on();
        Ok((Rc::clone(settings), *portals))
    }

    /// The newest of that name.
    fn find(&self, name: &str) -> Result<usize, Refusal> {
        self.savepoints.borrow().iter().rposition(|savepoint| *savepoint.name == *name).ok_or_else(|| unknown(name))
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
