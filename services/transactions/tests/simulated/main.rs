//! Databases on the simulated machine.

mod history;
mod opening;
mod slow_checkpoint;
mod store;
