//! A mechanical disk at work: where the arm is, what is in the buffer, what the next command takes.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use policy::unit::{ByteRange, Instant};

use super::super::{Access, Timing};
use super::{Mechanical, Place};

/// Longer commands (zeroing all of a disk) go sector by sector so far, the rest by what a track takes.
const BY_SECTOR_BYTES: u64 = 16 << 20;

/// A mechanical disk at work. Commands are served one after another.
#[derive(Clone, Debug)]
pub struct Mechanism {
    model: Mechanical,
    /// More than the model's when the disk is stretched to a larger size.
    cylinders: u64,
    rotation_ns: u64,
    sector_bus_ns: u64,
    /// Sectors that the buffer holds.
    capacity: usize,
    arm: Place,
    stream: Option<Stream>,
    idle_ns: u64,
}

/// What is in the buffer of one sequence of sectors, and is read into it.
#[derive(Clone, Debug)]
struct Stream {
    /// The oldest sector that is told of below.
    first: u64,
    /// When each sector from `first` on was in the buffer.
    read_ns: VecDeque<u64>,
    /// When each sector from `first` on was given to the host or passed over: its room in the buffer is free.
    freed_ns: VecDeque<u64>,
    /// When the head can go on.
    ready_ns: u64,
}

/// The parts of one command's time.
#[derive(Default)]
struct Parts {
    seek_ns: u64,
    rotation_ns: u64,
}

impl Mechanism {
    /// A disk at rest, with the arm at the start.
    pub fn new(model: Mechanical) -> Self {
        Self::stretched(model, 0)
    }

    /// A disk that holds at least `size` bytes: with as many more cylinders as that takes.
    pub fn stretched(model: Mechanical, size: u64) -> Self {
        let sector_bytes = u64::from(model.sector_bytes.max(1));
        let cylinder_bytes = model.cylinder_sectors().max(1) * sector_bytes;
        Mechanism {
            cylinders: size.div_ceil(cylinder_bytes).max(u64::from(model.cylinders)),
            rotation_ns: model.rotation().as_nanos() as u64,
            sector_bus_ns: sector_bytes * 1_000_000_000 / model.bus_bytes_per_second.max(1),
            capacity: (u64::from(model.buffer_bytes) / sector_bytes).max(1) as usize,
            arm: model.place(0),
            stream: None,
            idle_ns: 0,
            model,
        }
    }

    /// A command comes at `now`; it is served when those before are done.
    pub fn serve(&mut self, now: Instant, access: Access, range: ByteRange) -> Timing {
        let began = now.ns().max(self.idle_ns);
        let decoded = began + self.model.overhead.as_nanos() as u64;
        let sector_bytes = u64::from(self.model.sector_bytes.max(1));
        let last = range.at.0 + range.len.min(BY_SECTOR_BYTES);
        let sectors = range.at.0 / sector_bytes..last.div_ceil(sector_bytes);
        let mut parts = Parts::default();
        let done = match access {
            _ if sectors.is_empty() => decoded,
            Access::Read => self.read(decoded, sectors, &mut parts),
            Access::Write if self.model.write_passes > 1 => self.write_in_passes(decoded, sectors, &mut parts),
            Access::Write => self.write(decoded, sectors, &mut parts),
        };
        let done = done.saturating_add(self.by_track_ns(access, range.end().0 - last));
        self.idle_ns = done;
        let moved = done - decoded;
        let seek_ns = parts.seek_ns.min(moved);
        let rotation_ns = parts.rotation_ns.min(moved - seek_ns);
        Timing {
            began: Instant::from_ns(began),
            done: Instant::from_ns(done),
            seek: Duration::from_nanos(seek_ns),
            rotation: Duration::from_nanos(rotation_ns),
            transfer: Duration::from_nanos(moved - seek_ns - rotation_ns),
        }
    }

    /// A command without data comes at `now`.
    pub fn serve_without_data(&mut self, now: Instant) -> Timing {
        let began = now.ns().max(self.idle_ns);
        self.idle_ns = began + self.model.overhead.as_nanos() as u64;
        Timing { began: Instant::from_ns(began), done: Instant::from_ns(self.idle_ns), ..Timing::default() }
    }

    fn by_track_ns(&self, access: Access, bytes: u64) -> u64 {
        let Mechanical { sectors_per_track, track_skew, sector_bytes, write_passes, .. } = self.model;
        let slots = u128::from(sectors_per_track + track_skew);
        let passes = if access == Access::Write { u128::from(write_passes.max(1)) } else { 1 };
        let track_bytes = u128::from(sectors_per_track) * u128::from(sector_bytes);
        let rotation = u128::from(self.rotation_ns) * slots / u128::from(sectors_per_track.max(1));
        (u128::from(bytes) * rotation * passes / track_bytes.max(1)) as u64
    }

    fn read(&mut self, now: u64, sectors: Range<u64>, parts: &mut Parts) -> u64 {
        let mut stream = self.stream_at(now, sectors.start, parts);
        let mut bus = now;
        for sector in sectors {
            while stream.next() <= sector {
                let start = self.next_start(&stream).unwrap_or(stream.ready_ns);
                parts.rotation_ns += start.saturating_sub(stream.ready_ns.max(now));
                self.read_one(&mut stream, start);
            }
            let in_buffer = stream.read_ns[(sector - stream.first) as usize];
            bus = bus.max(in_buffer) + self.sector_bus_ns;
            stream.freed_ns.push_back(bus);
        }
        stream.forget(self.capacity);
        self.stream = self.model.read_ahead.then_some(stream);
        bus
    }

    /// The stream that goes on with `start`: the one in the buffer, when it has that or soon will; else a new one,
    /// after a seek.
    fn stream_at(&mut self, now: u64, start: u64, parts: &mut Parts) -> Stream {
        if let Some(mut stream) = self.take_stream(now) {
            let soon = stream.next() + u64::from(self.model.sectors_per_track) / 2;
            let room = stream.given() + self.capacity as u64;
            if (stream.given()..soon.min(room)).contains(&start) {
                let passed = start - stream.given();
                stream.freed_ns.extend((0..passed).map(|_| now));
                return stream;
            }
        }
        let ready_ns = self.seek(now, start, parts);
        Stream { first: start, read_ns: VecDeque::new(), freed_ns: VecDeque::new(), ready_ns }
    }

    /// What was read ahead until `now`, with the arm where that has brought it.
    fn take_stream(&mut self, now: u64) -> Option<Stream> {
        let mut stream = self.stream.take()?;
        while let Some(start) = self.next_start(&stream).filter(|start| *start <= now) {
            if self.model.place(stream.next()).cylinder >= self.cylinders {
                break;
            }
            self.read_one(&mut stream, start);
        }
        Some(stream)
    }

    /// When the stream's next sector passes the head; `None` while there is no room for it in the buffer.
    fn next_start(&self, stream: &Stream) -> Option<u64> {
        let place = self.model.place(stream.next());
        // The room of the sector that lies one buffer before this one.
        let room = match stream.read_ns.len().checked_sub(self.capacity) {
            None => 0,
            Some(before) => *stream.freed_ns.get(before)?,
        };
        Some(self.slot_start(room.max(stream.ready_ns + self.switch(place)), place.slot))
    }

    fn read_one(&mut self, stream: &mut Stream, start: u64) {
        let place = self.model.place(stream.next());
        let read = start + self.slot_len(place.slot);
        stream.read_ns.push_back(read);
        stream.ready_ns = read;
        self.arm = place;
    }

    /// Each sector is written when it passes by, if its data have come; else a rotation later. So a bus slower than the
    /// medium costs rotations, but never stands still for long.
    fn write(&mut self, now: u64, sectors: Range<u64>, parts: &mut Parts) -> u64 {
        // What is in the buffer gives way to what is written.
        let _ = self.take_stream(now);
        let mut ready = self.seek(now, sectors.start, parts);
        let mut incoming = Incoming::new(now, self.sector_bus_ns, self.capacity);
        let mut written: Vec<u64> = Vec::with_capacity((sectors.end - sectors.start) as usize);
        for sector in sectors {
            let place = self.go(sector, &mut ready);
            let arrived = incoming.arrival(written.len(), &written);
            let slot = self.slot_start(ready.max(arrived), place.slot);
            parts.rotation_ns += slot - ready;
            ready = slot + self.slot_len(place.slot);
            written.push(ready);
        }
        ready
    }

    /// Erases, writes, and verifies if it does so, as many sectors at a time as the buffer holds; each pass begins when
    /// the first of them comes round again. While it erases, the data come.
    fn write_in_passes(&mut self, now: u64, sectors: Range<u64>, parts: &mut Parts) -> u64 {
        let _ = self.take_stream(now);
        let (mut ready, mut buffer_free, mut at) = (now, now, sectors.start);
        while at < sectors.end {
            let until = (at + self.capacity as u64).min(sectors.end);
            let arrived = buffer_free + (until - at) * self.sector_bus_ns;
            for pass in 0..self.model.write_passes {
                ready = self.seek(ready, at, parts).max(if pass == 1 { arrived } else { 0 });
                for sector in at..until {
                    let place = self.go(sector, &mut ready);
                    let slot = self.slot_start(ready, place.slot);
                    parts.rotation_ns += slot - ready;
                    ready = slot + self.slot_len(place.slot);
                }
            }
            buffer_free = ready;
            at = until;
        }
        ready
    }

    /// Moves the arm to a sector's track; tells when it is there.
    fn seek(&mut self, now: u64, sector: u64, parts: &mut Parts) -> u64 {
        let mut then = now;
        self.go(sector, &mut then);
        parts.seek_ns += then - now;
        then
    }

    /// Moves the arm to a sector's track, which takes time.
    fn go(&mut self, sector: u64, time_ns: &mut u64) -> Place {
        let place = self.model.place(sector);
        *time_ns += self.switch(place);
        self.arm = place;
        place
    }

    /// What it takes from where the arm is to that track.
    fn switch(&self, to: Place) -> u64 {
        let distance = to.cylinder.abs_diff(self.arm.cylinder);
        if distance > 0 {
            self.model.seek.time(distance, self.cylinders).as_nanos() as u64
        } else if to.head != self.arm.head {
            self.model.head_switch.as_nanos() as u64
        } else {
            0
        }
    }

    /// When the sector at that slot of the rotation begins to pass, at `now` or after it.
    fn slot_start(&self, now: u64, slot: u64) -> u64 {
        let begins = slot * self.rotation_ns / u64::from(self.model.sectors_per_track);
        let passed = now % self.rotation_ns;
        now + (begins + self.rotation_ns - passed) % self.rotation_ns
    }

    fn slot_len(&self, slot: u64) -> u64 {
        let per_track = u64::from(self.model.sectors_per_track);
        (slot + 1) * self.rotation_ns / per_track - slot * self.rotation_ns / per_track
    }
}

impl Stream {
    /// The sector that is read next.
    fn next(&self) -> u64 {
        self.first + self.read_ns.len() as u64
    }

    /// Sectors before this one were given to the host or passed over.
    fn given(&self) -> u64 {
        self.first + self.freed_ns.len() as u64
    }

    /// Forgets what no longer decides about the room of a sector to come.
    fn forget(&mut self, capacity: usize) {
        while self.freed_ns.len() > capacity && self.read_ns.len() > capacity {
            self.freed_ns.pop_front();
            self.read_ns.pop_front();
            self.first += 1;
        }
    }
}

/// Data of a write as they come over the bus: as many ahead of the head as the buffer holds.
struct Incoming {
    arrived: Vec<u64>,
    bus: u64,
    sector_ns: u64,
    capacity: usize,
}

impl Incoming {
    fn new(now: u64, sector_ns: u64, capacity: usize) -> Self {
        Incoming { arrived: Vec::new(), bus: now, sector_ns, capacity }
    }

    /// When the data of a sector are there. Those one buffer before it are in `written`.
    fn arrival(&mut self, index: usize, written: &[u64]) -> u64 {
        while self.arrived.len() <= index {
            let room = self.arrived.len().checked_sub(self.capacity).map_or(0, |before| written[before]);
            self.bus = self.bus.max(room) + self.sector_ns;
            self.arrived.push(self.bus);
        }
        self.arrived[index]
    }
}
