//! The table of jobs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Client, JOBS_MAX, JobFacts, JobId, Merged, OTHERS, PLACE_BITS, USERS_AT_MAX, place};

#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    by_client: BTreeMap<Client, usize>,
    /// Entries without connections, by the time of the last disconnect.
    left: BTreeMap<u64, usize>,
    sequence: u64,
    others: u32,
}

struct Entry {
    id: JobId,
    client: Client,
    connections: u32,
    left: u64,
    /// Sums at this index when the job started.
    used_before_ns: u64,
    requests_before: u64,
}

impl Table {
    pub(super) fn connect(&mut self, client: Client, merged: &[Merged]) -> JobId {
        let index = match self.by_client.get(&client) {
            Some(&index) => index,
            None => match self.place_for(&client, merged) {
                Placed::At(index) => index,
                Placed::WithHost(host) => return self.connect(host, merged),
                Placed::Nowhere => {
                    self.others += 1;
                    return OTHERS;
                }
            },
        };
        let entry = &mut self.entries[index];
        self.left.remove(&entry.left);
        entry.connections += 1;
        entry.id
    }

    pub(super) fn leave(&mut self, job: JobId) {
        if job == OTHERS {
            self.others = self.others.saturating_sub(1);
            return;
        }
        self.sequence += 1;
        let index = place(job) - 1;
        let Some(entry) = self.entries.get_mut(index).filter(|entry| entry.id == job) else { return };
        entry.connections = entry.connections.saturating_sub(1);
        if entry.connections == 0 {
            entry.left = self.sequence;
            self.left.insert(self.sequence, index);
        }
    }

    pub(super) fn list(&self, merged: &[Merged]) -> Vec<JobFacts> {
        let facts = |entry: &Entry| {
            let merged = &merged[place(entry.id)];
            let used_ns = merged.used_ns.load(Ordering::Relaxed).saturating_sub(entry.used_before_ns);
            JobFacts {
                id: entry.id,
                client: entry.client.clone(),
                connections: entry.connections,
                used: Duration::from_nanos(used_ns),
                recent: Duration::from_nanos(merged.recent_ns.load(Ordering::Relaxed)),
                requests: merged.requests.load(Ordering::Relaxed).saturating_sub(entry.requests_before),
                dirty_blocks: merged.dirty.load(Ordering::Relaxed),
            }
        };
        self.entries.iter().map(facts).collect()
    }

    /// Finds a place for a new job, replacing one without connections if necessary.
    fn place_for(&mut self, client: &Client, merged: &[Merged]) -> Placed {
        let index = match self.user_to_replace(client) {
            Err(host) => return Placed::WithHost(host),
            Ok(Some(index)) => self.free(index),
            Ok(None) if self.entries.len() < JOBS_MAX => {
                let id = JobId(self.entries.len() as u32 + 1);
                let (client, connections, left) = (client.clone(), 0, 0);
                self.entries.push(Entry { id, client, connections, left, used_before_ns: 0, requests_before: 0 });
                self.entries.len() - 1
            }
            Ok(None) => match self.left.first_key_value() {
                Some((_, &index)) => self.free(index),
                None => return Placed::Nowhere,
            },
        };
        let entry = &mut self.entries[index];
        let shared = &merged[place(entry.id)];
        if entry.client != *client {
            // A new job at the same index. It inherits the dirty blocks of the old one until they are written.
            entry.id = JobId(entry.id.0.wrapping_add(1 << PLACE_BITS));
            entry.client = client.clone();
            shared.recent_ns.store(0, Ordering::Relaxed);
        }
        entry.used_before_ns = shared.used_ns.load(Ordering::Relaxed);
        entry.requests_before = shared.requests.load(Ordering::Relaxed);
        self.by_client.insert(client.clone(), index);
        Placed::At(index)
    }

    /// The user of the same host to be replaced by a new one, where there are many.
    ///
    /// # Errors
    /// All are connected: the client whose job the new user shares.
    fn user_to_replace(&self, client: &Client) -> Result<Option<usize>, Client> {
        let Client::UserAt(address, _) = *client else { return Ok(None) };
        let users = || self.by_client.range(Client::UserAt(address, 0)..=Client::UserAt(address, u32::MAX));
        if users().count() < USERS_AT_MAX {
            return Ok(None);
        }
        let idle = users().map(|(_, &index)| index).filter(|&index| self.entries[index].connections == 0);
        idle.min_by_key(|&index| self.entries[index].left).map(Some).ok_or(Client::Address(address))
    }

    /// Removes the job at an index, which has no connections.
    fn free(&mut self, index: usize) -> usize {
        self.left.remove(&self.entries[index].left);
        self.by_client.remove(&self.entries[index].client);
        index
    }
}

enum Placed {
    At(usize),
    /// Shares the job of this client, the host.
    WithHost(Client),
    Nowhere,
}
