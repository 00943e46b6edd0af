//! Shared disks mapped into programs, at several servers on this host.

// As the examples know it.
extern crate shm as awase_shm;

mod cluster;
mod coherent;
mod examples;
mod failures;
mod hostile;
mod litmus;
mod program;
mod watched;
