//! Load on `NFSv3` servers: the workloads, and the servers, disks and links that are measured.

mod awase;
pub mod command;
mod delay;
mod ganesha;
mod raw;
mod run;
mod server;
mod slow_flush;
pub mod workload;
