//! Load on servers of `NFSv3`: a client that keeps many requests in flight, and the servers, disks and links it is used
//! with.

mod awase;
pub mod command;
mod connection;
mod delay;
mod drive;
mod epoll;
mod files;
mod ganesha;
mod load;
mod plan;
mod raw;
mod rpc;
mod run;
mod server;
mod session;
mod slow_flush;
pub mod workload;
