//! Databases on the simulated machine.

mod history;
mod opening;
mod store;
