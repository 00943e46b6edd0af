//! The machines of the papers: processors, disks, networks and operating systems as models, in virtual time.
//!
//! A [`Simulation`] is one run. Processes and daemons are tasks: `async` functions that wait for virtual time and for
//! each other. All that they wait for is in [`wait`], or is a model in a file of its own. All randomness is drawn from
//! the run's seed, and tasks that become ready at the same moment run in that order: the same seed gives the same run,
//! on every host.
//!
//! This is separate from the simulated machine that runs the kernel: that one proves, this one measures other kernels
//! with the policies of this one.

pub mod buffers;
pub mod bus;
pub mod completion;
pub mod disk;
mod engine;
pub mod ethernet;
pub mod ffs;
pub mod host;
pub mod lock;
pub mod memory;
pub mod memory_board;
pub mod memory_cache;
pub mod nfs_client;
pub mod nfs_server;
pub mod processors;
pub mod raw_device;
pub mod token_ring;
pub mod wait;

pub use engine::{Handler, Signals, Simulation, Virtual, WaiterId};
