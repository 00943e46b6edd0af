//! Databases on the simulated machine.

mod damage;
mod full;
mod groups;
mod history;
mod monitor;
mod names;
mod opening;
mod search;
mod slow_checkpoint;
mod store;
