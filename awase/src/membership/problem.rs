//! What stands in the way, for people.

use policy::membership::EpochError;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EtcdError {
    /// By none of the endpoints; the last one's reason.
    #[error("etcd cannot be reached at {endpoint}: {reason}")]
    Unreachable { endpoint: String, reason: String },
    #[error("etcd at {endpoint} refuses the request ({status}): {message}")]
    Refused { endpoint: String, status: u16, message: String },
    #[error(
        "{endpoint} belongs to another etcd cluster than the endpoint that answered first: name those of one cluster; if \
         etcd was set up anew, start all nodes anew"
    )]
    OtherCluster { endpoint: String },
    #[error("the answer of {endpoint} is not etcd's: {reason}")]
    Malformed { endpoint: String, reason: String },
}

/// Reported when it begins.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Epoch(#[from] EpochError),
    #[error("the key {key} in etcd is not understood ({reason}): Awase's prefix belongs to it alone")]
    Record { key: String, reason: String },
    #[error(
        "the cluster has {theirs} shards in etcd, and {ours} are configured here: the number must be the same on all nodes"
    )]
    Shards { theirs: usize, ours: u16 },
    #[error(
        "this node does not join yet: the shared disk {0}, and disks with shared_device must be the same at all members, each \
         of which stores a share of them"
    )]
    Disks(String),
    #[error(
        "this node does not join yet: the member {0:?} runs an earlier version of Awase, which does not understand this one"
    )]
    Earlier(String),
    #[error(
        "the node {0:?} is registered already: by its previous life, whose lease ends soon, or by another machine that has \
         its name"
    )]
    Occupied(String),
    #[error(
        "the cluster has had {0} nodes with different names, as many as it can number: delete the key below numbers/ of one \
         that will not return"
    )]
    NoNumber(usize),
}
