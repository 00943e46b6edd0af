//! What Awase's tests share: servers under control, clients that know exactly what was acknowledged, ledgers to hold
//! against what a server leaves behind. Nothing here uses a crate of the product: it sees a server from outside.

pub mod ledger;
pub mod nbd;
pub mod nfs;
pub mod random;
pub mod server;
pub mod skip;
