//! What every measurement on this machine uses, beside other servers and alone: programs that are started, the load on
//! a server, and the spread of repetitions.

pub mod epoll;
pub mod link;
pub mod load;
pub mod mounted;
pub mod process;
pub mod spread;
