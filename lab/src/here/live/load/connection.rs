//! One connection: so many requests under way, until the time is over.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{Action, Asks, Clients, Order, Outcome, Protocol, Sends, Stream, refused};

/// What is received at once. Bytes.
const RECEIVED_MAX: usize = 256 << 10;

/// Until when it goes on.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    /// From here on it is measured.
    pub(super) warm: Instant,
    /// To here; without one, until it is over for others.
    pub(super) end: Option<Instant>,
    pub(super) is_over: &'a AtomicBool,
    /// Somebody wants all of it to end.
    pub(super) is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Told<'_> {
    fn is_over(&self, now: Instant) -> bool {
        let over = self.end.map_or_else(|| self.is_over.load(Ordering::Relaxed), |end| now >= end);
        over || (self.is_interrupted)()
    }
}

pub(super) struct Connection {
    stream: Box<dyn Stream>,
    protocol: Box<dyn Protocol>,
    plan: Plan,
    slots: Vec<Action>,
    started: Vec<Instant>,
    in_flight: usize,
    sends: Sends,
    out: Vec<u8>,
    /// Of a reply, as far as it has come.
    head: Vec<u8>,
    /// What is left of the reply to this slot.
    rest: Option<(u32, u64)>,
    /// Slots that were answered by what was received last.
    answered: Vec<u32>,
}

impl Connection {
    /// The `number`-th of these clients.
    pub(super) fn new(stream: Box<dyn Stream>, protocol: Box<dyn Protocol>, of: &Clients, number: u32) -> Self {
        Connection {
            stream,
            protocol,
            plan: Plan::new(of, number),
            slots: vec![Action::Flush; of.depth as usize],
            started: vec![Instant::now(); of.depth as usize],
            in_flight: 0,
            sends: of.sends,
            out: Vec::new(),
            head: Vec::new(),
            rest: None,
            answered: Vec::new(),
        }
    }

    /// Goes on until it is over. What is under way then is waited for.
    pub(super) fn run(&mut self, told: &Told<'_>) -> io::Result<Outcome> {
        let mut outcome = Outcome::default();
        let (mut began, mut counted, mut ended) = (None, 0_u64, false);
        let mut buffer = vec![0; RECEIVED_MAX];
        let now = Instant::now();
        (0..self.slots.len() as u32).for_each(|slot| self.ask(slot, now));
        self.send()?;
        while self.in_flight > 0 {
            let now = self.receive(&mut buffer)?;
            // Each measures something, however slow it is.
            let has_enough = counted > 0 || told.end.is_none() || (told.is_interrupted)();
            let is_over = has_enough && told.is_over(now);
            for index in 0..self.answered.len() {
                let slot = self.answered[index];
                let action = self.slots[slot as usize];
                let flush = self.plan.flush_after(action);
                if let (Some(flush), false) = (flush, is_over) {
                    self.ask_for(slot, flush);
                    continue;
                }
                outcome.all += 1;
                if began.is_some() && !ended {
                    counted += 1;
                    outcome.latencies.record((now - self.started[slot as usize]).as_nanos() as u64);
                }
                if !is_over {
                    let now = self.work(now);
                    self.ask(slot, now);
                    if self.sends != Sends::Together {
                        self.send()?;
                    }
                }
            }
            match began {
                None if now >= told.warm => began = Some(now),
                Some(began) if is_over && !ended => {
                    ended = true;
                    outcome.rate = counted as f64 / (now - began).as_secs_f64().max(1e-9);
                }
                _ => {}
            }
            self.send()?;
        }
        Ok(outcome)
    }

    /// Has so many requests answered.
    pub(super) fn run_for(&mut self, mut requests: u64) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVED_MAX];
        let now = Instant::now();
        for slot in 0..self.slots.len() as u32 {
            if requests > 0 {
                self.ask(slot, now);
                requests -= 1;
            }
        }
        self.send()?;
        while self.in_flight > 0 {
            let now = self.receive(&mut buffer)?;
            for index in 0..self.answered.len() {
                if requests > 0 {
                    self.ask(self.answered[index], now);
                    requests -= 1;
                }
            }
            self.send()?;
        }
        Ok(())
    }

    /// Has what was written made durable.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVED_MAX];
        self.ask_for(0, Action::Flush);
        self.send()?;
        while self.in_flight > 0 {
            self.receive(&mut buffer)?;
        }
        Ok(())
    }

    /// Does what a client does with what has come; gives the time then.
    fn work(&self, now: Instant) -> Instant {
        let Sends::Singly { work } = self.sends else { return now };
        let start = Instant::now();
        while start.elapsed() < work {
            std::hint::spin_loop();
        }
        start + work
    }

    fn ask(&mut self, slot: u32, now: Instant) {
        self.started[slot as usize] = now;
        let action = self.plan.next();
        self.ask_for(slot, action);
    }

    fn ask_for(&mut self, slot: u32, action: Action) {
        self.slots[slot as usize] = action;
        self.protocol.request(slot, action, &mut self.out);
        self.in_flight += 1;
    }

    fn send(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    /// Receives once, and notes which slots are answered. Gives the time then.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Instant> {
        self.answered.clear();
        let received = match self.stream.read(buffer) {
            Ok(0) => return Err(refused("the server has closed a connection")),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Instant::now()),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let mut input = &buffer[..received];
        loop {
            if let Some((slot, rest)) = self.rest {
                let taken = rest.min(input.len() as u64);
                input = &input[taken as usize..];
                if taken < rest {
                    self.rest = Some((slot, rest - taken));
                    return Ok(now);
                }
                self.rest = None;
                self.in_flight -= 1;
                self.answered.push(slot);
            }
            let missing = self.protocol.head_bytes() - self.head.len();
            let (head, behind) = input.split_at(missing.min(input.len()));
            self.head.extend_from_slice(head);
            input = behind;
            if head.len() < missing {
                return Ok(now);
            }
            let reply = self.protocol.reply(&self.head, &self.slots)?;
            self.head.clear();
            self.rest = Some((reply.slot, reply.rest));
        }
    }
}

/// What is asked for next.
struct Plan {
    asks: Asks,
    order: Order,
    bytes: u32,
    from: u64,
    places: u64,
    number: u64,
    state: u64,
    writes: u32,
}

impl Plan {
    fn new(of: &Clients, number: u32) -> Self {
        let places = (of.region / u64::from(of.bytes)).max(1);
        let start = places * u64::from(number) / u64::from(of.connections.max(1));
        // Any odd number: each connection has its own order, the same in each run.
        let state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * u64::from(number) + 1);
        Plan { asks: of.asks, order: of.order, bytes: of.bytes, from: of.from, places, number: start, state, writes: 0 }
    }

    fn next(&mut self) -> Action {
        self.number += 1;
        if self.asks == Asks::ReadsAndAttributes && self.number.is_multiple_of(2) {
            return Action::Attributes;
        }
        let place = match self.order {
            Order::Sequential => self.number - 1,
            Order::Random => {
                // xorshift64 (Marsaglia 2003).
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                self.state >> 20
            }
        };
        let (at, len) = (self.from + place % self.places * u64::from(self.bytes), self.bytes);
        match self.asks {
            Asks::Writes { .. } => Action::Write { at, len },
            Asks::Reads | Asks::ReadsAndAttributes => Action::Read { at, len },
        }
    }

    /// The flush that belongs to what was just answered, if one does.
    fn flush_after(&mut self, answered: Action) -> Option<Action> {
        match (self.asks, answered) {
            (Asks::Writes { a_flush }, Action::Write { .. }) if a_flush > 0 => {
                self.writes += 1;
                self.writes.is_multiple_of(a_flush).then_some(Action::Flush)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Speaks;
    use super::*;

    fn clients(asks: Asks, order: Order) -> Clients {
        let protocol = Speaks::Nbd("disk");
        let (from, region, sends) = (8192, 16384, Sends::Together);
        Clients { protocol, asks, bytes: 4096, order, from, region, connections: 2, depth: 1, sends }
    }

    #[test]
    fn in_order_each_connection_begins_in_its_part_and_all_stay_in_the_region() {
        let mut plan = Plan::new(&clients(Asks::Reads, Order::Sequential), 1);
        let at: Vec<u64> = (0..4).map(|_| if let Action::Read { at, .. } = plan.next() { at } else { 0 }).collect();
        assert_eq!(at, [16384, 20480, 8192, 12288]);
        let mut plan = Plan::new(&clients(Asks::Reads, Order::Random), 0);
        for _ in 0..100 {
            let Action::Read { at, len } = plan.next() else { panic!("a read") };
            assert!((8192..24576).contains(&at) && at.is_multiple_of(4096) && len == 4096);
        }
    }

    #[test]
    fn a_flush_belongs_to_every_so_many_th_write() {
        let mut plan = Plan::new(&clients(Asks::Writes { a_flush: 2 }, Order::Sequential), 0);
        let write = plan.next();
        assert_eq!([plan.flush_after(write), plan.flush_after(write)], [None, Some(Action::Flush)]);
        assert_eq!(plan.flush_after(Action::Flush), None);
        let mut plan = Plan::new(&clients(Asks::Writes { a_flush: 0 }, Order::Sequential), 0);
        assert_eq!(plan.flush_after(write), None);
    }
}
