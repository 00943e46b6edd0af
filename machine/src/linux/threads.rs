//! The machine without io_uring: sockets by epoll, files by a pool of threads.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::credentials;
use super::epoll::Epoll;
use super::net;
use super::perform;
use super::pool::Inbox;
use super::task::{Step, Task};
use super::tree;
use super::{Shared, park_time, pause};
use crate::mapping::Faults;
use crate::{
    Completion, Connection, Doorbell, Errno, Listener, Machine, Op, Park, Region, RegionId, TickSource, Token,
};
use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};

/// One processor of the thread engine.
pub struct Threads {
    processor: ProcessorId,
    shared: Arc<Shared>,
    bell: Arc<Bell>,
    inbox: Arc<Inbox>,
    /// Calls submitted to the pool and not collected yet.
    offloaded: usize,
    sockets: Sockets,
    /// Operations that ended when they were started.
    finished: Vec<Completion>,
    /// System calls since the last query, other than those of sockets.
    entries: u64,
    /// Why it is not io_uring.
    reason: Option<String>,
}

impl Threads {
    pub(super) fn new(processor: ProcessorId, shared: Arc<Shared>, reason: Option<String>) -> Result<Self, Errno> {
        // Without pool threads, this one makes calls on files.
        credentials::drop_resource_capability();
        let bell = Arc::new(Bell::new()?);
        let epoll = Epoll::new()?;
        epoll.watch(bell.event())?;
        Ok(Threads {
            processor,
            shared,
            inbox: Inbox::new(Arc::clone(&bell)),
            offloaded: 0,
            sockets: Sockets::new(epoll, Arc::clone(&bell)),
            bell,
            finished: Vec::new(),
            entries: 0,
            reason,
        })
    }

    fn collect(&mut self, slept: bool, done: &mut Vec<Completion>) {
        done.append(&mut self.finished);
        if self.offloaded > 0 {
            self.offloaded -= self.inbox.collect(done);
        }
        self.sockets.try_fresh(done);
        if slept || self.sockets.armed > 0 {
            self.sockets.try_ready(done);
        }
    }
}

impl Machine for Threads {
    fn processor(&self) -> ProcessorId {
        self.processor
    }

    fn tick_source(&self) -> TickSource {
        crate::counter::tick_source()
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    unsafe fn start(&mut self, token: Token, op: Op) {
        if let Some(result) = tree::at_once(&op) {
            self.finished.push(Completion { token, result });
            return;
        }
        let task = match Task::new(token, op) {
            Ok(task) => task,
            Err(errno) => {
                let result = Err(errno);
                self.finished.push(Completion { token, result });
                return;
            }
        };
        match task.socket() {
            Some((fd, events)) => self.sockets.begin(fd, events, task),
            None => {
                self.offloaded += 1;
                self.entries += 1;
                // SAFETY: the caller guarantees the memory until the completion is returned or this machine is dropped,
                // and dropping it abandons its jobs in the pool.
                unsafe { self.shared.pool.submit(task, &self.inbox) };
            }
        }
    }

    fn enter(&mut self, park: Park, done: &mut Vec<Completion>) {
        let before = done.len();
        let mut slept = false;
        loop {
            let rung = self.bell.take();
            self.collect(slept, done);
            if rung || done.len() > before {
                return;
            }
            let Some(time) = park_time(park, self.now()) else {
                return;
            };
            if self.bell.park() {
                self.entries += 1;
                self.sockets.epoll.sleep(time);
                slept = true;
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        pause(&self.shared.clock, time);
    }

    fn acknowledge(&mut self, connection: Connection) {
        net::acknowledge(connection);
    }

    fn shutdown(&mut self, connection: Connection) {
        net::shutdown(connection);
    }

    fn close(&mut self, connection: Connection) {
        self.sockets.forget(connection.0 as RawFd);
        net::close(connection);
    }

    fn cancel_accepts(&mut self, of: Listener) {
        self.finished.extend(self.sockets.cancel(of.0 as RawFd));
    }

    fn cancel_faults(&mut self, of: Faults) {
        self.finished.extend(self.sockets.cancel(of.0 as RawFd));
    }

    fn offer_region(&mut self, _region: Region) -> Result<(), Errno> {
        Ok(())
    }

    fn withdraw_region(&mut self, _region: RegionId) {}

    fn take_kernel_entries(&mut self) -> u64 {
        std::mem::take(&mut self.entries) + std::mem::take(&mut self.sockets.entries) + self.bell.take_writes()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.bell.clone()
    }

    fn time_of_day(&self) -> crate::tree::Time {
        super::time_of_day()
    }

    fn memory(&self) -> MemoryFacts {
        self.shared.memory.read()
    }

    fn describe(&self) -> String {
        let engine = "thread pool for files, epoll for sockets; no registered buffers";
        match &self.reason {
            Some(reason) => format!("{engine} (io_uring: {reason})"),
            None => engine.to_string(),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.pool.abandon(&self.inbox);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// The operations on one socket; in each direction in the order in which they were started.
#[derive(Default)]
struct Socket {
    incoming: VecDeque<Task>,
    outgoing: VecDeque<Task>,
    /// Events for which epoll is armed.
    armed: u32,
    /// It was registered with epoll before.
    known: bool,
}

struct Sockets {
    epoll: Epoll,
    bell: Arc<Bell>,
    by_fd: HashMap<RawFd, Socket>,
    /// Sockets with operations that were not tried yet.
    fresh: Vec<(RawFd, Direction)>,
    armed: usize,
    ready: Vec<(RawFd, u32)>,
    /// System calls since the last query.
    entries: u64,
}

impl Sockets {
    fn new(epoll: Epoll, bell: Arc<Bell>) -> Self {
        Sockets { epoll, bell, by_fd: HashMap::new(), fresh: Vec::new(), armed: 0, ready: Vec::new(), entries: 0 }
    }

    /// Queues an operation; it is tried at the next `enter`.
    fn begin(&mut self, fd: RawFd, events: libc::c_short, task: Task) {
        let socket = self.by_fd.entry(fd).or_default();
        let (queue, direction) = match events {
            libc::POLLOUT => (&mut socket.outgoing, Direction::Out),
            _ => (&mut socket.incoming, Direction::In),
        };
        queue.push_back(task);
        // Others are tried when those before them are complete.
        if queue.len() == 1 {
            self.fresh.push((fd, direction));
        }
    }

    fn try_fresh(&mut self, done: &mut Vec<Completion>) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for (fd, direction) in fresh.drain(..) {
            self.attempt(fd, direction, done);
            self.arm(fd, done);
        }
        self.fresh = fresh;
    }

    /// Tries the operations of sockets that have become ready.
    fn try_ready(&mut self, done: &mut Vec<Completion>) {
        let mut ready = std::mem::take(&mut self.ready);
        self.entries += 1;
        self.epoll.ready(&mut ready);
        let mut is_rung = false;
        for (fd, events) in ready.drain(..) {
            if fd == self.bell.event() {
                is_rung = true;
            } else {
                self.on_ready(fd, events, done);
            }
        }
        self.ready = ready;
        // Once, though it may have been reported more than once: a second time would block.
        if is_rung {
            self.entries += 1;
            self.bell.drain();
        }
    }

    fn on_ready(&mut self, fd: RawFd, events: u32, done: &mut Vec<Completion>) {
        let Some(socket) = self.by_fd.get_mut(&fd) else {
            return;
        };
        self.armed -= usize::from(std::mem::take(&mut socket.armed) != 0);
        let failed = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        if failed || events & libc::EPOLLIN as u32 != 0 {
            self.attempt(fd, Direction::In, done);
        }
        if failed || events & libc::EPOLLOUT as u32 != 0 {
            self.attempt(fd, Direction::Out, done);
        }
        self.arm(fd, done);
    }

    /// Completes as many operations as the socket is ready for.
    fn attempt(&mut self, fd: RawFd, direction: Direction, done: &mut Vec<Completion>) {
        let Some(socket) = self.by_fd.get_mut(&fd) else {
            return;
        };
        let queue = match direction {
            Direction::In => &mut socket.incoming,
            Direction::Out => &mut socket.outgoing,
        };
        while let Some(task) = queue.front_mut() {
            self.entries += 1;
            // SAFETY: the starter of the operation guarantees its memory until the completion is returned.
            let result = unsafe { perform::perform(task) };
            match task.on_result(result) {
                Step::Done(result) => {
                    let token = task.token;
                    done.push(Completion { token, result });
                    queue.pop_front();
                }
                Step::Retry => {}
                Step::Wait(..) => return,
            }
        }
    }

    /// Arms epoll for the queued operations.
    fn arm(&mut self, fd: RawFd, done: &mut Vec<Completion>) {
        let Some(socket) = self.by_fd.get_mut(&fd) else {
            return;
        };
        let mut wanted = 0;
        if !socket.incoming.is_empty() {
            wanted |= libc::EPOLLIN as u32;
        }
        if !socket.outgoing.is_empty() {
            wanted |= libc::EPOLLOUT as u32;
        }
        if wanted & !socket.armed == 0 {
            return;
        }
        self.entries += 1;
        match self.epoll.arm(fd, wanted, socket.known) {
            Ok(()) => {
                self.armed += usize::from(socket.armed == 0);
                socket.armed = wanted;
                socket.known = true;
            }
            Err(errno) => {
                let tasks = socket.incoming.drain(..).chain(socket.outgoing.drain(..));
                done.extend(tasks.map(|task| Completion { token: task.token, result: Err(errno) }));
            }
        }
    }

    /// Ends what waits for a descriptor.
    fn cancel(&mut self, fd: RawFd) -> Vec<Completion> {
        let tasks = self.by_fd.get_mut(&fd).map(|socket| std::mem::take(&mut socket.incoming)).unwrap_or_default();
        self.forget(fd);
        tasks.into_iter().map(|task| Completion { token: task.token, result: Err(Errno::CANCELLED) }).collect()
    }

    fn forget(&mut self, fd: RawFd) {
        if let Some(socket) = self.by_fd.remove(&fd) {
            self.armed -= usize::from(socket.armed != 0);
            if socket.known {
                self.epoll.forget(fd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::Segment;

    /// epoll reports the bell again with each call while it is readable.
    #[test]
    fn a_processor_is_not_blocked_by_a_bell_that_is_rung_beside_many_requests() {
        const CLIENTS: usize = 100;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let (bell, epoll) = (Arc::new(Bell::new().expect("a bell")), Epoll::new().expect("epoll"));
            epoll.watch(bell.event()).expect("watched");
            let mut sockets = Sockets::new(epoll, Arc::clone(&bell));
            let mut memory = [0u8; CLIENTS];
            let mut clients = Vec::new();
            for byte in &mut memory {
                let (client, server) = UnixStream::pair().expect("a pair of sockets");
                let connection = net::adopt_connection(server.into()).expect("adopted");
                let into = [Segment { ptr: byte, len: 1, region: None }].into_iter().collect();
                let Ok(task) = Task::new(Token(0), Op::Receive { connection, into }) else { panic!("a receive") };
                let Some((fd, events)) = task.socket() else { panic!("of a socket") };
                sockets.begin(fd, events, task);
                clients.push(client);
            }
            let mut done = Vec::new();
            sockets.try_fresh(&mut done);
            assert!(done.is_empty() && bell.park(), "nothing has come");
            bell.wake();
            clients.iter_mut().for_each(|client| client.write_all(&[1]).expect("sent"));
            sockets.try_ready(&mut done);
            sender.send(done.len()).expect("waited for");
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(CLIENTS), "it waits for ever");
    }
}
