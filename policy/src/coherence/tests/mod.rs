//! What the protocol promises, proved: every state that a few nodes can reach, and many nodes at random.

mod encode;
mod explore;
mod mutants;
mod past;
mod random;
mod world;
