//! The transaction monitor: one database, and the programs that work on it.

use std::sync::Arc;

use kernel::Processor;
use thiserror::Error;

use crate::Value;
use crate::program::{Function, ProgramError, Programs};
use crate::store::{CommitError, Conflict, Database, StoreError, Transaction};

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
}

impl Monitor {
    pub fn new(name: String, database: Arc<Database>, programs: Programs) -> Arc<Self> {
        Arc::new(Monitor { name, database, programs })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    pub fn begin(&self) -> Transaction {
        self.database.begin()
    }

    /// Executes one call as a transaction, until it does not conflict. When this returns, it is durable.
    ///
    /// # Errors
    /// If the program, or the database's volume, fails, or others were faster too often.
    pub async fn call(&self, cpu: &Processor, function: &Function, arguments: &[Value]) -> Result<Value, CallError> {
        let program = function.program();
        if !program.is_initialized() {
            // A transaction of its own, so that it is known to be durable and not asked for again.
            self.execute(cpu, async |transaction| program.initialize(cpu, transaction).await).await?;
            program.set_initialized();
        }
        self.execute(cpu, async |transaction| function.call(cpu, arguments, transaction).await).await
    }

    /// Executes `body` as a transaction.
    async fn execute<T>(
        &self,
        cpu: &Processor,
        mut body: impl AsyncFnMut(&mut Transaction) -> Result<T, ProgramError>,
    ) -> Result<T, CallError> {
        for _ in 0..ATTEMPTS {
            let mut transaction = self.begin();
            match body(&mut transaction).await {
                Err(error) if !transaction.conflicts() => {
                    transaction.abort().durable(cpu).await?;
                    return Err(error.into());
                }
                Err(_) => {}
                Ok(value) => match transaction.commit(cpu).await {
                    Ok(commit) => return Ok(commit.durable(cpu).await.map(|()| value)?),
                    Err(CommitError::Store(error)) => return Err(error.into()),
                    Err(CommitError::Conflict(_)) => {}
                },
            }
            cpu.yield_now().await;
        }
        Err(Conflict.into())
    }
}
