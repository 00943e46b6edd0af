//! Shared volumes on simulated nodes.

mod clients;
mod coherent;
mod failures;
mod forwarded;
mod mapped;
mod moving;
mod scene;
