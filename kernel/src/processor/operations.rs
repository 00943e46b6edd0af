//! Operations on a processor's machine.

use machine::mapping::Faults;
use machine::{Connection, Errno, Listener, Op, Region, Segments};

use super::Processor;
use crate::operation::{Hold, Operation};

impl Processor {
    /// Starts an operation whose memory is `hold`; its end is to be awaited. Not an `async fn`, nor are those below: their
    /// futures would hold the operation and its memory several times, and so would those that await them.
    ///
    /// # Safety
    /// Every segment of the operation must lie in the memory of `hold`, in something that lives as long as the kernel,
    /// or be kept valid by the caller until the future completes *and* the future must then not be dropped before.
    pub(crate) unsafe fn perform(&self, hold: Hold, op: Op) -> Operation {
        // After a receive, any number of requests may follow; after anything else, only the rest of one.
        let is_short = !matches!(op, Op::Receive { .. } | Op::Accept { .. });
        let bytes = match &op {
            Op::Send { from, .. } => from.iter().map(|segment| u64::from(segment.len)).sum(),
            _ => 0,
        };
        self.note_start(bytes);
        let operation = self.0.operations.begin(hold, is_short);
        // SAFETY: the hold stays in `operations` until the completion, even if this future is dropped.
        unsafe { self.0.machine.borrow_mut().start(operation.token(), op) };
        operation
    }

    /// Populates the memory of a region of which no page is used yet.
    pub(crate) async fn populate(&self, region: Region) {
        // SAFETY: nothing is transferred. Only a hint: the result does not matter.
        let _ = unsafe { self.perform(Hold::default(), Op::Populate { region }) }.await;
    }

    ///
    /// # Errors
    /// The host's error number.
    pub async fn accept(&self, listener: Listener) -> Result<Connection, Errno> {
        // SAFETY: no memory is involved.
        let (result, _) = unsafe { self.perform(Hold::default(), Op::Accept { listener }) }.await;
        result.map(|connection| Connection(connection as u32))
    }

    /// Receives what has arrived into `into`, which must lie in `hold` (see [`Hold::bytes`] and
    /// [`crate::frame::segments`]). Returns the bytes received, 0 at the end of the stream, and the memory.
    /// Begins at once, not when it is first polled.
    ///
    /// # Panics
    /// If a segment lies outside `hold`: a bug of the caller, not of the wire.
    pub fn receive(
        &self,
        connection: Connection,
        hold: Hold,
        into: Segments,
    ) -> impl Future<Output = (Result<u64, Errno>, Hold)> + use<> {
        hold.assert_holds(&into);
        // SAFETY: just asserted.
        unsafe { self.perform(hold, Op::Receive { connection, into }) }
    }

    /// Sends `from`, which must lie in `hold`. Returns the bytes sent, possibly fewer than requested, and the memory.
    /// Begins at once, not when it is first polled.
    ///
    /// # Panics
    /// If a segment lies outside `hold`: a bug of the caller.
    pub fn send(
        &self,
        connection: Connection,
        hold: Hold,
        from: Segments,
    ) -> impl Future<Output = (Result<u64, Errno>, Hold)> + use<> {
        hold.assert_holds(&from);
        // SAFETY: just asserted.
        unsafe { self.perform(hold, Op::Send { connection, from }) }
    }

    /// Receives what is reported of a mapping's faults into `into`, which must lie in `hold`. Returns the bytes received
    /// and the memory.
    /// Begins at once, not when it is first polled.
    ///
    /// # Panics
    /// If a segment lies outside `hold`: a bug of the caller.
    pub fn faults(
        &self,
        of: Faults,
        hold: Hold,
        into: Segments,
    ) -> impl Future<Output = (Result<u64, Errno>, Hold)> + use<> {
        hold.assert_holds(&into);
        // SAFETY: just asserted.
        unsafe { self.perform(hold, Op::Faults { of, into }) }
    }

    /// Ends what waits for clients of a listener soon.
    pub fn cancel_accepts(&self, of: Listener) {
        self.machine(|m| m.cancel_accepts(of));
    }

    /// Ends what waits for the faults of a mapping soon.
    pub fn cancel_faults(&self, of: Faults) {
        self.machine(|m| m.cancel_faults(of));
    }

    /// Acknowledges to the peer what has arrived, instead of with the next reply.
    pub fn acknowledge(&self, connection: Connection) {
        self.machine(|m| m.acknowledge(connection));
    }

    /// Shuts a connection down in both directions; operations in flight on it complete soon.
    pub fn shutdown(&self, connection: Connection) {
        self.machine(|m| m.shutdown(connection));
    }

    /// Frees a connection without operations in flight.
    pub fn close(&self, connection: Connection) {
        self.machine(|m| m.close(connection));
    }
}
