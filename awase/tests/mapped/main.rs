//! Shared disks mapped into programs, at several servers on this host.

mod cluster;
mod coherent;
mod failures;
mod hostile;
mod litmus;
mod program;
mod watched;
