//! The most frequent thing that clients ask for, one call outside of a block, done before the general path and without
//! waiting (OLTP-4).

use kernel::connection::{Holds, Inbound, Release};

use super::block::State;
use super::conversation::Asked;
use super::cycle::{Item, Until};
use super::message::Messages;
use super::prepared::Cell;
use super::session::Conversation;
use crate::Value;
use crate::store::{Commit, CommitError};

impl Conversation {
    /// Executes what is pending up to a Sync, if it is one call that neither waits nor fails, and has the replies sent.
    /// False: nothing has happened.
    pub(super) fn answer_at_once(&mut self, inbound: &Inbound<'_, Messages>, asked: Asked) -> bool {
        let [Item::Step(_)] = self.cycle.items[..] else { return false };
        let outbound = inbound.session().outbound();
        let bytes = self.cycle.bytes as u64;
        let may_pass = self.cpu.switches().hottest_first
            && !self.cycle.failed
            && matches!(*self.block.state.borrow(), State::None)
            && outbound.admits_at_once(bytes, self.cpu.kernel().cache_blocks());
        if !may_pass {
            return false;
        }
        let Some((values, commit)) = self.execute_at_once() else { return false };
        self.cpu.count_request();
        outbound.begin(bytes, Holds::Nothing);
        self.await_durable(Some(commit));
        let items = std::mem::take(&mut self.cycle.items);
        self.write(&items, vec![values]);
        self.cycle.reuse(items);
        self.cycle.made.clear();
        self.end_cycle(Until::Sync);
        self.send(Until::Sync, Release { requests: 1, bytes }, asked);
        true
    }

    /// The row of the only step, and its commit.
    fn execute_at_once(&self) -> Option<(Vec<Value>, Commit)> {
        let [Item::Step(step)] = &self.cycle.items[..] else { return None };
        let prepared = &step.bound.prepared;
        if !prepared.calls() {
            return None;
        }
        self.registered.cancel.begin();
        let mut cells = prepared.cells(&self.cpu, &self.monitor, &step.bound.values, &self.facts).ok()?;
        let Some(Cell::Call(function, tally, arguments)) = cells.pop().filter(|_| cells.is_empty()) else {
            return None;
        };
        let mut transaction = self.monitor.begin();
        let value = function.execute_at_once(&self.cpu, &arguments, &mut transaction).ok()??;
        match transaction.commit_at_once(&self.cpu) {
            Ok(None) => None,
            Ok(Some(commit)) => {
                tally.note(true, true);
                self.monitor.counters().commit();
                Some((vec![value], commit))
            }
            Err(CommitError::Conflict(_)) => {
                self.monitor.counters().conflict();
                None
            }
            Err(CommitError::Store(_)) => None,
        }
    }
}
