//! The most frequent thing that clients ask for, one call outside of a block, done before the general path and without
//! waiting (OLTP-4).

use kernel::connection::{Holds, Inbound, Release};

use super::block::State;
use super::cycle::{Item, Until};
use super::exits::Asked;
use super::message::Messages;
use super::prepared::Cell;
use super::refusal::Refusal;
use super::session::Conversation;
use crate::store::{Commit, CommitError};
use crate::{CallError, Value};

impl Conversation {
    /// Executes what is pending up to a Sync, if it is one call that does not wait, and has the replies sent.
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
        let evaluated = self.cycle.evaluated.so_far();
        let Some((row, read)) = self.execute_at_once() else {
            self.cycle.evaluated.set_back(evaluated);
            return false;
        };
        self.cpu.count_request();
        outbound.begin(bytes, Holds::Nothing);
        self.await_durable(Some(read));
        let items = std::mem::take(&mut self.cycle.items);
        match row {
            Ok(values) => self.write_at_once(&items, &mut std::iter::once(values)),
            Err(refusal) => refusal.write(&mut self.cycle.out),
        }
        self.cycle.reuse(items);
        self.cycle.made.clear();
        self.end_cycle(Until::Sync);
        self.send(Until::Sync, Release { requests: 1, bytes }, asked);
        true
    }

    /// The row of the only step, or why there is none, and what must be durable before either is told. `None`: nothing has
    /// happened.
    fn execute_at_once(&self) -> Option<(Result<Vec<Value>, Refusal>, Commit)> {
        let [Item::Step(step)] = &self.cycle.items[..] else { return None };
        let prepared = &step.bound.prepared;
        if !prepared.calls() {
            return None;
        }
        self.registered.cancel.begin();
        let (values, evaluated) = (&step.bound.values, &self.cycle.evaluated);
        let mut cells = prepared.cells(&self.cpu, &self.monitor, values, &self.facts, None, evaluated).ok()?;
        let Some(Cell::Call(function, tally, arguments)) = cells.pop().filter(|_| cells.is_empty()) else {
            return None;
        };
        let counters = self.monitor.counters();
        let mut transaction = self.monitor.begin();
        let read_only = self.settings.is_read_only();
        let value = match function.execute_at_once(&self.cpu, &arguments, &mut transaction, read_only) {
            Ok(value) => value?,
            Err(_) if transaction.conflicts() => {
                counters.conflict();
                return None;
            }
            Err(error) => {
                tally.note(false, true);
                counters.abort();
                return Some((Err((&CallError::from(error)).into()), transaction.abort()));
            }
        };
        match transaction.commit_at_once(&self.cpu) {
            Ok(None) => None,
            Ok(Some(commit)) => {
                tally.note(true, true);
                counters.commit();
                Some((Ok(vec![value]), commit))
            }
            Err(CommitError::Conflict(_)) => {
                counters.conflict();
                None
            }
            Err(CommitError::Store(_)) => None,
        }
    }
}
