//! Tests of the simulated directory tree.

mod durability;
mod files;
mod model;
mod names;
mod permissions;
mod rig;
