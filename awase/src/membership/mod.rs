//! Membership of a cluster through etcd: this node's registration under a lease, the others', and the homes of shards.
//! What is decided is `policy::membership`; this is its arbiter's side, by etcd's JSON gateway (`/v3/…` over HTTP).
//!
//! Three threads of the front end, off the I/O path: `cluster` has the policy and calls the service, `cluster-ask` asks
//! etcd one question at a time, and `cluster-watch` follows the keys. None is waited for by a processor: what answers
//! other nodes looks at the [`Fence`].
//!
//! | key below `PREFIX/CLUSTER/` | value | lease |
//! |---|---|---|
//! | `members/NAME` | the node's number and address; created at its epoch | the node's |
//! | `numbers/NUMBER` | the name that has this number, for good | none |
//! | `map` | the home of each shard: number, epoch and term | none |
//! | `databases/NAME` | the node that has the database open: its name and epoch | none |
//!
//! Never the state of a page: etcd is asked some times in a lease, and when nodes come and go.
//!
//! # Assumed of etcd
//! Nobody else writes below the prefix, and no key is deleted by hand. A leader that is none any more renews no lease
//! (releases with the fix of etcd-io/etcd#15247 see to it; one etcd alone has no other leader). A change of the leader
//! gives every lease its whole time to live anew, which only prolongs it. A transaction that may write, asked for after another
//! answer, finds no earlier revision; what is only read may be old by mistake, and is asked for again. That etcd loses its
//! data, or is restored, is not excluded: `policy::membership`.

mod ask;
mod claim;
mod etcd;
mod fence;
mod gateway;
mod keys;
mod member;
mod problem;
mod settings;
mod watch;

pub use claim::{Claim, Claims};
pub use fence::{Fence, now};
pub use member::{Event, Member, Releases};
pub use problem::{EtcdError, Problem};
pub use settings::{Settings, SettingsError};
pub use watch::Peer;
