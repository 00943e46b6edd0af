//! Programs: WebAssembly modules whose functions read and write tables.

use std::sync::Arc;

use kernel::Processor;
use thiserror::Error;

use crate::store::{StoreError, Transaction};
use crate::{Signature, Value};

/// Why a function did not return. Its transaction changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// The program wants it so.
    #[error("{0}")]
    Abort(String),
    #[error("the program failed: {0}")]
    Trap(String),
    #[error("the program took longer than it may")]
    Timeout,
    #[error("the program asked for more memory than {0} bytes")]
    Memory(usize),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The functions of all programs that are installed.
#[derive(Default)]
pub struct Programs {}

/// One version of a function. Calls that are under way keep theirs when another is installed.
pub struct Function {
    signature: Signature,
}

impl Programs {
    pub fn find(&self, _name: &str) -> Option<Arc<Function>> {
        None
    }

    /// In the order of names.
    pub fn functions(&self) -> Vec<Arc<Function>> {
        Vec::new()
    }
}

impl Function {
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Executes it. `arguments`: as many as the signature has, each NULL or of its type.
    ///
    /// # Errors
    /// If the program aborts or misbehaves, or the database fails.
    pub async fn call(
        &self,
        _cpu: &Processor,
        _arguments: &[Value],
        _transaction: &mut Transaction,
    ) -> Result<Value, ProgramError> {
        Err(ProgramError::Timeout)
    }
}
