//! The Linux machines: one suite, run on both engines.

mod block;
mod control;
mod files;
mod forbidden;
mod parking;
mod rig;
mod sockets;
