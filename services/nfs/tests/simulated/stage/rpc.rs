//! Calls over several connections, some of them sent more than once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use kernel::Processor;
use kernel::connection::{receive_exact, send_all};
use kernel::wait::WaitList;
use machine::Connection;
use policy::unit::Instant;

use super::{PORT, Route};
use testkit::random::Random;

/// Retransmission timeout.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often clients check their timeouts.
const TICK: Duration = Duration::from_millis(20);
const LINKS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// One client's calls and replies, on all of its connections.
pub struct Book {
    pub cpu: Processor,
    route: Route,
    over: Rc<Cell<bool>>,
    links: RefCell<Vec<Rc<Link>>>,
    /// Received replies, by their number.
    answers: RefCell<BTreeMap<u32, Vec<u8>>>,
    /// Numbers of calls whose second reply, if any, must equal the first.
    once: RefCell<BTreeMap<u32, Option<Vec<u8>>>>,
    changed: WaitList,
    next: Cell<u32>,
    /// Calls in flight, and whether a task checks their timeouts.
    waiting: Cell<usize>,
    ticking: Cell<bool>,
    random: RefCell<Random>,
    /// Per mille of calls that are sent again before an answer can arrive, on another connection.
    pub repeats: Cell<u64>,
}

impl Book {
    pub fn new(cpu: Processor, route: Route, over: Rc<Cell<bool>>, seed: u64) -> Rc<Book> {
        let no = u64::from(route.no);
        let start = route.world.now().ns() as u32 ^ (no as u32) << 24;
        Rc::new(Book {
            cpu,
            over,
            links: RefCell::default(),
            answers: RefCell::default(),
            once: RefCell::default(),
            changed: WaitList::default(),
            next: Cell::new(start),
            waiting: Cell::new(0),
            ticking: Cell::new(false),
            random: RefCell::new(Random(seed.wrapping_mul(31) ^ no ^ route.world.now().ns())),
            repeats: Cell::new(0),
            route,
        })
    }

    /// Calls a procedure; returns its results. `body`: what follows the number. `once`: it must not be done twice.
    pub async fn call(self: &Rc<Self>, body: &[u8], once: bool) -> Result<Vec<u8>, Gone> {
        if self.over.get() {
            return Err(Gone);
        }
        let xid = self.next.replace(self.next.get().wrapping_add(1));
        let message = [&xid.to_be_bytes(), body].concat();
        if once {
            self.once.borrow_mut().insert(xid, None);
        }
        self.waiting.set(self.waiting.get() + 1);
        if !self.ticking.replace(true) {
            self.tick();
        }
        let answer = self.until_answered(xid, &message).await;
        self.waiting.set(self.waiting.get() - 1);
        results(&answer?)
    }

    async fn until_answered(self: &Rc<Self>, xid: u32, message: &[u8]) -> Result<Vec<u8>, Gone> {
        let mut impatient = self.chance(self.repeats.get());
        loop {
            let link = self.link()?;
            link.send(message);
            if impatient {
                // Much earlier than any timeout, as after a network failure.
                impatient = false;
                let pause_us = self.random.borrow_mut().below(3000);
                self.cpu.sleep(Duration::from_micros(pause_us)).await;
                if !self.answers.borrow().contains_key(&xid) {
                    link.hang_up();
                    continue;
                }
            }
            let deadline = self.cpu.now() + PATIENCE;
            if let Some(answer) = self.wait(xid, &link, deadline).await {
                return Ok(answer);
            }
            // On the same connection, the number would be a new call once this one is answered.
            link.hang_up();
        }
    }

    /// The answer; `None` on a timeout or when the connection is gone.
    async fn wait(&self, xid: u32, link: &Link, deadline: Instant) -> Option<Vec<u8>> {
        let look = || {
            if let Some(answer) = self.answers.borrow_mut().remove(&xid) {
                return Some(Some(answer));
            }
            (link.gone.get() || self.cpu.now() >= deadline).then_some(None)
        };
        self.changed.until(look).await
    }

    fn link(self: &Rc<Self>) -> Result<Rc<Link>, Gone> {
        if self.over.get() {
            return Err(Gone);
        }
        let mut links = self.links.borrow_mut();
        links.retain(|link| !link.gone.get());
        if links.len() < LINKS {
            let Route { world, from, to, .. } = &self.route;
            let connection = world.connect(*from, *to, PORT).map_err(|_| Gone)?;
            links.push(Link::start(self, connection));
        }
        let which = self.random.borrow_mut().below(links.len() as u64) as usize;
        Ok(Rc::clone(&links[which]))
    }

    pub fn hang_up(&self) {
        self.links.borrow_mut().drain(..).for_each(|link| link.hang_up());
    }

    fn chance(&self, permille: u64) -> bool {
        self.random.borrow_mut().chance(permille)
    }

    fn tick(self: &Rc<Self>) {
        let book = Rc::clone(self);
        self.cpu.spawn(async move {
            while book.waiting.get() > 0 {
                book.cpu.sleep(TICK).await;
                book.changed.wake_all();
            }
            book.ticking.set(false);
        });
    }

    fn take(&self, reply: Vec<u8>) {
        let xid = u32::from_be_bytes(reply[..4].try_into().expect("4 bytes"));
        let mut once = self.once.borrow_mut();
        match once.get_mut(&xid) {
            Some(Some(first)) => assert!(*first == reply, "the call was done twice: {first:02x?}, {reply:02x?}"),
            Some(first) => *first = Some(reply.clone()),
            None => {}
        }
        self.answers.borrow_mut().entry(xid).or_insert(reply);
        self.changed.wake_all();
    }
}

/// A reply, with its number.
pub async fn receive_record(cpu: &Processor, connection: Connection) -> Result<Vec<u8>, Gone> {
    let mark = receive_exact(cpu, connection, 4).await.map_err(|_| Gone)?;
    let mark = u32::from_be_bytes(mark.try_into().expect("4 bytes"));
    assert!(mark >> 31 == 1, "replies have one fragment");
    receive_exact(cpu, connection, (mark & !(1 << 31)) as usize).await.map_err(|_| Gone)
}

/// The results of a reply to an accepted call.
fn results(reply: &[u8]) -> Result<Vec<u8>, Gone> {
    let head: Vec<u32> =
        reply[4..24].chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes"))).collect();
    assert_eq!(head, [1, 0, 0, 0, 0], "REPLY, accepted, no verifier, success");
    Ok(reply[24..].to_vec())
}

pub struct Link {
    cpu: Processor,
    connection: Connection,
    outgoing: RefCell<Vec<u8>>,
    more: WaitList,
    gone: Cell<bool>,
}

impl Link {
    fn start(book: &Rc<Book>, connection: Connection) -> Rc<Link> {
        let cpu = book.cpu.clone();
        let link = Link {
            cpu: cpu.clone(),
            connection,
            outgoing: RefCell::default(),
            more: WaitList::default(),
            gone: Cell::new(false),
        };
        let link = Rc::new(link);
        let (writer, reader, book) = (Rc::clone(&link), Rc::clone(&link), Rc::clone(book));
        cpu.spawn(async move { writer.write().await });
        cpu.spawn(async move {
            while let Ok(reply) = reader.next().await {
                book.take(reply);
            }
            reader.gone.set(true);
            reader.more.wake_all();
            book.changed.wake_all();
            reader.cpu.close(reader.connection);
        });
        link
    }

    fn send(&self, message: &[u8]) {
        let mut outgoing = self.outgoing.borrow_mut();
        // Clients send one, but may send more.
        let cut = if message.len().is_multiple_of(5) { message.len() / 3 } else { 0 };
        if cut > 0 {
            outgoing.extend_from_slice(&(cut as u32).to_be_bytes());
            outgoing.extend_from_slice(&message[..cut]);
        }
        outgoing.extend_from_slice(&((message.len() - cut) as u32 | 1 << 31).to_be_bytes());
        outgoing.extend_from_slice(&message[cut..]);
        drop(outgoing);
        self.more.wake_all();
    }

    async fn write(&self) {
        loop {
            let take = || {
                let bytes = std::mem::take(&mut *self.outgoing.borrow_mut());
                (self.gone.get() || !bytes.is_empty()).then_some(bytes)
            };
            let bytes = self.more.until(take).await;
            if self.gone.get() || send_all(&self.cpu, self.connection, bytes).await.is_err() {
                return;
            }
        }
    }

    async fn next(&self) -> Result<Vec<u8>, Gone> {
        let reply = receive_record(&self.cpu, self.connection).await?;
        if self.gone.get() { Err(Gone) } else { Ok(reply) }
    }

    /// Replies are ignored from now on.
    fn hang_up(&self) {
        if !self.gone.replace(true) {
            self.more.wake_all();
            self.cpu.shutdown(self.connection);
        }
    }
}
