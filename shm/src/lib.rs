//! Shared volumes of Awase, mapped into a program: memory that programs on several machines share, coherent.
//!
//! ```no_run
//! use std::sync::atomic::Ordering;
//!
//! # fn main() -> Result<(), awase_shm::Error> {
//! let memory = awase_shm::Options::at("awase-data/shm").open("s")?;
//! let counter = memory.atomic_u64(0).expect("the volume is longer");
//! let number = counter.fetch_add(1, Ordering::SeqCst);
//! memory.flush()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it is
//! [`Options::open`] asks the node of this machine, through its Unix socket, for a shared volume, and maps all of it. A
//! page arrives from wherever it is when the program touches it; from then on a read or write of it is one of memory and
//! asks nobody, until another program or client wants the page. Many may read a page, or one may write it, whoever they
//! are: programs, on this machine and others, and clients of the volume over NBD. So all accesses to one page happen in one
//! order, and atomic operations with `SeqCst` on all pages do: what [`std::sync::atomic`] promises between threads holds
//! between machines. [`Mapping::fence`] is that of a processor. Data that programs on two machines use at once and that lie
//! in one page (4 KiB) make the page go to and fro.
//!
//! # What may be lost
//! What was written is durable once [`Mapping::flush`] has succeeded. What was not is lost when the node of this machine
//! ends without order; the program notices by [`Mapping::losses`]. What happens to its accesses then, it chooses
//! ([`OnServerLost`]): they wait for the server's return, or end in SIGBUS. It never reads zeroes instead of data. A page
//! that nobody has any more, or whose home does not answer, is SIGBUS, too; a later access tries anew.
//!
//! # What it cannot
//! * A child of `fork` does not have the mapping: it gets SIGSEGV.
//! * Pages that are pinned for direct transfers (`O_DIRECT`, registered buffers of io_uring, RDMA) bypass the protection:
//!   such a transfer into the mapping may be lost, and one from it may be of an older state.
//! * Where the host permits only faults of programs themselves ([`Mapping::serves_system_calls`] is false: no
//!   CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd` 0 and no access to /dev/userfaultfd), a system call that is given
//!   memory of the mapping that is not present fails with EFAULT: `read(2)` into it, for example. Touch it before, or copy.
//!
//! For programs in C there is `awase-shm.h`, with the same calls.

mod c;
mod error;
mod mapping;
mod memory;
mod server;
pub mod wire;

pub use error::Error;
pub use mapping::{Mapping, OnServerLost, Options};
pub use memory::Memory;
