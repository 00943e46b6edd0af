//! What Awase's tests share: servers under control, clients that know exactly what was acknowledged, ledgers to hold
//! against what a server leaves behind. Nothing here uses a crate of the product: it sees a server from outside.

pub mod conversation;
pub mod failing_disk;
pub mod group;
pub mod ledger;
pub mod mutate;
pub mod nbd;
pub mod nbd_load;
pub mod nfs;
pub mod nfs_load;
pub mod process;
pub mod progress;
pub mod random;
pub mod rounds;
pub mod scene;
pub mod server;
pub mod skip;
