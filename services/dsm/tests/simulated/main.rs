//! Shared volumes on simulated nodes.

mod clients;
mod coherent;
mod failures;
mod moving;
mod scene;
