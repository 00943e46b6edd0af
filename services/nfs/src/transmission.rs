//! One session: receives calls and sends replies.

use std::rc::Rc;
use std::sync::Arc;

use kernel::connection::{
    EdgePermit, End, FastPath, Handler, Header, Holds, Inbound, Outbound, Peer, Release, Reply, Session, Step, Tally,
};
use kernel::processor::Timed;
use kernel::{FRAME_BYTES, Frames, Processor};

use nfs3_types::nfs3::stable_how;

use crate::call::{Call, Results};
use crate::caller::Callers;
use crate::client::{ClientAddress, Credentials};
use crate::handle::LastHandle;
use crate::hot;
use crate::nfs::Nfs;
use crate::procedure;
use crate::program::transfer_bytes_max;
use crate::record::{Incoming, Message};
use crate::recording::{LastExport, Recorded, status_of};
use crate::rpc::{self, CallHead};
use crate::shape::Payload;
use crate::shape::{self, WriteArguments};

/// Of a call in progress, at most: longer pieces of memory glibc's malloc does not have at hand for each thread. Bytes.
const WORK_BYTES_MAX: usize = 1032;

pub trait Perform: Clone + 'static {
    fn perform(&self, call: &mut Call) -> impl Future<Output = Results>;
}

/// The procedures of NFS and MOUNT.
#[derive(Clone)]
pub struct Procedures;

impl Perform for Procedures {
    fn perform(&self, call: &mut Call) -> impl Future<Output = Results> {
        procedure::perform(call)
    }
}

pub struct Calls<P> {
    cpu: Processor,
    nfs: Arc<Nfs>,
    client: ClientAddress,
    /// Replaces the credentials of all calls, if the host reports the client's user.
    credentials: Option<Credentials>,
    callers: Callers,
    outbound: Rc<Outbound>,
    perform: P,
    last_export: LastExport,
    last_handle: Rc<LastHandle>,
}

/// The received data of a WRITE.
enum Data {
    Complete(Frames),
    /// The data was too short; the reply.
    Refused(Header),
}

impl<P: Perform> Calls<P> {
    /// `None`: the client is unknown, and with it its permissions.
    pub(crate) fn new(nfs: &Arc<Nfs>, session: &Session, peer: &Peer, perform: P) -> Option<Self> {
        let client = ClientAddress::of(peer)?;
        Some(Calls {
            cpu: session.cpu().clone(),
            nfs: Arc::clone(nfs),
            client,
            credentials: peer.user.as_ref().filter(|_| peer.address.is_none()).and_then(Credentials::of),
            callers: Callers::new(session.cpu(), client),
            outbound: Rc::clone(session.outbound()),
            perform,
            last_export: LastExport::default(),
            last_handle: Rc::default(),
        })
    }

    fn recording(&self) -> (&LastExport, &Nfs, &Tally) {
        (&self.last_export, &self.nfs, self.outbound.tally())
    }

    fn recorded(&self, head: &CallHead, arguments: &[u8]) -> Recorded {
        Recorded::of(head.program, head.procedure, arguments, self.cpu.job(), self.recording())
    }

    /// Answers a frequent call at once, if possible (OLTP-4).
    fn answer_fast(&self, head: &CallHead, arguments: &[u8], session: &Session) -> FastPath {
        if !self.cpu.switches().hottest_first || !hot::is_hot(head) {
            return FastPath::Missed(None);
        }
        let (cpu, recorded) = (&self.cpu, self.recorded(head, arguments));
        let began = recorded.begin_next(cpu);
        let (nfs, client, outbound, last_handle) = (&self.nfs, self.client, &self.outbound, &self.last_handle);
        let asker = hot::Asker { cpu, nfs, client, outbound, last_handle };
        let Some(reply) = asker.answer(head, arguments) else { return FastPath::Missed(Some(began)) };
        self.outbound.push(reply);
        recorded.end_with(cpu, session.batch(), began);
        FastPath::Answered
    }

    /// Executes a call without data.
    async fn plain(&self, head: CallHead, arguments: Vec<u8>, inbound: &mut Inbound<'_, Incoming>) {
        let session = inbound.session();
        let began = match self.answer_fast(&head, &arguments, session) {
            FastPath::Answered => return inbound.decoder.reuse(arguments),
            FastPath::Missed(began) => began,
        };
        session.end_batch();
        if procedure::is_durable(head.program, head.procedure) {
            inbound.acknowledge();
        }
        let most = u64::from(transfer_bytes_max(self.cpu.kernel()));
        let bytes = shape::results_bytes(head.program, head.procedure, &arguments).min(most);
        // Of results with a count, only READ's use frames.
        let reads = bytes > 0 && head.procedure == shape::READ;
        let release = inbound.admit(bytes, if reads { Holds::Frames } else { Holds::Nothing }).await;
        self.start(head, arguments, (None, None), release, began);
    }

    /// Receives the data of a WRITE and executes it.
    async fn write(
        &self,
        (head, arguments): (CallHead, Vec<u8>),
        write: WriteArguments,
        whole: bool,
        inbound: &mut Inbound<'_, Incoming>,
    ) -> Step {
        inbound.session().end_batch();
        let (start, len) = (write.start(), write.data_len as usize);
        let release = inbound.admit(len as u64, Holds::Nothing).await;
        let is_whole_blocks = start == 0 && len.is_multiple_of(FRAME_BYTES);
        let permit = if len == 0 || is_whole_blocks { None } else { Some(inbound.edge_permit(start, len).await) };
        match data(start, len, whole, inbound).await {
            Step::Continue(Data::Complete(frames)) => {
                if write.stable != stable_how::UNSTABLE {
                    inbound.acknowledge();
                }
                let payload = Payload { write, frames };
                self.start(head, arguments, (Some(payload), permit), release, None);
            }
            Step::Continue(Data::Refused(header)) => self.outbound.push(Reply { header, release, ..Reply::default() }),
            Step::Break(end) => {
                // The client disconnected within the data: there is no reply.
                self.outbound.release(release);
                return Step::Break(end);
            }
        }
        Step::Continue(())
    }

    /// Executes a call and queues its reply. `began`: its start, if already recorded.
    fn start(
        &self,
        head: CallHead,
        arguments: Vec<u8>,
        (payload, permit): (Option<Payload>, Option<EdgePermit>),
        release: Release,
        began: Option<Timed>,
    ) {
        let recorded = match &payload {
            Some(Payload { write, .. }) => Recorded::of_write(write, &arguments, self.cpu.job(), self.recording()),
            None => self.recorded(&head, &arguments),
        };
        let began = began.unwrap_or_else(|| recorded.begin(&self.cpu));
        let CallHead { xid, program, procedure, credentials, len: _ } = head;
        let (cpu, nfs, client) = (self.cpu.clone(), Arc::clone(&self.nfs), self.client);
        let (job, connection, last_handle) = (cpu.job(), self.outbound.tally().number(), Rc::clone(&self.last_handle));
        let mut call = Call {
            cpu,
            nfs,
            client,
            connection,
            credentials,
            program,
            procedure,
            xid,
            arguments,
            payload,
            job,
            last_handle,
        };
        let (cpu, outbound, perform) = (self.cpu.clone(), Rc::clone(&self.outbound), self.perform.clone());
        // Boxed where it is made: it is large to move.
        let work = Box::pin(async move {
            let results = perform.perform(&mut call).await;
            drop(call);
            recorded.end(&cpu, began, status_of(&results));
            drop(permit);
            match rpc::reply(xid, results) {
                Some(reply) => outbound.push(Reply { release, ..reply }),
                None => outbound.release(release),
            }
        });
        debug_assert!(size_of_val(&*work) <= WORK_BYTES_MAX, "a call in progress has {} bytes", size_of_val(&*work));
        // Often it completes at once from the caches.
        self.cpu.spawn_running(work);
    }
}

/// Receives the data of a WRITE: `len` bytes, the first of which goes `start` bytes into the first frame. `whole`: in
/// one fragment.
async fn data(start: usize, len: usize, whole: bool, inbound: &mut Inbound<'_, Incoming>) -> Step<Data> {
    // The permit lasts until all of it has arrived.
    let (mut frames, mut _arrival, mut filled) = (Frames::new(), None, 0);
    if len > 0 && !whole {
        (frames, _arrival) = inbound.frames(start, len).await;
    }
    loop {
        match inbound.next().await? {
            Message::Data(piece) if whole => frames = inbound.payload(start, piece).await?,
            Message::Data(piece) => {
                frames = inbound.fill(start + filled, piece, frames).await?;
                filled += piece;
            }
            Message::DataEnd => return Step::Continue(Data::Complete(frames)),
            Message::Refuse(reply) => return Step::Continue(Data::Refused(reply)),
            Message::Call(..) | Message::Write { .. } => return Step::Break(End::Malformed),
        }
    }
}

impl<P: Perform> Handler for Calls<P> {
    type Decoder = Incoming;

    fn decoder(&self) -> Incoming {
        Incoming::new(self.credentials.clone())
    }

    async fn call(&mut self, message: Message, inbound: &mut Inbound<'_, Incoming>) -> Step {
        match message {
            Message::Call(head, arguments) => {
                self.callers.work_for(&self.cpu, &head.credentials, &self.outbound);
                self.plain(head, arguments, inbound).await;
            }
            Message::Write { head, arguments, write, whole } => {
                self.callers.work_for(&self.cpu, &head.credentials, &self.outbound);
                return self.write((head, arguments), write, whole, inbound).await;
            }
            Message::Refuse(header) => {
                inbound.session().end_batch();
                let release = inbound.admit(0, Holds::Nothing).await;
                self.outbound.push(Reply { header, release, ..Reply::default() });
            }
            // These follow a WRITE, which receives them itself.
            Message::Data(_) | Message::DataEnd => return Step::Break(End::Malformed),
        }
        Step::Continue(())
    }
}
