//! The client and a whole server on a simulated network that delays and drops, with crashes of either.

mod content;
mod listing;
mod made_up;
mod names;
mod others;
mod replaced;
mod scene;
