//! Databases on the simulated machine.

mod history;
mod monitor;
mod opening;
mod slow_checkpoint;
mod store;
