//! What is recorded: the types of events.

/// How frequent an event is, and so where it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// With every request or so: in place, by the processor where it happens.
    Frequent,
    /// Now and then: by the central recorder.
    Rare,
}

/// A moment, or something that begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A moment.
    Moment,
    /// A beginning and an end: one record at the end, with the time between (OLTP-2: pairs are merged).
    Span,
}

/// What is known of a type of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventType {
    /// Category and name: `cache.miss`.
    pub name: &'static str,
    /// How frequent it is.
    pub frequency: Frequency,
    /// A moment or a span.
    pub shape: Shape,
    /// What the long and the short argument of a record mean; empty for nothing.
    pub arguments: [&'static str; 2],
}

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $event:ident: $frequency:ident $shape:ident $name:literal ($a:literal, $b:literal);)*) => {
        /// A type of event. Its number is what a record holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Event {
            $($(#[doc = $doc])+ $event,)*
        }

        /// All types, by number.
        const TYPES: &[(Event, EventType)] = &[
            $((Event::$event, EventType {
                name: $name,
                frequency: Frequency::$frequency,
                shape: Shape::$shape,
                arguments: [$a, $b],
            }),)*
        ];
    };
}

events! {
    /// A processor had nothing to do.
    ProcessorParked: Frequent Span "processor.parked" ("", "");
    /// A task ran until it waited.
    TaskRan: Frequent Span "task.ran" ("task", "immediate");
    /// A task was started.
    TaskStarted: Frequent Moment "task.started" ("task", "");
    /// A task came to its end.
    TaskEnded: Frequent Moment "task.ended" ("task", "");
    /// Another processor put something in the mailbox.
    PostTaken: Frequent Moment "processor.post" ("woken", "starts");
    /// Completions were taken from the machine.
    CompletionsTaken: Frequent Moment "processor.completions" ("count", "");
    /// The work after a completion was taken by the processor that `delivery` chose.
    CompletionDelivered: Frequent Moment "processor.delivered" ("from", "");
    /// Completions gathered for a while (OLTP-1).
    QuantumWaited: Frequent Span "processor.quantum" ("", "");
    /// A timer was due.
    TimerFired: Frequent Moment "processor.timer" ("", "");
    /// A processor began to serve.
    ProcessorStarted: Rare Moment "processor.started" ("", "");
    /// A processor ended.
    ProcessorStopped: Rare Moment "processor.stopped" ("", "");

    /// A client connected.
    ConnectionBegun: Rare Moment "connection.begun" ("connection", "");
    /// A client is gone.
    ConnectionEnded: Rare Moment "connection.ended" ("connection", "requests");
    /// A client was turned away: there were too many already, or the server ends.
    ConnectionTurnedAway: Rare Moment "connection.turned_away" ("connections", "");
    /// A client violated its protocol and was disconnected.
    ConnectionMalformed: Rare Moment "connection.malformed" ("connection", "");
    /// A client exceeded a timeout and was disconnected.
    ConnectionStalled: Rare Moment "connection.stalled" ("connection", "waited_ms");
    /// A request waited until its client, or all clients, had less in flight.
    AdmissionAwaited: Frequent Span "connection.admission" ("bytes", "requests");
    /// Payload waited until all clients held fewer frames.
    PayloadAwaited: Frequent Span "connection.payload_room" ("frames", "");
    /// A client and the server agreed on an export.
    ConnectionNegotiated: Rare Moment "connection.negotiated" ("size", "connection");
    /// Bytes came from a client.
    Received: Frequent Moment "connection.received" ("bytes", "");
    /// Replies went to a client.
    Sent: Frequent Span "connection.sent" ("bytes", "replies");

    /// NBD: read.
    NbdRead: Frequent Span "nbd.read" ("offset", "bytes");
    /// NBD: write.
    NbdWrite: Frequent Span "nbd.write" ("offset", "bytes");
    /// NBD: flush.
    NbdFlush: Frequent Span "nbd.flush" ("", "");
    /// NBD: trim.
    NbdTrim: Frequent Span "nbd.trim" ("offset", "bytes");
    /// NBD: write zeroes.
    NbdWriteZeroes: Frequent Span "nbd.write_zeroes" ("offset", "bytes");
    /// NBD: cache.
    NbdCache: Frequent Span "nbd.cache" ("offset", "bytes");
    /// NBD: block status.
    NbdBlockStatus: Frequent Span "nbd.block_status" ("offset", "bytes");
    /// NBD: a request that was refused.
    NbdRefused: Rare Moment "nbd.refused" ("error", "");

    /// NFS: NULL.
    NfsNull: Rare Span "nfs.null" ("", "");
    /// NFS: GETATTR.
    NfsGetattr: Frequent Span "nfs.getattr" ("node", "status");
    /// NFS: SETATTR.
    NfsSetattr: Frequent Span "nfs.setattr" ("node", "status");
    /// NFS: LOOKUP.
    NfsLookup: Frequent Span "nfs.lookup" ("node", "status");
    /// NFS: ACCESS.
    NfsAccess: Frequent Span "nfs.access" ("node", "status");
    /// NFS: READLINK.
    NfsReadlink: Frequent Span "nfs.readlink" ("node", "status");
    /// NFS: READ.
    NfsRead: Frequent Span "nfs.read" ("offset", "bytes");
    /// NFS: WRITE.
    NfsWrite: Frequent Span "nfs.write" ("offset", "bytes");
    /// NFS: CREATE.
    NfsCreate: Frequent Span "nfs.create" ("node", "status");
    /// NFS: MKDIR.
    NfsMkdir: Frequent Span "nfs.mkdir" ("node", "status");
    /// NFS: SYMLINK.
    NfsSymlink: Frequent Span "nfs.symlink" ("node", "status");
    /// NFS: MKNOD.
    NfsMknod: Frequent Span "nfs.mknod" ("node", "status");
    /// NFS: REMOVE.
    NfsRemove: Frequent Span "nfs.remove" ("node", "status");
    /// NFS: RMDIR.
    NfsRmdir: Frequent Span "nfs.rmdir" ("node", "status");
    /// NFS: RENAME.
    NfsRename: Frequent Span "nfs.rename" ("node", "status");
    /// NFS: LINK.
    NfsLink: Frequent Span "nfs.link" ("node", "status");
    /// NFS: READDIR.
    NfsReaddir: Frequent Span "nfs.readdir" ("node", "status");
    /// NFS: READDIRPLUS.
    NfsReaddirplus: Frequent Span "nfs.readdirplus" ("node", "status");
    /// NFS: FSSTAT.
    NfsFsstat: Frequent Span "nfs.fsstat" ("node", "status");
    /// NFS: FSINFO.
    NfsFsinfo: Frequent Span "nfs.fsinfo" ("node", "status");
    /// NFS: PATHCONF.
    NfsPathconf: Frequent Span "nfs.pathconf" ("node", "status");
    /// NFS: COMMIT.
    NfsCommit: Frequent Span "nfs.commit" ("offset", "bytes");
    /// MOUNT: a directory was mounted or given back, or what there is was asked.
    Mount: Rare Span "mount.call" ("procedure", "status");

    /// PostgreSQL's protocol: what a client asked for up to a Sync, with calls of functions; until that is durable.
    PostgresCall: Frequent Span "postgres.call" ("statements", "bytes");
    /// PostgreSQL's protocol: the same without calls.
    PostgresOther: Frequent Span "postgres.other" ("statements", "bytes");
    /// A function of a program was executed; how often it asked its database for something. `at_once` 0: it was suspended
    /// where it asked; 1: it was not; 2: nor was it, and was given up, since it would have waited: it is executed once more.
    ProgramCalled: Frequent Span "program.called" ("requests", "at_once");
    /// A program asked for a table. As all requests of programs only with `unthinned` (a call has their number), and without
    /// an end where it would have waited in a call that was given up for that.
    ProgramTable: Frequent Span "program.table" ("", "");
    /// A program asked for a row.
    ProgramGet: Frequent Span "program.get" ("", "");
    /// A program wrote a row.
    ProgramPut: Frequent Span "program.put" ("", "");
    /// A program deleted a row.
    ProgramDelete: Frequent Span "program.delete" ("", "");
    /// A program asked for the first row of a range, or the last.
    ProgramNext: Frequent Span "program.next" ("", "");
    /// A group of transactions was written to a database's log.
    LogWritten: Frequent Span "database.log" ("page", "bytes");
    /// What was committed was put into the tree of a database, in its cache.
    CheckpointMerged: Rare Span "database.merged" ("entries", "pages");
    /// The tree became durable, and with it the checkpoint.
    CheckpointStored: Rare Span "database.stored" ("generation", "");

    /// All blocks were in the cache. Only with `unthinned`: a request without a miss hit.
    CacheHit: Frequent Moment "cache.hit" ("block", "blocks");
    /// Blocks had to be read.
    CacheMiss: Frequent Moment "cache.miss" ("block", "blocks");
    /// A reader waited for blocks that another was loading.
    CacheLoadAwaited: Frequent Span "cache.load_awaited" ("block", "");
    /// Cold blocks left for others.
    CacheEvicted: Frequent Moment "cache.evicted" ("blocks", "");
    /// Blocks were written into the cache.
    CacheWrite: Frequent Moment "cache.write" ("block", "blocks");
    /// A task waited for memory.
    MemoryAwaited: Frequent Span "memory.awaited" ("frames", "");
    /// The size limit of the cache changed.
    CacheSized: Rare Moment "cache.sized" ("bytes", "");
    /// Memory was taken from the host.
    MemoryTaken: Rare Moment "memory.taken" ("bytes", "");
    /// Memory was returned to the host.
    MemoryReturned: Rare Moment "memory.returned" ("bytes", "");
    /// Blocks are read in advance.
    ReadAhead: Frequent Moment "read_ahead.fetch" ("block", "blocks");

    /// Dirty blocks are written.
    WriteOut: Frequent Span "write_back.write_out" ("block", "blocks");
    /// Write-back decided what to write.
    WriteBackTick: Frequent Moment "write_back.tick" ("dirty", "blocks");
    /// A writer waited until less was dirty.
    WriterHeldBack: Frequent Span "write_back.writer_held_back" ("dirty", "");
    /// A flush of a volume.
    Flush: Frequent Span "flush.volume" ("covered", "");
    /// A caller waited for a flush that it shares with others.
    FlushGathered: Frequent Span "flush.gathered" ("members", "");
    /// A flush failed.
    FlushFailed: Rare Moment "flush.failed" ("error", "");

    /// A request waited in a disk's queue.
    QueueWaited: Frequent Span "queue.waited" ("offset", "bytes");
    /// Neighbours went to the disk as one.
    QueueMerged: Frequent Moment "queue.merged" ("members", "bytes");
    /// A request was handed over to the processor that starts the device.
    QueueHandedOver: Frequent Moment "queue.handed_over" ("processor", "");
    /// An asynchronous request was promoted: a client waits for it now.
    QueuePromoted: Frequent Moment "queue.promoted" ("offset", "");
    /// The device read.
    DeviceRead: Frequent Span "device.read" ("offset", "bytes");
    /// The device wrote.
    DeviceWrite: Frequent Span "device.write" ("offset", "bytes");
    /// The device flushed.
    DeviceFlush: Frequent Span "device.flush" ("", "");
    /// The device zeroed or discarded.
    DeviceOther: Frequent Span "device.other" ("offset", "bytes");
    /// A device failed.
    DeviceFailed: Rare Moment "device.failed" ("error", "");

    /// A call of a directory tree.
    TreeCall: Frequent Span "tree.call" ("tree", "");
    /// A file was opened.
    FileOpened: Frequent Moment "file.opened" ("node", "bytes");
    /// A file was closed.
    FileClosed: Frequent Moment "file.closed" ("node", "");

    /// New clients get an export.
    ExportAdded: Rare Moment "export.added" ("", "");
    /// New clients do not get an export any more.
    ExportRemoved: Rare Moment "export.removed" ("", "");

    /// A processor has seen that switches were set.
    SwitchSet: Rare Moment "processor.switches_set" ("change", "");

    /// Shared disk: this node asked a page's home for it.
    SharedAsked: Frequent Moment "shared.asked" ("page", "node");
    /// Shared disk: this node, as its home, granted a page to a node.
    SharedGranted: Frequent Moment "shared.granted" ("page", "node");
    /// Shared disk: this node had a page, and sent it straight to the node that wanted it.
    SharedForwarded: Frequent Moment "shared.forwarded" ("page", "node");
    /// Shared disk: this node, as its home, took a page back from a node.
    SharedRecalled: Frequent Moment "shared.recalled" ("page", "node");
    /// Shared disk: this node was to give up a page, by its home.
    SharedInvalidated: Frequent Moment "shared.invalidated" ("page", "node");
    /// Shared disk: a part of its pages has this home from now on.
    SharedMoved: Rare Moment "shared.moved" ("shard", "node");
    /// Shared disk: a reader waited for pages from their homes, or from nodes that had them.
    SharedFetched: Frequent Span "shared.fetched" ("page", "pages");
    /// Shared disk: a writer waited until this node alone had the pages.
    SharedTaken: Frequent Span "shared.taken" ("page", "pages");
    /// Shared disk: a thread of a program waited for a page of mapped memory.
    SharedFault: Frequent Span "shared.fault" ("page", "is_write");
}

impl Event {
    /// How many types there are.
    pub const COUNT: usize = TYPES.len();

    /// All of them.
    pub fn all() -> impl Iterator<Item = Event> {
        TYPES.iter().map(|(event, _)| *event)
    }

    /// The type with this number, if there is one.
    pub fn from_number(number: u16) -> Option<Event> {
        TYPES.get(usize::from(number)).map(|(event, _)| *event)
    }

    /// What is known of it.
    pub const fn facts(self) -> EventType {
        TYPES[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_at_least_70_types_each_with_a_name_of_its_own() {
        const { assert!(Event::COUNT >= 70) };
        let names: BTreeSet<_> = Event::all().map(|event| event.facts().name).collect();
        assert_eq!(names.len(), Event::COUNT);
        assert!(names.iter().all(|name| name.split('.').count() == 2));
    }

    #[test]
    fn a_type_is_found_by_its_number() {
        for event in Event::all() {
            assert_eq!(Event::from_number(event as u16), Some(event));
        }
        assert_eq!(Event::from_number(Event::COUNT as u16), None);
    }
}
