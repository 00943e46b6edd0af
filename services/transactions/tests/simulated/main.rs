//! Databases on the simulated machine.

mod full;
mod groups;
mod history;
mod monitor;
mod names;
mod opening;
mod search;
mod slow_checkpoint;
mod store;
