//! The laboratory: runs the [papers]' experiments, simulated and on this machine, and measures Awase beside others.

pub mod bench;
pub mod cli;
pub mod command;
pub mod limit;
pub mod local;
mod measure;

pub use local::{Effort, Host, LocalCell, LocalError, LocalExperiment, LocalRun, Measured};
