//! Programs: WebAssembly modules whose functions read and write tables.
//!
//! A program is a function of its arguments and of what it reads: it has no clock, no randomness, no files and no
//! network, only the calls of [`host`]. Each call has an instance to itself, which begins as the module says.

mod at_once;
mod attempts;
mod call;
mod callee;
mod complexity;
mod describe;
mod direct;
mod engine;
mod function;
mod guest;
mod host;
mod installed;
mod instance;
mod module;
mod requests;
mod state;

use thiserror::Error;

use crate::store::StoreError;

pub use call::FUEL;
pub use describe::{ARGUMENTS_MAX, DescriptionError, NAME_BYTES_MAX, SECTION};
pub use engine::MEMORY_BYTES_MAX;
pub use function::Function;
pub use host::REPLY_BYTES_MAX;
pub use installed::{Fault, FaultError, Programs, Version, check, install, replace};
pub use module::{INIT, MODULE_BYTES_MAX, ModuleError, Program};

/// The program of the database that a server has without configuration: accounts with `balance`, `deposit`, `transfer`
/// and `total`. Its source is `program/examples/bank.rs`.
pub const BANK: &[u8] = include_bytes!("../../../../program/bank.wasm");

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
    #[error("the program asked for more tables than {0}")]
    Tables(usize),
    #[error("the program writes, and the transaction is read-only")]
    ReadOnly,
    #[error(transparent)]
    Store(#[from] StoreError),
}
