//! Programs, executed on a simulated host: what they may do, and what happens to those that do something else.

mod at_once;
mod installing;
mod misbehaviour;
mod reused;
mod scene;
mod shipped;
mod values;
