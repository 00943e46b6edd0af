//! Executes the steps of a cycle: calls as transactions, and the statements about transactions.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::block::State;
use super::cycle::{CYCLE_BYTES_MAX, Forgotten, Item, Step, Until, too_much};
use super::prepared::{Bound, Cell};
use super::refusal::{Refusal, SqlState};
use super::session::Conversation;
use super::settings::SHOWN_BYTES_MAX;
use super::sql::{SavepointAction, Statement};
use crate::program::Version;
use crate::store::{Commit, CommitError, Conflict, Transaction};
use crate::{Aborted, CallError, Value};

/// The results of queries that may be told: up to one that failed, or none.
type Rows = Vec<Vec<Value>>;

/// Counts results, which become replies.
struct Made<'a> {
    session: &'a Conversation,
    bytes: usize,
}

impl Made<'_> {
    fn count(&mut self, value: Value) -> Result<Value, Refusal> {
        self.bytes += value.bytes();
        if self.session.cycle.out.len() + self.bytes > CYCLE_BYTES_MAX {
            return Err(too_much());
        }
        self.session.hold(self.bytes)?;
        Ok(value)
    }
}

/// Why a transaction was given up.
pub enum Failure {
    Refused(Refusal),
    Call(CallError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        Failure::Call(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Call(error) => (&error).into(),
        }
    }
}

/// What a statement does to the transaction block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control<'a> {
    Begin { read_only: Option<bool> },
    ReadOnly(bool),
    Commit,
    Rollback,
    Savepoint(SavepointAction, &'a str),
}

/// What becomes of the transaction of a segment outside of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Commit,
    Keep,
    Drop,
}

fn control(item: &Item) -> Option<Control<'_>> {
    let Item::Step(step) = item else { return None };
    match &step.bound.prepared.statement {
        Statement::Begin { read_only } => Some(Control::Begin { read_only: *read_only }),
        Statement::ReadOnly(read_only) => Some(Control::ReadOnly(*read_only)),
        Statement::Commit => Some(Control::Commit),
        Statement::Rollback => Some(Control::Rollback),
        Statement::Savepoint { action, name } => Some(Control::Savepoint(*action, name)),
        _ => None,
    }
}

fn ends_segment(item: &Item) -> bool {
    control(item).is_some() || matches!(item, Item::Failure(_))
}

/// What becomes of the transaction before `next`.
fn then(next: Option<&Item>, until: Until) -> Then {
    match next.map(control) {
        None if until == Until::Sync => Then::Commit,
        None | Some(Some(Control::Begin { .. } | Control::ReadOnly(_))) => Then::Keep,
        Some(Some(Control::Commit)) => Then::Commit,
        // Outside of a block there is no savepoint: an error.
        Some(Some(Control::Rollback | Control::Savepoint(..)) | None) => Then::Drop,
    }
}

fn steps(items: &[Item]) -> impl Iterator<Item = (usize, &Step)> {
    items.iter().enumerate().filter_map(|(at, item)| if let Item::Step(step) = item { Some((at, step)) } else { None })
}

impl Conversation {
    /// Executes all that is pending.
    pub(super) async fn work_off(&mut self, until: Until) {
        let items = std::mem::take(&mut self.cycle.items);
        self.cycle.forgotten = Forgotten::None;
        self.block.expire(&self.cpu);
        let done = match self.execute(&items, until).await {
            Ok(()) => items.len(),
            Err((failed, refusal)) => {
                refusal.write(&mut self.cycle.out);
                self.cycle.failed = true;
                if self.block.is_explicit() {
                    self.block.fail();
                } else {
                    self.block.set(State::None);
                }
                failed
            }
        };
        // The client takes what follows a failure for not executed.
        let made = std::mem::take(&mut self.cycle.made);
        made.iter().filter(|(before, _)| *before > done).for_each(|(_, name)| self.forget_statement(name));
        if until == Until::Sync {
            self.end_implicit().await;
        }
        self.block.await_client(&self.cpu, self.settings.idle_timeout());
    }

    /// # Errors
    /// The index of the item that failed, and why.
    async fn execute(&mut self, items: &[Item], until: Until) -> Result<(), (usize, Refusal)> {
        let mut at = 0;
        while at < items.len() {
            let end = items[at..].iter().position(ends_segment).map_or(items.len(), |len| at + len);
            if end > at {
                let segment = self.segment(&items[at..end], then(items.get(end), until)).await;
                segment.map_err(|(failed, refusal)| (at + failed, refusal))?;
            }
            match items.get(end) {
                Some(Item::Failure(refusal)) => return Err((end, refusal.clone())),
                Some(item) => {
                    if let Some(control) = control(item) {
                        self.control(control).await.map_err(|refusal| (end, refusal))?;
                    }
                }
                None => {}
            }
            at = end + 1;
        }
        Ok(())
    }

    /// Executes items of which none is about the block.
    async fn segment(&mut self, items: &[Item], then: Then) -> Result<(), (usize, Refusal)> {
        if let Some((at, _)) = steps(items).next() {
            self.refuse_after_failure().map_err(|refusal| (at, refusal))?;
        }
        // What can fail is tried first: a transaction that is committed is answered as such.
        let (mut told, mut settings) = (self.cycle.out.len(), None);
        let refused = steps(items).find_map(|(at, step)| {
            let statement = &step.bound.prepared.statement;
            told += match statement {
                Statement::Show(None) => SHOWN_BYTES_MAX,
                Statement::Lookup(lookup) => lookup.rows_bytes_max(),
                _ => 0,
            };
            let refused =
                self.check(statement, &mut settings).err().or_else(|| (told > CYCLE_BYTES_MAX).then(too_much))?;
            Some((at, refused))
        });
        let end = refused.as_ref().map_or(items.len(), |(at, _)| *at);
        let queries: Vec<_> = steps(&items[..end]).filter(|(_, step)| step.bound.prepared.query().is_some()).collect();
        let mut rows = Rows::new();
        let then = if refused.is_some() { Then::Drop } else { then };
        let executed = if queries.is_empty() { Ok(()) } else { self.queries(&queries, then, &mut rows).await };
        let failed = executed.err().map(|failure| (queries.get(rows.len()).map_or(end, |(at, _)| *at), failure.into()));
        let written = failed.as_ref().map_or(end, |(at, _)| *at);
        self.write(&items[..written], rows).await;
        failed.or(refused).map_or(Ok(()), Err)
    }

    /// Executes queries in the transaction that is open, else in one of their own.
    async fn queries(&mut self, queries: &[(usize, &Step)], then: Then, rows: &mut Rows) -> Result<(), Failure> {
        let taken = self.block.take();
        if taken.is_none() {
            if !queries.iter().any(|(_, step)| step.bound.prepared.calls()) {
                return self.constants(queries, rows).map_err(Failure::from);
            }
            if then == Then::Commit {
                return self.committed(queries, rows).await;
            }
        }
        let is_kept = taken.is_some() || then == Then::Keep;
        let (mut transaction, explicit, programs) = taken.unwrap_or_else(|| (self.monitor.begin(), false, None));
        // One version of the programs for all of a transaction.
        let programs = programs.unwrap_or_else(|| self.monitor.programs().version());
        let executed = {
            let work = pin!(self.rows(queries, &mut transaction, rows, &programs));
            self.interruptible(work).await.unwrap_or_else(|why| Err(why.into()))
        };
        if executed.is_ok() && is_kept {
            self.await_durable(Some(transaction.read()));
            self.block.put_back(transaction, explicit, Some(programs));
            return Ok(());
        }
        let conflicts = transaction.conflicts();
        if conflicts {
            // What it concluded from reads of two times may be nonsense.
            rows.clear();
        }
        let is_conflict = conflicts && matches!(executed, Ok(()) | Err(Failure::Call(CallError::Program(_))));
        if explicit && self.block.has_savepoints() {
            // Its client may return to one of them.
            self.await_durable(Some(transaction.read()));
            self.block.put_back(transaction, explicit, Some(programs));
        } else if is_conflict {
            self.monitor.counters().conflict();
        } else {
            self.abort(transaction);
        }
        if is_conflict { Err(CallError::from(Conflict).into()) } else { executed }
    }

    /// A transaction ends without a commit. What was read by it is told from here on in the replies.
    fn abort(&mut self, transaction: Transaction) {
        self.monitor.counters().abort();
        self.await_durable(Some(transaction.abort()));
    }

    /// That of a block that has failed, and did not return to a savepoint.
    fn give_up(&self, transaction: &Transaction) {
        let counters = self.monitor.counters();
        if transaction.conflicts() { counters.conflict() } else { counters.abort() }
    }

    /// What is replied from here on waits for it.
    pub(super) fn await_durable(&mut self, commit: Option<Commit>) {
        let position = self.cycle.out.len();
        self.cycle.commits.extend(commit.map(|commit| (position, commit)));
    }

    /// Executes queries as one transaction, again and again until it does not conflict.
    async fn committed(&mut self, queries: &[(usize, &Step)], rows: &mut Rows) -> Result<(), Failure> {
        let evaluated = self.cycle.evaluated.so_far();
        let executed = {
            let work = pin!(self.monitor.transact(&self.cpu, async |transaction| {
                rows.clear();
                self.cycle.evaluated.set_back(evaluated);
                let programs = self.monitor.programs().version();
                self.rows(queries, transaction, rows, &programs).await
            }));
            self.interruptible(work).await
        };
        let (failure, read) = match executed {
            Ok(Ok(((), commit))) => {
                self.await_durable(Some(commit));
                return Ok(());
            }
            Ok(Err(Aborted { error, read })) => (error, read),
            Err(refusal) => {
                self.monitor.counters().abort();
                (refusal.into(), None)
            }
        };
        if read.is_none() {
            // What they say may be of two times, or not durable.
            rows.clear();
        }
        self.await_durable(read);
        Err(failure)
    }

    async fn rows(
        &self,
        queries: &[(usize, &Step)],
        transaction: &mut Transaction,
        rows: &mut Rows,
        programs: &Version,
    ) -> Result<(), Failure> {
        let mut made = Made { session: self, bytes: 0 };
        for (_, step) in queries {
            let Bound { prepared, values, .. } = &step.bound;
            let evaluated = &self.cycle.evaluated;
            let cells = prepared.cells(&self.cpu, &self.monitor, values, &self.facts, Some(programs), evaluated)?;
            let mut row = Vec::with_capacity(cells.len());
            for cell in cells {
                row.push(made.count(match cell {
                    Cell::Value(value) => value,
                    Cell::Call(function, tally, arguments) => {
                        self.monitor.initialize(&self.cpu, &function).await?;
                        let read_only = self.settings.is_read_only();
                        let result = function.execute(&self.cpu, &arguments, transaction, read_only).await;
                        tally.note(result.is_ok(), result.as_ref().is_ok_and(|(_, at_once)| *at_once));
                        result.map_err(CallError::from)?.0
                    }
                })?);
            }
            rows.push(row);
        }
        Ok(())
    }

    /// Rows without calls.
    fn constants(&self, queries: &[(usize, &Step)], rows: &mut Rows) -> Result<(), Refusal> {
        let mut made = Made { session: self, bytes: 0 };
        for (_, step) in queries {
            let (values, evaluated) = (&step.bound.values, &self.cycle.evaluated);
            let cells = step.bound.prepared.cells(&self.cpu, &self.monitor, values, &self.facts, None, evaluated)?;
            let value = |cell| made.count(if let Cell::Value(value) = cell { value } else { Value::Null });
            rows.push(cells.into_iter().map(value).collect::<Result<_, _>>()?);
        }
        Ok(())
    }

    /// `work`, unless the client cancels it or it takes too long. Then nobody goes on with it: the caller drops it. It is
    /// pinned by the caller, since it is large and would be copied.
    async fn interruptible<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> Result<T, Refusal> {
        self.registered.cancel.begin();
        let timeout = self.settings.statement_timeout();
        let mut cancelled = pin!(self.registered.cancel.requested());
        let mut late = pin!(async {
            match timeout {
                Some(timeout) => self.cpu.sleep(timeout).await,
                None => std::future::pending().await,
            }
        });
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            let why = if cancelled.as_mut().poll(cx).is_ready() {
                "canceling statement due to user request"
            } else if late.as_mut().poll(cx).is_ready() {
                "canceling statement due to statement timeout"
            } else {
                return Poll::Pending;
            };
            Poll::Ready(Err(Refusal::new(SqlState::QUERY_CANCELLED, why)))
        })
        .await
    }

    pub(super) fn refuse_after_failure(&self) -> Result<(), Refusal> {
        if matches!(&*self.block.state.borrow(), State::Failed(_)) {
            let message = "current transaction is aborted, commands ignored until end of transaction block";
            return Err(Refusal::new(SqlState::IN_FAILED_TRANSACTION, message));
        }
        self.refuse_after_expiry()
    }

    pub(super) fn refuse_after_expiry(&self) -> Result<(), Refusal> {
        if !matches!(&*self.block.state.borrow(), State::Expired { .. }) {
            return Ok(());
        }
        let message =
            "the transaction was idle for longer than idle_in_transaction_session_timeout, and was rolled back";
        Err(Refusal::new(SqlState::IDLE_IN_TRANSACTION_TIMEOUT, message))
    }

    async fn control(&mut self, control: Control<'_>) -> Result<(), Refusal> {
        match control {
            Control::Begin { read_only } => {
                self.refuse_after_failure()?;
                match self.block.take() {
                    Some((transaction, explicit, programs)) => {
                        self.block.put_back(transaction, true, programs);
                        if explicit {
                            self.warn(SqlState::ACTIVE_TRANSACTION, "there is already a transaction in progress");
                        }
                    }
                    None => self.block.put_back(self.monitor.begin(), true, None),
                }
                self.settings.begin_block(read_only);
                self.complete("BEGIN");
            }
            Control::ReadOnly(read_only) => {
                self.refuse_after_failure()?;
                if self.block.is_explicit() {
                    self.settings.begin_block(Some(read_only));
                } else {
                    let message = "SET TRANSACTION can only be used in transaction blocks";
                    self.warn(SqlState::NO_ACTIVE_TRANSACTION, message);
                }
                self.complete("SET");
            }
            Control::Commit => {
                self.refuse_after_expiry()?;
                self.commit_block().await?;
            }
            Control::Rollback => {
                let (is_explicit, has_failed) = (self.block.is_explicit(), self.block.has_failed());
                match self.block.end() {
                    Some(transaction) if has_failed => self.give_up(&transaction),
                    Some(transaction) => self.abort(transaction),
                    None if is_explicit => {}
                    None => self.warn(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress"),
                }
                self.settings.end_block(false, &mut self.cycle.out);
                self.complete("ROLLBACK");
            }
            Control::Savepoint(action, name) => self.savepoint(action, name)?,
        }
        Ok(())
    }

    async fn commit_block(&mut self) -> Result<(), Refusal> {
        let Some((transaction, explicit, _)) = self.block.take() else {
            // After a failure there is nothing to commit, and the client must see that.
            let has_failed = self.block.is_explicit();
            if !has_failed {
                self.warn(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress");
            }
            if let Some(transaction) = self.block.end() {
                self.give_up(&transaction);
            }
            self.settings.end_block(false, &mut self.cycle.out);
            self.complete(if has_failed { "ROLLBACK" } else { "COMMIT" });
            return Ok(());
        };
        self.block.set(State::None);
        let committed = self.commit(transaction).await;
        self.settings.end_block(committed.is_ok(), &mut self.cycle.out);
        committed?;
        if !explicit {
            self.warn(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress");
        }
        self.complete("COMMIT");
        Ok(())
    }

    async fn commit(&mut self, transaction: Transaction) -> Result<(), Refusal> {
        match transaction.commit(&self.cpu).await {
            Ok(commit) => {
                self.monitor.counters().commit();
                self.await_durable(Some(commit));
                Ok(())
            }
            Err(error) => {
                match &error {
                    CommitError::Conflict(_) => self.monitor.counters().conflict(),
                    CommitError::Store(_) => self.monitor.counters().abort(),
                }
                Err((&error).into())
            }
        }
    }

    /// At a Sync, a transaction that nobody began by BEGIN is over.
    async fn end_implicit(&mut self) {
        if self.block.is_explicit() {
            return;
        }
        let ended = match self.block.take() {
            Some((transaction, ..)) => {
                self.block.set(State::None);
                self.commit(transaction).await
            }
            // It may have expired since a Flush.
            None => self.refuse_after_failure().inspect_err(|_| self.block.set(State::None)),
        };
        if let Err(refusal) = ended {
            refusal.write(&mut self.cycle.out);
        }
    }
}
