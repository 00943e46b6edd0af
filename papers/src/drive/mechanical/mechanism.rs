//! A mechanical disk in operation: the arm's place, the buffer's content, the time of the next command.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use policy::unit::{ByteRange, Instant};

use super::super::{Access, Timing};
use super::{Mechanical, Place};

/// Limit of the model by sectors; the rest of a longer command (zeroing all of a disk) is modelled by tracks.
const BY_SECTOR_BYTES: u64 = 16 << 20;

/// A mechanical disk in operation. Commands are served one after another.
#[derive(Clone, Debug)]
pub struct Mechanism {
    model: Mechanical,
    /// More than the model's when the disk is stretched to a larger size.
    cylinders: u64,
    rotation_ns: u64,
    sector_bus_ns: u64,
    capacity: usize,
    arm: Place,
    stream: Option<Stream>,
    idle_ns: u64,
}

/// A sequence of sectors in the buffer, and being read into it.
#[derive(Clone, Debug)]
struct Stream {
    /// The first sector of the two lists.
    first: u64,
    /// When each sector from `first` on was in the buffer.
    read_ns: VecDeque<u64>,
    /// When each sector from `first` on was passed to the host or skipped: its place in the buffer is free.
    freed_ns: VecDeque<u64>,
    /// When the head can continue.
    ready_ns: u64,
}

#[derive(Default)]
struct Parts {
    seek_ns: u64,
    rotation_ns: u64,
}

impl Mechanism {
    pub fn new(model: Mechanical) -> Self {
        Self::stretched(model, 0)
    }

    /// A disk that holds at least `size` bytes, with additional cylinders if needed.
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

    /// Starts a command issued at `now`, after the commands before it.
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

    /// A command without data, issued at `now`.
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

    /// The stream that continues with `start`: the buffered one, if it has that sector or will have it soon; else a new
    /// one, after a seek.
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

    /// What was read ahead until `now`; moves the arm accordingly.
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

    /// When the stream's next sector passes the head; `None` while the buffer has no place for it.
    fn next_start(&self, stream: &Stream) -> Option<u64> {
        let place = self.model.place(stream.next());
        // The place of the sector one buffer before this one.
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

    /// Writes each sector when it passes, if its data have arrived; else a rotation later. So a bus slower than the
    /// medium costs rotations, but never stalls for long.
    fn write(&mut self, now: u64, sectors: Range<u64>, parts: &mut Parts) -> u64 {
        // The write takes the buffer.
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

    /// Erases, writes, and verifies if the disk does so, as many sectors at a time as the buffer holds; each pass
    /// begins when the first of them returns under the head. The data arrive during the erase pass.
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

    /// Moves the arm to a sector's track; returns when it arrives.
    fn seek(&mut self, now: u64, sector: u64, parts: &mut Parts) -> u64 {
        let mut then = now;
        self.go(sector, &mut then);
        parts.seek_ns += then - now;
        then
    }

    /// Moves the arm to a sector's track, and adds the time.
    fn go(&mut self, sector: u64, time_ns: &mut u64) -> Place {
        let place = self.model.place(sector);
        *time_ns += self.switch(place);
        self.arm = place;
        place
    }

    /// Time to move from the arm's place to that track.
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

    /// When the sector at that slot of the rotation begins to pass, at or after `now`.
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
    fn next(&self) -> u64 {
        self.first + self.read_ns.len() as u64
    }

    /// Sectors before this one were passed to the host or skipped.
    fn given(&self) -> u64 {
        self.first + self.freed_ns.len() as u64
    }

    /// Drops entries that no longer decide about the place of a future sector.
    fn forget(&mut self, capacity: usize) {
        while self.freed_ns.len() > capacity && self.read_ns.len() > capacity {
            self.freed_ns.pop_front();
            self.read_ns.pop_front();
            self.first += 1;
        }
    }
}

/// Data of a write as they arrive over the bus: ahead of the head by at most the buffer's capacity.
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

    /// When the data of a sector have arrived. `written` has those one buffer before it.
    fn arrival(&mut self, index: usize, written: &[u64]) -> u64 {
        while self.arrived.len() <= index {
            let room = self.arrived.len().checked_sub(self.capacity).map_or(0, |before| written[before]);
            self.bus = self.bus.max(room) + self.sector_ns;
            self.arrived.push(self.bus);
        }
        self.arrived[index]
    }
}
