//! NBD, after `doc/proto.md` of the NetworkBlockDevice project. [`Nbd`] is the protocol.

mod command;
mod export;
mod negotiate;
pub mod proto;
mod protocol;
mod refusal;
mod transmission;

pub use export::{Export, NAME_BYTES_MAX, Nbd, REQUEST_BYTES_MAX};
