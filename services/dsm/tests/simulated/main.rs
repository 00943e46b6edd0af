//! Shared volumes on simulated nodes.

mod clients;
mod coherent;
mod failures;
mod mapped;
mod moving;
mod scene;
