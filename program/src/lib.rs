//! Programs for Awase's transactions: WebAssembly modules whose functions clients call with SQL, over typed tables.
//!
//! ```
//! use awase_program::{Table, abort, functions};
//!
//! static STOCK: Table<String, i64> = Table::new("stock");
//!
//! functions! {
//!     fn order(article: String, pieces: i64) -> i64 {
//!         let left = STOCK.get(&article).unwrap_or(0) - pieces;
//!         if left < 0 {
//!             abort!("there are not {pieces} of {article}");
//!         }
//!         STOCK.put(&article, &left);
//!         left
//!     }
//! }
//! # STOCK.put(&"pear".to_string(), &5);
//! # assert_eq!(order("pear".to_string(), 2), 3);
//! ```
//!
//! Each call is a transaction: durable and isolated from all others as a whole, or, after [`abort!`], nothing. If others
//! change meanwhile what it has read, it is executed again; so it must do nothing but read and write tables, and there is
//! nothing else that it could do. Every call begins with a new memory: what a `static` is set to is gone with the call.
//!
//! A program is a library of the type `cdylib` for the target `wasm32-unknown-unknown`. Compiled for another target, as
//! in tests, the same tables are in memory, for each thread its own, so that functions can be tested as any others. Keys and
//! rows that are too long fail there, too; the limits of calls and transactions are the database's alone.

#![no_std]

extern crate alloc;
#[cfg(any(feature = "std", not(target_arch = "wasm32")))]
extern crate std;

#[macro_use]
mod codec;
mod function;
mod index;
mod key;
mod row;
mod runtime;
mod sys;
mod table;

pub use codec::Bytes;
pub use index::Index;
pub use key::{Key, Prefix};
pub use row::Row;
pub use table::{Range, Table};

/// For the macros.
#[doc(hidden)]
pub mod internal {
    pub use crate::function::{Argument, Return, join, length};
    pub use crate::row::decode_field;
    pub use crate::runtime::begin;
    pub use alloc::format;
    pub use alloc::vec::Vec;
}

/// Ends the call with a message for the client; nothing is changed.
///
/// ```should_panic
/// awase_program::abort("the account does not exist");
/// ```
pub fn abort(message: &str) -> ! {
    sys::abort(message)
}

/// [`abort`], with a message as of [`format!`](alloc::format).
#[macro_export]
macro_rules! abort {
    ($($message:tt)*) => {
        $crate::abort(&$crate::internal::format!($($message)*))
    };
}
