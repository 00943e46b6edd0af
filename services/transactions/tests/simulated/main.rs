//! Databases on the simulated machine.

mod damage;
mod full;
mod groups;
mod history;
mod monitor;
mod names;
mod opening;
mod rows;
mod search;
mod slow_checkpoint;
mod store;
