//! Which node has a database open: the one whose claim is in etcd, for as long as it is a member.
//!
//! A claim has no lease of its own: it is replaced, by compare and swap, when the node that it names is no member any more
//! in the epoch that it names. That one then answers nothing, as with homes (`policy::membership`).

use std::sync::Arc;

use policy::membership::{Incarnation, Revision};
use serde_json::{Value, json};

use super::etcd::{Etcd, KeyValue};
use super::gateway::Gateway;
use super::keys::Keys;
use super::problem::Problem;
use super::settings::Settings;

/// Who has a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    Own,
    /// The node of this name.
    Other(String),
}

/// Claims of one node.
pub struct Claims {
    etcd: Etcd,
    keys: Keys,
    node: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    node: String,
    epoch: Incarnation,
}

impl Claims {
    pub fn new(settings: &Settings) -> Claims {
        let gateway = Gateway::new(&settings.etcd, &Arc::default(), settings.lease / 4);
        Claims { etcd: Etcd(gateway), keys: Keys::new(settings), node: settings.node.clone() }
    }

    /// Claims the database for this node, which is a member in this epoch.
    ///
    /// # Errors
    /// If etcd does not answer: then nobody knows whose it is.
    pub fn claim(&mut self, database: &str, epoch: Incarnation) -> Result<Claim, Problem> {
        let key = self.keys.database(database);
        let own = Holder { node: self.node.clone(), epoch };
        loop {
            // As of one revision.
            let (_, found) = self.etcd.range(self.keys.root())?;
            let claim = found.iter().find(|value| value.key == key);
            if let Some(claim) = claim {
                let holder = Holder::decode(&claim.value)
                    .ok_or_else(|| Problem::Record { key: key.clone(), reason: "it names no node".into() })?;
                if holder == own {
                    return Ok(Claim::Own);
                }
                if self.is_member(&found, &holder)? {
                    return Ok(Claim::Other(holder.node));
                }
            }
            let version = claim.map_or(Revision(0), |claim| claim.modified);
            // Whoever was faster is found in the next pass.
            self.etcd.replace(&key, version, &own.encode(), None)?;
        }
    }

    /// Gives back a claim of this node in this epoch, if it has it.
    ///
    /// # Errors
    /// If etcd does not answer: then it may still have it.
    pub fn release(&mut self, database: &str, epoch: Incarnation) -> Result<(), Problem> {
        let own = Holder { node: self.node.clone(), epoch };
        Ok(self.etcd.remove(&self.keys.database(database), &own.encode())?)
    }

    fn is_member(&self, found: &[KeyValue], holder: &Holder) -> Result<bool, Problem> {
        let key = self.keys.member(&holder.node);
        let member = found.iter().find(|value| value.key == key);
        let epoch = member.map(|member| member.created.epoch()).transpose()?;
        Ok(epoch == Some(holder.epoch))
    }
}

impl Holder {
    fn encode(&self) -> String {
        json!({ "node": self.node, "epoch": self.epoch.0 }).to_string()
    }

    fn decode(text: &[u8]) -> Option<Holder> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let epoch = u32::try_from(value["epoch"].as_u64()?).ok().map(Incarnation)?;
        Some(Holder { node: value["node"].as_str()?.to_owned(), epoch })
    }
}
