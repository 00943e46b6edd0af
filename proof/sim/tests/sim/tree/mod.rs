//! Tests of the simulated directory tree.

mod contract;
mod durability;
mod files;
mod model;
mod names;
mod rig;
