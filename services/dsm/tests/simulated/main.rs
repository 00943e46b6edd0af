//! Shared volumes on simulated nodes.

mod acknowledged;
mod clients;
mod coherent;
mod contended;
mod ended;
mod failed_flush;
mod failures;
mod forwarded;
mod in_order;
mod leased;
mod litmus;
mod mapped;
mod marked;
mod members;
mod moving;
mod programs;
mod recalled;
mod runs;
mod scene;
mod stalled;
mod staying;
mod stored;
mod untold;
