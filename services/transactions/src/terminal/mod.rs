//! Terminals: clients that speak PostgreSQL's protocol (its documentation, "Frontend/Backend Protocol", version 3.0).
//!
//! A [`session`] is begun by [`startup`]; what its client sends is decoded by [`message`] and done by [`conversation`], which
//! collects it in a [`cycle`] until the client wants answers, then has [`execution`] execute it and [`answer`] write the
//! replies; they leave in order ([`replies`]), each when it is durable.

mod answer;
mod block;
mod budget;
mod cancel;
mod conversation;
mod cycle;
mod evaluated;
mod execution;
mod exits;
mod frequent;
mod hottest;
mod message;
mod prepared;
mod protocol;
mod refusal;
mod replies;
mod reply;
mod savepoints;
mod scram;
mod session;
mod settings;
mod shape;
mod sql;
mod startup;
mod terminals;
mod types;
mod wire;

pub use scram::client::{Login, LoginError};
pub use scram::{MECHANISM, Verifier};
pub use terminals::{Terminals, User};

#[cfg(test)]
mod tests;
