//! Guarantees of NFS, on the simulated machine.

mod crash;
mod crowd;
mod load;
mod repeats;
mod stage;
