//! All connections and their counters, written by the connection's processor, read by monitoring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use machine::Connection;
use parking_lot::Mutex;
use policy::unit::ProcessorId;

use crate::Processor;
use crate::counters::Counter;
use crate::export::ExportNo;
use crate::request::JobId;
use crate::trace::{Event, Whose};

/// In place of an export's number: several exports.
const SEVERAL: u16 = u16::MAX;

/// A connection, unique in the server's life; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionNo(pub u64);

/// Known of a connection before its session starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// `nbd`, `nfs`.
    pub protocol: &'static str,
    /// Display name of the client.
    pub client: String,
    pub at: Instant,
}

/// The exports that a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// None yet, or one without a number.
    None,
    One(ExportNo),
    Several,
}

/// Counters of one connection. Written by its processor only, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Tally {
    number: ConnectionNo,
    requests: Counter,
    received: Counter,
    sent: Counter,
    under_way: AtomicU32,
    job: AtomicU32,
    export: AtomicU16,
}

impl Tally {
    pub fn number(&self) -> ConnectionNo {
        self.number
    }

    /// Requests received.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// A request begins; `under_way` are in flight now.
    #[inline]
    pub(super) fn begin_request(&self, under_way: usize) {
        self.requests.add(1);
        self.set_under_way(under_way);
    }

    #[inline]
    pub(super) fn set_under_way(&self, requests: usize) {
        self.under_way.store(requests as u32, Ordering::Relaxed);
    }

    pub(super) fn receive(&self, bytes: u64) {
        self.received.add(bytes);
    }

    pub(super) fn send(&self, bytes: u64) {
        self.sent.add(bytes);
    }

    /// The job to charge.
    pub fn job(&self) -> JobId {
        JobId(self.job.load(Ordering::Relaxed))
    }

    #[inline]
    pub fn use_export(&self, export: ExportNo) {
        let before = self.export.load(Ordering::Relaxed);
        if before != export.0 && export != ExportNo::NONE {
            let now = if before == ExportNo::NONE.0 { export.0 } else { SEVERAL };
            self.export.store(now, Ordering::Relaxed);
        }
    }

    pub fn uses(&self) -> Uses {
        match self.export.load(Ordering::Relaxed) {
            0 => Uses::None,
            SEVERAL => Uses::Several,
            export => Uses::One(ExportNo(export)),
        }
    }

    /// As [`Tally::uses`], for trace records: `NONE` unless it is a single one.
    fn export(&self) -> ExportNo {
        if let Uses::One(export) = self.uses() { export } else { ExportNo::NONE }
    }
}

impl From<&Tally> for Whose {
    #[inline]
    fn from(tally: &Tally) -> Self {
        Whose { job: tally.job(), export: tally.export() }
    }
}

/// A connection's state and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReading {
    pub number: ConnectionNo,
    /// `None` before its session starts.
    pub processor: Option<ProcessorId>,
    pub introduction: Option<Introduction>,
    /// The job to charge.
    pub job: JobId,
    pub uses: Uses,
    pub requests: u64,
    /// Those in flight.
    pub under_way: u32,
    /// Bytes.
    pub received: u64,
    /// Bytes.
    pub sent: u64,
}

struct Entry {
    processor: Option<ProcessorId>,
    introduction: Option<Introduction>,
    tally: Arc<Tally>,
}

#[derive(Default)]
pub struct ConnectionTable {
    entries: Mutex<BTreeMap<u32, Entry>>,
    last: AtomicU64,
}

impl ConnectionTable {
    /// A client was accepted. Its connection must be removed with [`ConnectionTable::forget`] before it is closed.
    pub fn introduce(&self, connection: Connection, introduction: Introduction) {
        self.entry(&mut self.entries.lock(), connection).introduction = Some(introduction);
    }

    /// A client was refused: too many connections, or the server is stopping.
    pub fn turn_away(&self, cpu: &Processor, connections: u32) {
        cpu.trace(Event::ConnectionTurnedAway, JobId::default(), u64::from(connections), 0);
    }

    pub fn forget(&self, connection: Connection) {
        self.entries.lock().remove(&connection.0);
    }

    /// This processor owns the connection from now on.
    pub(super) fn begin(&self, connection: Connection, cpu: &Processor) -> Arc<Tally> {
        let tally = self.begin_on(connection, cpu.id());
        tally.job.store(cpu.job().0, Ordering::Relaxed);
        tally
    }

    fn begin_on(&self, connection: Connection, processor: ProcessorId) -> Arc<Tally> {
        let mut entries = self.entries.lock();
        let entry = self.entry(&mut entries, connection);
        entry.processor = Some(processor);
        Arc::clone(&entry.tally)
    }

    /// The connection's counters; unlisted ones if it is not in the table.
    pub(super) fn tally(&self, connection: Connection) -> Arc<Tally> {
        self.entries.lock().get(&connection.0).map(|entry| Arc::clone(&entry.tally)).unwrap_or_default()
    }

    /// The oldest first.
    pub fn read(&self) -> Vec<ConnectionReading> {
        let read = |entry: &Entry| {
            let tally = &entry.tally;
            ConnectionReading {
                number: tally.number,
                processor: entry.processor,
                introduction: entry.introduction.clone(),
                job: tally.job(),
                uses: tally.uses(),
                requests: tally.requests.get(),
                under_way: tally.under_way.load(Ordering::Relaxed),
                received: tally.received.get(),
                sent: tally.sent.get(),
            }
        };
        let mut all: Vec<ConnectionReading> = self.entries.lock().values().map(read).collect();
        all.sort_unstable_by_key(|connection| connection.number);
        all
    }

    fn entry<'a>(&self, entries: &'a mut BTreeMap<u32, Entry>, connection: Connection) -> &'a mut Entry {
        entries.entry(connection.0).or_insert_with(|| {
            let number = ConnectionNo(self.last.fetch_add(1, Ordering::Relaxed) + 1);
            Entry { processor: None, introduction: None, tally: Arc::new(Tally { number, ..Tally::default() }) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_told_apart_even_when_the_host_gives_its_number_again() {
        let table = ConnectionTable::default();
        let first = table.begin_on(Connection(7), ProcessorId(1));
        first.begin_request(1);
        first.receive(10);
        first.send(20);
        let [reading] = &table.read()[..] else { panic!("one connection") };
        assert_eq!((reading.number, reading.processor, reading.requests), (ConnectionNo(1), Some(ProcessorId(1)), 1));
        assert_eq!((reading.under_way, reading.received, reading.sent), (1, 10, 20));
        table.forget(Connection(7));
        assert_eq!(table.read(), []);
        let at = Instant::now();
        table.introduce(Connection(7), Introduction { protocol: "nbd", client: "uid 0".into(), at });
        let second = table.begin_on(Connection(7), ProcessorId(0));
        assert!(Arc::ptr_eq(&second, &table.tally(Connection(7))));
        let [reading] = &table.read()[..] else { panic!("one connection") };
        assert_eq!((reading.number, reading.requests), (ConnectionNo(2), 0));
        assert_eq!(reading.introduction.as_ref().map(|known| known.protocol), Some("nbd"));
    }

    #[test]
    fn who_works_with_several_exports_is_said_to() {
        let tally = Tally::default();
        assert_eq!(tally.uses(), Uses::None);
        tally.use_export(ExportNo(3));
        tally.use_export(ExportNo::NONE);
        tally.use_export(ExportNo(3));
        assert_eq!((tally.uses(), tally.export()), (Uses::One(ExportNo(3)), ExportNo(3)));
        tally.use_export(ExportNo(4));
        tally.use_export(ExportNo(3));
        assert_eq!((tally.uses(), tally.export()), (Uses::Several, ExportNo::NONE));
    }
}
