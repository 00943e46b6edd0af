//! Shared volumes on simulated nodes.

mod coherent;
mod failures;
mod scene;
