//! One connection: calls in, replies out.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kernel::connection::{
    ArrivalPermit, EdgePermit, Gone, Header, Headers, Inbound, Keeps, Outbound, Release, Reply, Served, Wait,
};
use kernel::processor::{Timed, Together};
use kernel::{FRAME_BYTES, Frames, Processor};
use machine::Connection;

use crate::call::{Call, ClientAddress, Credentials, LocalPeer, Payload, Program, Results, transfer_bytes_max};
use crate::caller::Callers;
use crate::hot;
use crate::procedure;
use crate::record::{Incoming, Next};
use crate::recording::{LastExport, Recorded, status_of};
use crate::rpc::{self, CallHead};
use crate::server::Server;
use crate::shape::{self, WriteShape};

/// Shortest head that is worth a receive of its own. Bytes.
const HEAD_BYTES_MIN: usize = 4;

/// Serves one client on this processor until it goes or the server ends, then closes the connection. What is done is
/// charged to the job of the task ([`Processor::spawn_for`]).
pub async fn serve(cpu: Processor, connection: Connection, client: ClientAddress, server: Arc<Server>) {
    serve_with(cpu, connection, (client, None), server, procedure::perform).await;
}

/// The same for a client of a Unix socket, who is who the host says.
pub async fn serve_local(cpu: Processor, connection: Connection, peer: LocalPeer, server: Arc<Server>) {
    let client = ClientAddress::Unix(peer.uid);
    serve_with(cpu, connection, (client, peer.credentials()), server, procedure::perform).await;
}

/// The same, with whatever does the calls. The client's credentials, where they are known, count in place of those that
/// its calls claim.
pub(crate) async fn serve_with<P>(
    cpu: Processor,
    connection: Connection,
    (client, credentials): (ClientAddress, Option<Credentials>),
    server: Arc<Server>,
    perform: P,
) where
    P: AsyncFn(Call) -> Results + Clone + 'static,
{
    let served = Served::begin(&cpu, connection, server.service());
    let outbound = Outbound::start(&cpu, connection, server.service());
    let inbound = Inbound::new(&served, Rc::clone(&outbound));
    let patience = server.limits().stall_timeout;
    let callers = Callers::new(&cpu, client);
    let (last_export, together) = (LastExport::default(), Together::default());
    let calls = Calls { cpu, server, client, outbound, perform, last_export, together };
    let (incoming, open) = (Incoming::new(), None);
    let transmission = Transmission {
        calls,
        callers,
        credentials,
        inbound,
        incoming,
        open,
        head_bytes: 0,
        padding: 0,
        patience,
        in_one_go: 0,
    };
    if transmission.run().await == End::Malformed {
        served.note_malformed();
    }
    served.end();
}

/// How a connection came to its end.
#[derive(PartialEq, Eq)]
enum End {
    /// The client went, or the server ends.
    Gone,
    /// What came was no message of RPC.
    Malformed,
}

/// The calls of one connection.
struct Calls<P> {
    cpu: Processor,
    server: Arc<Server>,
    client: ClientAddress,
    outbound: Rc<Outbound>,
    perform: P,
    last_export: LastExport,
    /// Answered at once and not counted yet.
    together: Together,
}

impl<P: AsyncFn(Call) -> Results + Clone + 'static> Calls<P> {
    fn recorded(&self, program: Program, procedure: u32, arguments: &[u8]) -> Recorded {
        let with = (&self.last_export, &*self.server, &**self.outbound.tally());
        Recorded::of(program, procedure, arguments, self.cpu.job(), with)
    }

    fn call(&self, head: CallHead, arguments: Vec<u8>, payload: Option<Payload>) -> Call {
        let CallHead { xid, program, procedure, credentials, len: _ } = head;
        let (cpu, server, client) = (self.cpu.clone(), Arc::clone(&self.server), self.client);
        let (job, connection) = (cpu.job(), self.outbound.tally().number());
        Call { cpu, server, client, connection, credentials, program, procedure, xid, arguments, payload, job }
    }

    /// Answers one of the calls that come most often at once, if it can.
    ///
    /// # Errors
    /// It is another, or must go the general way: nothing has been done but to note when it began, if so.
    fn answer_hot(&self, head: &CallHead, arguments: &[u8]) -> Result<(), Option<Timed>> {
        if !self.cpu.switches().hottest_first || !hot::is_hot(head) {
            return Err(None);
        }
        let (cpu, recorded) = (&self.cpu, self.recorded(head.program, head.procedure, arguments));
        let began = recorded.begin_next(cpu);
        let asker = hot::Asker { cpu, server: &self.server, client: self.client, outbound: &self.outbound };
        let Some(reply) = asker.answer(head, arguments) else { return Err(Some(began)) };
        self.outbound.push(reply);
        recorded.end_with(cpu, &self.together, began);
        Ok(())
    }

    /// What was answered at once leaves: something else is done or awaited now.
    fn end_hot(&self) {
        self.cpu.end_together(&self.together);
    }

    /// Does a call; its reply goes out when it is done. `began`: when it did, if that was noted.
    async fn start(&self, call: Call, permit: Option<EdgePermit>, release: Release, began: Option<Timed>) {
        let (outbound, perform, xid) = (Rc::clone(&self.outbound), self.perform.clone(), call.xid);
        let (cpu, recorded) = (self.cpu.clone(), self.recorded(call.program, call.procedure, &call.arguments));
        let began = began.unwrap_or_else(|| recorded.begin(&cpu));
        let mut work = Box::pin(async move {
            let results = perform(call).await;
            recorded.end(&cpu, began, status_of(&results));
            drop(permit);
            match rpc::reply(xid, results) {
                Some(reply) => outbound.push(Reply { release, ..reply }),
                None => outbound.release(release),
            }
        });
        // Often the caches have it all: a task is made only when they do not.
        let done = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await;
        if !done {
            self.cpu.spawn(work);
        }
    }
}

/// A WRITE whose data comes in.
struct OpenWrite {
    call: Call,
    /// Where the data begins in the first frame.
    start: usize,
    /// Bytes of data that are there.
    filled: usize,
    len: u32,
    /// Does it come in one fragment?
    whole: bool,
    frames: Frames,
    /// Until all of the data is there.
    arrival: Option<ArrivalPermit>,
    permit: Option<EdgePermit>,
    release: Release,
}

/// The receiving side of a connection.
struct Transmission<'a, P> {
    calls: Calls<P>,
    callers: Callers,
    /// Of all calls, if the host says who calls.
    credentials: Option<Credentials>,
    inbound: Inbound<'a>,
    incoming: Incoming,
    open: Option<OpenWrite>,
    /// How long the last WRITE was up to its data, mark counted, and its padding: the next will be much the same. Bytes.
    head_bytes: usize,
    padding: usize,
    /// How long the record that has begun may still take.
    patience: Duration,
    /// Calls that were begun since this task waited for something to come.
    in_one_go: u32,
}

impl<P: AsyncFn(Call) -> Results + Clone + 'static> Transmission<'_, P> {
    async fn run(mut self) -> End {
        // However it ends: what is under way is finished first.
        let end = self.calls().await.unwrap_or(End::Gone);
        self.calls.end_hot();
        let outbound = &self.calls.outbound;
        if let Some(open) = self.open.take() {
            // The client went in the middle of it: nobody waits for a reply.
            outbound.release(open.release);
        }
        outbound.until_idle().await;
        outbound.end();
        end
    }

    /// Takes calls until the end of the stream, garbage, or the server's end.
    async fn calls(&mut self) -> Result<End, Gone> {
        loop {
            if self.incoming.taken() == 0 {
                self.patience = self.calls.server.limits().stall_timeout;
                if self.calls.server.service().is_stopping() {
                    return Ok(End::Gone);
                }
            }
            match self.incoming.next() {
                Next::Bytes(most) => {
                    let scatter = &mut self.inbound.scatter;
                    if self.incoming.give(most, |to| scatter.take(to)) == 0 && !self.receive().await? {
                        return Ok(End::Gone);
                    }
                }
                Next::Call(head, arguments) => {
                    let head = self.identified(head);
                    self.take_turns().await;
                    self.callers.work_for(&self.calls.cpu, &head.credentials, &self.calls.outbound);
                    self.begin_call(head, arguments).await;
                }
                Next::Write { head, arguments, shape, whole } => {
                    let head = self.identified(head);
                    self.take_turns().await;
                    self.callers.work_for(&self.calls.cpu, &head.credentials, &self.calls.outbound);
                    self.begin_write(head, arguments, shape, whole).await;
                }
                Next::Data(len) => self.data(len).await?,
                Next::DataEnd => self.end_write().await,
                Next::Refuse(reply) => self.refuse(reply).await,
                Next::Skip(len) => {
                    let passed = self.inbound.scatter.skip(len);
                    self.incoming.pass(passed);
                    if passed == 0 && !self.receive().await? {
                        return Ok(End::Gone);
                    }
                }
                Next::Broken => return Ok(End::Malformed),
            }
            if self.calls.outbound.is_broken() {
                return Err(Gone);
            }
        }
    }

    /// A call by who it is.
    fn identified(&self, mut head: CallHead) -> CallHead {
        if let Some(credentials) = &self.credentials {
            head.credentials.clone_from(credentials);
        }
        head
    }

    /// Waits until a request more may be under way, with so much payload. `keeps`: as for [`Outbound::admit`].
    async fn admit(&self, bytes: u64, keeps: Keeps) -> Release {
        let cpu = &self.calls.cpu;
        cpu.count_request();
        self.calls.outbound.admit(bytes, keeps, cpu.kernel().cache_blocks()).await;
        Release { requests: 1, bytes }
    }

    /// Without `look_ahead` the dispatcher has its turn before every call, else before one now and then (OLTP-6).
    async fn take_turns(&mut self) {
        self.in_one_go += 1;
        if !self.calls.cpu.switches().look_ahead || self.in_one_go > self.calls.cpu.look_ahead_max() {
            self.in_one_go = 1;
            self.calls.end_hot();
            self.calls.cpu.yield_now().await;
        }
    }

    async fn begin_call(&mut self, head: CallHead, arguments: Vec<u8>) {
        self.inbound.scatter.on_other();
        let began = match self.calls.answer_hot(&head, &arguments) {
            Ok(()) => return self.incoming.reuse(arguments),
            Err(began) => began,
        };
        self.calls.end_hot();
        let most = u64::from(transfer_bytes_max(self.calls.cpu.kernel()));
        let bytes = shape::results_bytes(head.program, head.procedure, &arguments).min(most);
        // Of what has a length, only READ's results are in frames.
        let reads = bytes > 0 && head.procedure == shape::READ;
        let release = self.admit(bytes, if reads { Keeps::Frames } else { Keeps::Nothing }).await;
        self.calls.start(self.calls.call(head, arguments, None), None, release, began).await;
    }

    async fn refuse(&mut self, header: Header) {
        self.calls.end_hot();
        let release = match self.open.take() {
            Some(open) => open.release,
            None => self.admit(0, Keeps::Nothing).await,
        };
        self.inbound.scatter.on_other();
        self.calls.outbound.push(Reply { header, release, ..Reply::default() });
    }

    /// Gets ready for the data of a WRITE.
    async fn begin_write(&mut self, head: CallHead, arguments: Vec<u8>, shape: WriteShape, whole: bool) {
        self.calls.end_hot();
        let (start, len) = ((shape.offset % FRAME_BYTES as u64) as usize, shape.data_len as usize);
        let release = self.admit(len as u64, Keeps::Nothing).await;
        let count = if len > 0 { (start + len).div_ceil(FRAME_BYTES) } else { 0 };
        let cpu = &self.calls.cpu;
        let mut permit = None;
        if start % FRAME_BYTES != 0 || (start + len) % FRAME_BYTES != 0 {
            // The missing parts of its first and last block may have to be read.
            let service = self.calls.server.service();
            permit = Some(EdgePermit::take(service, count, cpu.kernel().cache_blocks()).await);
        }
        let mut frames = Frames::new();
        if whole {
            (self.head_bytes, self.padding) = (self.incoming.taken(), len.next_multiple_of(4) - len);
        } else {
            self.inbound.scatter.on_other();
        }
        let mut arrival = None;
        if len > 0 && !(whole && self.inbound.scatter.is_predicted(start, len)) {
            if !(whole && self.inbound.scatter.has(len)) {
                let service = self.calls.server.service();
                arrival = Some(ArrivalPermit::take(service, count, cpu.kernel().cache_blocks()).await);
            }
            frames = cpu.kernel().allocate(cpu, count).await;
        }
        let payload = Payload { frames: Frames::new(), start, len: shape.data_len };
        let call = self.calls.call(head, arguments, Some(payload));
        let len = shape.data_len;
        self.open = Some(OpenWrite { call, start, filled: 0, len, whole, frames, arrival, permit, release });
    }

    /// Takes in `len` bytes of data that lie in one fragment.
    async fn data(&mut self, len: usize) -> Result<(), Gone> {
        let open = self.open.as_mut().ok_or(Gone)?;
        let frames = std::mem::take(&mut open.frames);
        if open.whole {
            self.inbound.scatter.begin_payload(open.start, len, frames);
        } else {
            self.inbound.scatter.fill(open.start + open.filled, len, frames);
        }
        loop {
            if let Some(frames) = self.inbound.scatter.payload() {
                let open = self.open.as_mut().ok_or(Gone)?;
                open.frames = frames;
                open.filled += len;
                self.incoming.pass(len);
                return Ok(());
            }
            if !self.receive().await? {
                return Err(Gone);
            }
        }
    }

    async fn end_write(&mut self) {
        let Some(open) = self.open.take() else { return };
        let OpenWrite { mut call, start, len, frames, arrival, permit, release, .. } = open;
        drop(arrival);
        call.payload = Some(Payload { frames, start, len });
        self.calls.start(call, permit, release, None).await;
    }

    /// Receives what has arrived; false at the end of the stream, and when the server ends between two records.
    async fn receive(&mut self) -> Result<bool, Gone> {
        self.in_one_go = 0;
        self.calls.end_hot();
        let is_within = self.incoming.taken() > 0;
        let wait = if is_within {
            // A record has its time as a whole, or a byte now and then would keep it for ever.
            let keeps = if self.incoming.is_at_rest() { Keeps::Nothing } else { Keeps::Frames };
            Wait::Rest(self.patience, keeps)
        } else {
            Wait::Next(Some(self.calls.server.limits().idle_timeout))
        };
        let since = self.calls.cpu.now();
        let more = self.inbound.receive(wait, self.headers()).await?;
        if is_within {
            self.patience = self.patience.saturating_sub(self.calls.cpu.now().since(since));
        }
        Ok(more)
    }

    /// What lies before the data of the WRITEs that may come next.
    fn headers(&self) -> Headers {
        let first = if self.open.is_some() {
            self.padding + self.head_bytes
        } else if self.incoming.is_at_rest() {
            self.incoming.left() + self.head_bytes
        } else {
            self.head_bytes.saturating_sub(self.incoming.taken())
        };
        Headers { first: first.max(HEAD_BYTES_MIN), each: self.padding + self.head_bytes }
    }
}
