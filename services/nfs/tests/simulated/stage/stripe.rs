//! A file that all clients write concurrently, each its own slots, many slots to a block.

use std::collections::BTreeMap;

use nfs3_types::nfs3::{nfs_fh3, nfsstat3, stable_how};

use super::client::{Client, Failed, Verifier, with_mode};
use testkit::random::Random;
use testkit::scene::model::{Model, Stamp, fill, stamp_of};

/// Unit of a write. Bytes; a disk writes several of them atomically.
pub const SLOT_BYTES: u64 = 128;
pub const SLOTS: u64 = 96;

pub struct Stripe {
    file: nfs_fh3,
    /// Every `clients`-th slot from `first` is its own.
    first: u64,
    clients: u64,
    model: Model,
    /// Verifiers of slots that were acknowledged but may not be durable.
    unstable: BTreeMap<u64, Verifier>,
    stamp: Stamp,
}

impl Stripe {
    pub fn new(file: nfs_fh3, first: u64, clients: u64) -> Self {
        Stripe { file, first, clients, model: Model::new(0, SLOTS), unstable: BTreeMap::new(), stamp: 1 }
    }

    fn at(&self, slot: u64) -> u64 {
        (slot * self.clients + self.first) * SLOT_BYTES
    }

    pub async fn operate(&mut self, client: &Client, random: &mut Random, faulty: bool) -> Result<(), Failed> {
        let slot = random.below(SLOTS);
        let done = match random.below(6) {
            0..3 => self.write(client, slot, random).await,
            3 => self.commit(client).await,
            // Concurrent with the others' writes: the sync of the attributes may fail, and covers what they wrote.
            4 => client.setattr(&self.file, with_mode(0o644), None).await.map(drop),
            _ => self.read(client, slot).await,
        };
        match done {
            Err(Failed::Status(nfsstat3::NFS3ERR_IO)) if faulty => Ok(()),
            done => done,
        }
    }

    async fn write(&mut self, client: &Client, slot: u64, random: &mut Random) -> Result<(), Failed> {
        let mut bytes = [0; SLOT_BYTES as usize];
        self.stamp += 1;
        fill(&mut bytes, self.stamp * self.clients + self.first);
        let how = [stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC][random.below(3) as usize];
        self.model.begin(slot, 1, self.stamp * self.clients + self.first);
        self.unstable.remove(&slot);
        let (done, verifier) = client.write(&self.file, self.at(slot), &bytes, how).await?;
        if done.committed == stable_how::UNSTABLE {
            self.model.acknowledge(slot, 1);
            self.unstable.insert(slot, verifier);
        } else {
            self.model.acknowledge_durable(slot, 1);
        }
        Ok(())
    }

    async fn commit(&mut self, client: &Client) -> Result<(), Failed> {
        let (_, now) = client.commit(&self.file, 0, 0).await?;
        let model = &mut self.model;
        self.unstable.retain(|slot, verifier| {
            if *verifier == now {
                model.acknowledge_durable(*slot, 1);
            }
            *verifier != now
        });
        Ok(())
    }

    async fn read(&self, client: &Client, slot: u64) -> Result<(), Failed> {
        let read = client.read(&self.file, self.at(slot), SLOT_BYTES as u32).await?;
        if let Some(expected) = self.model.expected(slot) {
            let mut bytes = read.data.to_vec();
            // Others have yet to write behind it.
            bytes.resize(SLOT_BYTES as usize, 0);
            assert_eq!(stamp_of(&bytes), Ok(expected), "slot {slot} of client {}", self.first);
        }
        Ok(())
    }

    /// Compares the content after a crash with what is allowed.
    pub fn verify(&mut self, found: &[u8], is_settled: bool) {
        for slot in 0..SLOTS {
            let at = self.at(slot) as usize;
            let mut bytes = found.get(at..).unwrap_or_default().to_vec();
            bytes.resize(SLOT_BYTES as usize, 0);
            // Of a write that was not flushed, a host may have a part: it was done in two (a short write), or at the end of the
            // file. Then each word of it is one that may be there.
            let Ok(stamp) = stamp_of(&bytes) else {
                bytes.chunks_exact(8).for_each(|word| self.check(slot, stamp_of(word).unwrap_or_default()));
                continue;
            };
            self.check(slot, stamp);
            if is_settled {
                self.model.begin(slot, 1, stamp);
                self.model.acknowledge_durable(slot, 1);
            }
        }
        self.unstable.clear();
    }

    fn check(&mut self, slot: u64, stamp: Stamp) {
        if let Err(wrong) = self.model.check_after_crash(slot, stamp) {
            panic!("slot {slot} of client {}: {wrong}", self.first);
        }
    }
}
