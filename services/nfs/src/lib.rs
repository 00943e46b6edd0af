//! NFS version 3 (RFC 1813), over ONC RPC on TCP (RFC 5531). NFS and MOUNT answer on one port. [`Nfs`] is the protocol.

mod attributes;
mod call;
mod caller;
mod client;
mod export;
mod grants;
mod handle;
mod hot;
mod mount_list;
mod nfs;
mod procedure;
mod program;
mod protocol;
mod record;
mod recording;
mod replay;
mod rpc;
pub mod rpcbind;
mod shape;
mod transmission;

pub use client::ClientAddress;
pub use export::{Export, ExportConfig, NOBODY, Names, NotAdmitted, Squash, Squashed};
pub use handle::ExportId;
pub use ipnet::IpNet;
pub use nfs::{Limits, Nfs};
pub use program::TRANSFER_BYTES_MAX;
pub use record::{Decoded, decode};
pub use replay::ReplayLimits;

#[cfg(test)]
mod tests;
