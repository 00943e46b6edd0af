//! The protocol's guarantees: every state that a few nodes can reach, and many nodes at random.

mod closed;
mod encode;
mod explore;
mod leased;
mod moving;
mod mutants;
mod random;
mod reconnected;
mod runs;
mod size;
mod stale;
mod void;
mod world;
