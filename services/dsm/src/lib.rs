//! Shared volumes: one volume on several nodes, coherent. See "Shared volumes" in ARCHITECTURE.md.
//!
//! [`Shared`] is one volume at one node: a device below a volume's cache that fetches pages from their homes and stores
//! them there, and the [`kernel::volume::Coherence`] beside it. Who may have a page is decided by
//! [`policy::coherence`], the state machine that the model checker explores. [`Dsm`] is the protocol between nodes.

mod admission;
mod alive;
mod arrived;
mod change;
mod core;
mod counters;
mod deaths;
mod dial;
mod durable;
mod ending;
mod ends;
mod failed;
mod flush;
mod flush_moving;
mod forward;
mod hello;
mod home;
mod in_order;
mod link;
mod mapping;
mod member;
mod pages;
mod run;
mod shared;
mod storage;
mod survey;
mod tick;
mod uncertain;
mod unflushed;
mod waiting;
mod watch;
mod wire;

pub use counters::{Counter, Counters, Gauges, Waits};
pub use link::{Connector, Dsm};
pub use mapping::{MAPPINGS_MAX, MappingNo, PAGES_MAX};
pub use member::{Joined, Lease};
pub use shared::{Report, SHARD_PAGES, Shared, SharedConfig, TIMEOUT};
