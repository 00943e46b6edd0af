//! The transaction monitor: one database, and the programs that work on it.

use std::sync::Arc;

use kernel::Processor;
use thiserror::Error;

use crate::Value;
use crate::counters::Counters;
use crate::program::{Function, ProgramError, Programs};
use crate::store::{Commit, CommitError, Conflict, Database, StoreError, Transaction};

/// A call that conflicts is executed again, this often at most.
const ATTEMPTS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub struct Monitor {
    name: String,
    database: Arc<Database>,
    programs: Programs,
    counters: Counters,
}

impl Monitor {
    pub fn new(name: String, database: Arc<Database>, programs: Programs) -> Arc<Self> {
        Arc::new(Monitor { name, database, programs, counters: Counters::default() })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn begin(&self) -> Transaction {
        self.database.begin()
    }

    /// Executes `work` as a transaction, until it does not conflict. It is to be awaited that the result is durable.
    ///
    /// # Errors
    /// If `work` or the database's volume fails, or others were faster too often.
    pub async fn transact<T, E: From<CallError>>(
        &self,
        cpu: &Processor,
        mut work: impl AsyncFnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<(T, Commit), E> {
        for _ in 0..ATTEMPTS {
            let mut transaction = self.begin();
            match work(&mut transaction).await {
                // What it concluded from reads of two times may be nonsense.
                Err(_) if transaction.conflicts() => {}
                Err(error) => {
                    self.counters.abort();
                    return Err(error);
                }
                Ok(value) => match transaction.commit(cpu) {
                    Ok(commit) => {
                        self.counters.commit();
                        return Ok((value, commit));
                    }
                    Err(CommitError::Store(error)) => {
                        self.counters.abort();
                        return Err(CallError::from(error).into());
                    }
                    Err(CommitError::Conflict(_)) => {}
                },
            }
            self.counters.conflict();
            cpu.yield_now().await;
        }
        Err(CallError::from(Conflict).into())
    }

    /// Executes one call as a transaction. When this returns, it is durable.
    ///
    /// # Errors
    /// As [`Monitor::transact`].
    pub async fn call(&self, cpu: &Processor, function: &Function, arguments: &[Value]) -> Result<Value, CallError> {
        let call = async |transaction: &mut Transaction| Ok(function.call(cpu, arguments, transaction).await?);
        let (value, commit) = self.transact::<_, CallError>(cpu, call).await?;
        commit.durable(cpu).await?;
        Ok(value)
    }
}
