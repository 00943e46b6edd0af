//! Databases on the simulated machine.

mod history;
mod store;
