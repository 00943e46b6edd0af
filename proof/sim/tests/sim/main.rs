//! Tests of the simulated machine.

mod disk;
mod durability;
mod faults;
mod network;
mod processor;
mod rig;
mod tree;
