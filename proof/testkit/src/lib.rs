//! Shared by Awase's tests: servers run as processes, clients that record exactly what was acknowledged, ledgers that check
//! what a server returns after a crash, and simulated hosts (`scene`). Only `scene` uses crates of the product.

pub mod contract;
pub mod conversation;
pub mod etcd;
pub mod failing_disk;
pub mod group;
pub mod history;
pub mod ledger;
pub mod litmus;
pub mod mutate;
pub mod nbd;
pub mod nbd_load;
pub mod nfs;
pub mod nfs_load;
pub mod port;
pub mod process;
pub mod progress;
pub mod random;
pub mod rounds;
pub mod scene;
pub mod serial;
pub mod server;
pub mod skip;
