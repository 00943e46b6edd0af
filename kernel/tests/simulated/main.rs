//! Guarantees of the kernel, on the simulated machine.

mod attributes;
mod counters;
mod crash;
mod durability;
mod extents;
mod forced_flush;
mod holes;
mod host_changes;
mod jobs;
mod memory;
mod open_files;
mod ordered;
mod overlay;
mod pace;
mod processors;
mod ram;
mod shared;
mod switches;
mod tree;
mod tree_durability;
mod trouble;
mod unasked;
mod volume;
mod write_batch;
