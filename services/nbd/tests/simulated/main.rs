//! Guarantees of NBD, on the simulated machine.

mod bounds;
mod client;
mod crash;
mod fuzz;
mod hostile;
mod hottest;
mod jobs;
mod negotiation;
mod requests;
mod scene;
mod transmission;
