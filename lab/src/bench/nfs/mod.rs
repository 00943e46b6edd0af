//! Load on `NFSv3` servers: the workloads, and the servers, disks and links that are measured.

mod command;
mod guest;
mod libnfs;
mod names;
mod run;
mod workload;

pub use command::Nfs;
pub use libnfs::Libnfs;
#[cfg(test)]
pub use workload::workloads;
