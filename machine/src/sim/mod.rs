//! The simulated machine: virtual time, one seed, one thread.
//!
//! A [`World`] holds hosts, their disks and the network between them. [`World::machine`] gives the seam's view of it
//! for one processor of one host; code above the seam runs on it unchanged. Time passes only in [`World::step`], which
//! says which processor has something to do: the driver (a test or the lab) then gives that processor its turn.
//!
//! The same seed and the same calls give the same order of events: nothing here iterates a hash map, looks at an
//! address to decide, or reads a clock. [`World::fingerprint`] is there to check it.
//!
//! # What a simulated disk assumes of media, and how it breaks it
//!
//! | | assumption | broken by |
//! |---|---|---|
//! | M1 | a sector is written whole or not at all | [`DiskFaults::sector_tear_permille`] |
//! | M2 | what was complete when a successful flush started survives a power cut | [`DiskFaults::flush_lie_permille`] |
//! | M3 | a completed stable write (forced unit access) survives a power cut | [`DiskFaults::stable_lie_permille`] |
//! | M4 | a read that succeeds returns what was written last | [`DiskFaults::read_flip_permille`] |
//! | M5 | reads, writes and flushes succeed | `*_error_permille`, [`World::fail_next`], [`World::fail_range`] |
//! | M6 | a write that succeeds is written in full | [`DiskFaults::short_write_permille`] |
//! | M7 | a failed flush leaves what it covered in the cache | [`DiskFaults::failed_flush_drops`] |
//! | M8 | a failed write leaves the old content | [`DiskFaults::failed_write_tears`] |
//!
//! No assumption, since no disk promises it, and always simulated: writes between two flushes reach the medium in any
//! order or not at all; a write of several sectors may be torn between sectors; of several writes to one sector since
//! it was last durable, any may be what survives; a write in flight may or may not have landed.

mod change;
mod config;
mod content;
mod disk;
mod endpoint;
mod faults;
mod lifecycle;
mod network;
mod operation;
mod processor;
mod random;
mod storage;
mod transfer;
mod world;

pub use config::{DiskConfig, Latency, NetworkConfig};
pub use disk::DiskCounters;
pub use faults::{DiskFaults, OpClass};
pub use world::{DiskId, HostId, Step, World};
