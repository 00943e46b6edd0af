//! The I/O path: processors and tasks, frames, buffer cache, request queues, devices, volumes, trees.
//!
//! Services (crates `nbd`, `nfs`) use volumes, trees and a [`Processor`], never a device or the machine's disk
//! operations. Runs unchanged on every [`machine::Machine`].

mod block_key;
mod block_set;
pub mod cache;
pub mod connection;
pub mod counters;
pub mod device;
pub mod export;
pub mod frame;
mod housekeeping;
pub mod job;
mod kernel;
mod memory;
mod observed;
pub mod operation;
pub mod processor;
pub mod queue;
pub mod rendezvous;
pub mod request;
mod served;
pub mod switches;
pub mod trace;
pub mod tree;
pub mod volume;
pub mod wait;

pub use frame::{FRAME_BYTES, FrameRef, Frames};
pub use kernel::{Kernel, KernelConfig};
pub use memory::Memory;
pub use observed::Observed;
pub use operation::Hold;
pub use processor::Processor;
pub use served::Served;
pub use switches::{Reach, Switches};
pub use volume::{ForcedUnitAccess, Volume};
