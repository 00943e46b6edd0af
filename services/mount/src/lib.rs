//! A client of NFSv3 (RFC 1813), the other half of WS-5: it keeps several requests on the wire.
//!
//! A file on a server is a device of the kernel's shape (`device.rs`), so its blocks are cached, read ahead and written
//! back by the same policies as a disk's. Below is the wire (`rpc/`, `client/`), above what a host asks of a mounted tree
//! (`files/`), by which a front end serves it.

mod ahead;
mod attributes;
mod client;
mod content;
mod device;
mod errors;
mod files;
mod handle;
mod known;
mod mounting;
mod node;
mod notice;
mod results;
mod rpc;

pub use attributes::{Attributes, Kind, Time};
pub use client::{Limits, Server, Space};
pub use content::Data;
pub use device::Transfers;
pub use files::{
    Creation, Files, Flushed, Found, Host, Listed, LookupCache, New, NewTime, Opened, Opening, OpeningId, Options,
    Sink, Special, StreamId, Unstored, Waiting, Wanted, WriteAhead,
};
pub use handle::Handle;
pub use known::Bounds;
pub use mounting::{Export, MountError, Ports, mount};
pub use node::NodeId;
pub use notice::Notice;
pub use rpc::{Caller, Connector, Failure, Port, Timeouts};
