//! The procedures, called without a wire, on a simulated machine.

#[path = "../../../../kernel/tests/harness/mod.rs"]
mod kernel_harness;

mod access;
mod content;
mod directories;
mod mounts;
mod names;
mod repeats;
mod scene;
