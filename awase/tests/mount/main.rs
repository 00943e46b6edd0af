//! `awase mount` with the host's own programs and calls.

mod between;
mod command;
mod content;
mod ends;
mod errors;
mod fixture;
mod ganesha;
mod listing;
mod names;
mod user;
mod waits;
mod wire;
