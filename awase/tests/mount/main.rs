//! `awase mount` with the host's own programs and calls.

mod command;
mod content;
mod ends;
mod fixture;
mod ganesha;
mod names;
