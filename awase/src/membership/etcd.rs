//! The few operations of etcd that membership needs (etcd's API version 3, as JSON).

use std::time::Duration;

use policy::membership::Revision;
use policy::unit::Instant;
use serde_json::{Value, json};

use super::gateway::{Answer, Gateway, Lines};
use super::keys::{decoded, encoded, end_of};
use super::problem::EtcdError;

/// A number of 64 bits, which JSON here has as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseId(String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyValue {
    pub key: String,
    pub value: Vec<u8>,
    pub created: Revision,
    pub modified: Revision,
    pub lease: Option<LeaseId>,
}

/// What became of a lease.
pub(super) enum Leased {
    /// `at`: a revision that etcd had reached before.
    For {
        sent: Instant,
        ttl: Duration,
        at: Revision,
    },
    Lost,
}

pub(super) enum Created {
    At(Revision),
    /// It exists.
    Exists(KeyValue),
    /// There is no such lease.
    LeaseLost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put(KeyValue),
    Deleted { key: String, at: Revision },
}

impl Change {
    pub fn at(&self) -> Revision {
        match self {
            Change::Put(found) => found.modified,
            Change::Deleted { at, .. } => *at,
        }
    }
}

pub(super) enum Watched {
    Changes(Vec<Change>),
    /// The stream is over: by silence, an end, or since the revision was compacted away.
    Over,
}

pub(super) struct Etcd(pub Gateway);

impl Etcd {
    pub fn grant(&mut self, ttl: Duration) -> Result<(LeaseId, Instant, Duration), EtcdError> {
        let Answer { sent, body } = self.0.ask("/v3/lease/grant", &json!({ "TTL": ttl.as_secs() }))?;
        let (Some(id), Some(ttl)) = (body["ID"].as_str(), number(&body["TTL"])) else { return Err(odd("a lease")) };
        Ok((LeaseId(id.to_owned()), sent, Duration::from_secs(ttl)))
    }

    pub fn renew(&mut self, lease: &LeaseId) -> Result<Leased, EtcdError> {
        let Answer { sent, body } = self.0.ask("/v3/lease/keepalive", &json!({ "ID": lease.0 }))?;
        let result = &body["result"];
        if result["ID"].as_str() != Some(&lease.0) {
            return Err(odd("a renewal"));
        }
        // Without a time to live: there is no such lease.
        let ttl = number(&result["TTL"]).filter(|ttl| *ttl > 0);
        let at = revision(result).unwrap_or_default();
        Ok(ttl.map_or(Leased::Lost, |ttl| Leased::For { sent, ttl: Duration::from_secs(ttl), at }))
    }

    /// The revision that etcd has reached, by its log. What is only read may be old by mistake: a member that was paused, or
    /// has just lost its leader (etcd-io/etcd#20418, #21375).
    pub fn reached(&mut self, key: &str) -> Result<Revision, EtcdError> {
        let key = encoded(key);
        let never = json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": "-1" });
        let put = json!({ "request_put": { "key": key, "value": "" } });
        revision(&self.0.ask("/v3/kv/txn", &json!({ "compare": [never], "success": [put] }))?.body)
    }

    pub fn revoke(&mut self, lease: &LeaseId) -> Result<(), EtcdError> {
        match self.0.ask("/v3/lease/revoke", &json!({ "ID": lease.0 })) {
            Ok(_) | Err(EtcdError::Refused { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates a key unless it exists.
    pub fn create(&mut self, key: &str, value: &str, lease: Option<&LeaseId>) -> Result<Created, EtcdError> {
        let key = encoded(key);
        let mut put = json!({ "key": key, "value": encoded(value) });
        if let Some(lease) = lease {
            put["lease"] = json!(lease.0);
        }
        let absent = json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" });
        let question = json!({
            "compare": [absent],
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": { "key": key } }],
        });
        let body = match self.0.ask("/v3/kv/txn", &question) {
            Ok(Answer { body, .. }) => body,
            Err(EtcdError::Refused { status: 404, .. }) if lease.is_some() => return Ok(Created::LeaseLost),
            Err(error) => return Err(error),
        };
        if body["succeeded"] == true {
            return Ok(Created::At(revision(&body)?));
        }
        let existing = key_value(&body["responses"][0]["response_range"]["kvs"][0]);
        existing.map(Created::Exists).ok_or_else(|| odd("a key that exists"))
    }

    /// Replaces a key's value if it was last modified at `version` (0: it does not exist) and the other key is there, created
    /// at its revision.
    pub fn replace(
        &mut self,
        key: &str,
        version: Revision,
        value: &str,
        by: Option<(&str, Revision)>,
    ) -> Result<(), EtcdError> {
        let key = encoded(key);
        let same = json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": version.0.to_string() });
        let put = json!({ "request_put": { "key": key, "value": encoded(value) } });
        let by = by.map(|(key, at)| {
            json!({ "key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": at.0.to_string() })
        });
        let compare: Vec<Value> = std::iter::once(same).chain(by).collect();
        self.0.ask("/v3/kv/txn", &json!({ "compare": compare, "success": [put] })).map(drop)
    }

    /// Deletes a key if it has this value.
    pub fn remove(&mut self, key: &str, value: &str) -> Result<(), EtcdError> {
        let key = encoded(key);
        let same = json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": encoded(value) });
        let delete = json!({ "request_delete_range": { "key": key } });
        self.0.ask("/v3/kv/txn", &json!({ "compare": [same], "success": [delete] })).map(drop)
    }

    /// All keys that begin with `prefix`, and the revision at which they were so.
    pub fn range(&mut self, prefix: &str) -> Result<(Revision, Vec<KeyValue>), EtcdError> {
        let question = json!({ "key": encoded(prefix), "range_end": encoded(&end_of(prefix)) });
        let body = self.0.ask("/v3/kv/range", &question)?.body;
        let found = body["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = found.iter().map(key_value).collect::<Option<_>>().ok_or_else(|| odd("a key"))?;
        Ok((revision(&body)?, found))
    }

    /// Changes of keys that begin with `prefix`, from a revision on.
    pub fn watch(&mut self, prefix: &str, from: Revision) -> Result<Watch, EtcdError> {
        let range = json!({
            "key": encoded(prefix),
            "range_end": encoded(&end_of(prefix)),
            "start_revision": from.0.to_string(),
        });
        Ok(Watch(self.0.stream("/v3/watch", &json!({ "create_request": range }))?))
    }
}

pub(super) struct Watch(Lines);

impl Watch {
    pub fn next(&mut self) -> Result<Watched, EtcdError> {
        let Some(body) = self.0.next()? else { return Ok(Watched::Over) };
        let result = &body["result"];
        if result["canceled"] == true {
            return Ok(Watched::Over);
        }
        let events = result["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Watched::Changes(events.iter().map(change).collect::<Option<_>>().ok_or_else(|| odd("an event"))?))
    }
}

fn change(event: &Value) -> Option<Change> {
    if event["type"] != "DELETE" {
        return key_value(&event["kv"]).map(Change::Put);
    }
    let key = String::from_utf8(decoded(&event["kv"]["key"])?).ok()?;
    Some(Change::Deleted { key, at: Revision(number(&event["kv"]["mod_revision"])?) })
}

fn key_value(value: &Value) -> Option<KeyValue> {
    Some(KeyValue {
        key: String::from_utf8(decoded(value.get("key")?)?).ok()?,
        value: decoded(&value["value"])?,
        created: Revision(number(&value["create_revision"])?),
        modified: Revision(number(&value["mod_revision"])?),
        lease: value["lease"].as_str().map(|id| LeaseId(id.to_owned())),
    })
}

fn revision(body: &Value) -> Result<Revision, EtcdError> {
    number(&body["header"]["revision"]).map(Revision).ok_or_else(|| odd("a revision"))
}

/// 64-bit integers are text.
fn number(value: &Value) -> Option<u64> {
    value.as_str().map_or_else(|| value.as_u64(), |text| text.parse().ok())
}

fn odd(what: &str) -> EtcdError {
    EtcdError::Malformed { endpoint: "etcd".into(), reason: format!("{what} is missing in it") }
}
