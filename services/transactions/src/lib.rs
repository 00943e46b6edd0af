//! Durable transactions of small programs, next to their data (OLTP).
//!
//! A database is a volume. [`store`] keeps its tables there and makes transactions serializable and durable; [`program`]
//! runs the programs that read and write them; [`terminal`] is the protocol by which they are called, PostgreSQL's. What
//! joins the three is the [`Monitor`].

pub mod counters;
mod monitor;
pub mod program;
pub mod store;
pub mod terminal;
mod value;

pub use monitor::{Aborted, CallError, Monitor};
pub use value::{Argument, Signature, Type, Value};
