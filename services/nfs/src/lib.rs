//! NFS version 3: directories for the network (RFC 1813), over ONC RPC on TCP (RFC 5531). NFS and MOUNT answer on one port.
//!
//! [`serve`] answers the calls of one client until it goes or the [`Server`] is told to end.

mod attributes;
mod call;
mod caller;
mod export;
mod handle;
mod hot;
mod mount;
mod procedure;
pub mod record;
mod recording;
mod replay;
mod rpc;
pub mod rpcbind;
mod server;
mod shape;
mod transmission;

pub use call::{ClientAddress, LocalPeer, TRANSFER_BYTES_MAX};
pub use export::{Export, ExportConfig, NOBODY, NotAdmitted, Squash, Squashed};
pub use handle::ExportId;
pub use ipnet::IpNet;
pub use replay::ReplayLimits;
pub use server::{Limits, Server};
pub use transmission::{serve, serve_local};

#[cfg(test)]
mod tests;
