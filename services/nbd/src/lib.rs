//! NBD: disks for the network.
//!
//! [`serve`] negotiates with one client and answers its requests until it goes or the [`Server`] is told to end. Source of the protocol: `doc/proto.md` of the NetworkBlockDevice project.

pub mod client;
mod command;
mod export;
mod negotiate;
pub mod proto;
mod refusal;
mod transmission;

pub use export::{Export, Limits, NAME_BYTES_MAX, REQUEST_BYTES_MAX, Server};
pub use transmission::serve;
