//! The I/O path: processors and tasks, frames, buffer cache, request queues, devices, volumes.
//!
//! Services (crate `nbd`) see a [`Volume`] and a [`Processor`]; they never see a device or the machine's operations
//! on disks. Runs unchanged on every [`machine::Machine`].

pub mod cache;
pub mod connection;
pub mod counters;
pub mod device;
pub mod export;
pub mod frame;
mod housekeeping;
pub mod job;
mod kernel;
pub mod operation;
pub mod processor;
pub mod queue;
mod rendezvous;
pub mod request;
pub mod switches;
pub mod trace;
pub mod tree;
pub mod volume;
pub mod wait;

pub use frame::{FRAME_BYTES, FrameRef, Frames};
pub use kernel::{Kernel, KernelConfig};
pub use operation::Hold;
pub use processor::Processor;
pub use switches::{Reach, Switches};
pub use volume::{ForcedUnitAccess, Volume};
