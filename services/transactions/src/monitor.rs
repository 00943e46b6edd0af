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

/// Why a transaction changed nothing.
pub struct Aborted<E> {
    pub error: E,
    /// What was read of it must be durable before anything of it is told, the error included. `None`: the error may be told at
    /// once, and nothing else: what was read may be of two times, or never be durable.
    pub read: Option<Commit>,
}

pub struct Monitor {
    name: String,
    database: Arc<Database>,
    programs: Programs,
    counters: Arc<Counters>,
}

impl Monitor {
    pub fn new(name: String, database: Arc<Database>, programs: Programs) -> Arc<Self> {
        Monitor::counting(name, database, programs, Arc::default())
    }

    /// Of a database that was open before: counts on from there.
    pub fn counting(name: String, database: Arc<Database>, programs: Programs, counters: Arc<Counters>) -> Arc<Self> {
        database.count_in(&counters);
        Arc::new(Monitor { name, database, programs, counters })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub fn begin(&self) -> Transaction {
        self.database.begin()
    }

    /// Executes `work` as a transaction, until it does not conflict. What it returns may be told when it is durable.
    ///
    /// # Errors
    /// If `work` or the database's volume fails, or others were faster too often.
    pub async fn transact<T, E: From<CallError>>(
        &self,
        cpu: &Processor,
        mut work: impl AsyncFnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<(T, Commit), Aborted<E>> {
        for _ in 0..ATTEMPTS {
            let mut transaction = self.begin();
            match work(&mut transaction).await {
                // What it concluded from reads of two times may be nonsense.
                Err(_) if transaction.conflicts() => {}
                Err(error) => {
                    self.counters.abort();
                    return Err(Aborted { error, read: Some(transaction.abort()) });
                }
                Ok(value) => match transaction.commit(cpu).await {
                    Ok(commit) => {
                        self.counters.commit();
                        return Ok((value, commit));
                    }
                    Err(CommitError::Store(error)) => {
                        self.counters.abort();
                        return Err(Aborted { error: CallError::from(error).into(), read: None });
                    }
                    Err(CommitError::Conflict(_)) => {}
                },
            }
            self.counters.conflict();
            cpu.yield_now().await;
        }
        Err(Aborted { error: CallError::from(Conflict).into(), read: None })
    }

    /// Executes one call as a transaction. When this returns, it is durable, and so is what an error says.
    ///
    /// # Errors
    /// As [`Monitor::transact`].
    pub async fn call(&self, cpu: &Processor, function: &Function, arguments: &[Value]) -> Result<Value, CallError> {
        self.initialize(cpu, function).await?;
        let call = async |transaction: &mut Transaction| Ok(function.call(cpu, arguments, transaction).await?);
        self.transact_durably(cpu, call).await
    }

    /// Has the `init` of the function's program executed, if that was not done in this database.
    ///
    /// # Errors
    /// As [`Monitor::transact`].
    pub async fn initialize(&self, cpu: &Processor, function: &Function) -> Result<(), CallError> {
        let program = function.program();
        if !program.is_initialized() {
            // A transaction of its own, so that it is known to be durable and not asked for again.
            let initialize = async |transaction: &mut Transaction| Ok(program.initialize(cpu, transaction).await?);
            self.transact_durably(cpu, initialize).await?;
            program.set_initialized();
        }
        Ok(())
    }

    async fn transact_durably<T>(
        &self,
        cpu: &Processor,
        work: impl AsyncFnMut(&mut Transaction) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        match self.transact(cpu, work).await {
            Ok((value, commit)) => Ok(commit.durable(cpu).await.map(|()| value)?),
            Err(Aborted { error, read }) => {
                if let Some(read) = read {
                    read.durable(cpu).await?;
                }
                Err(error)
            }
        }
    }
}
