//! The procedures, called without a wire, on a simulated machine.

mod access;
mod content;
mod directories;
mod mounts;
mod names;
mod repeats;
mod scene;
