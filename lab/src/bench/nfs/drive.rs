//! Drives a load: one thread, any number of connections, on each as many requests in flight as were asked for.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use nfs3_types::nfs3::{
    COMMIT3res, CREATE3args, CREATE3res, NFS_PROGRAM, Nfs3Option, Nfs3Result, REMOVE3args, REMOVE3res, WRITE3res,
    createhow3, diropargs3, nfs_fh3, nfsstat3, post_op_attr, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::{Pack, Unpack};

use super::connection::Connection;
use super::epoll::Epoll;
use super::files;
use super::load::{Length, Load, Operation, Outcome};
use super::plan::{Next, Plan, Step};
use super::rpc::{Caller, reply};
use super::session::{Endpoint, Session};
use crate::bench::process::Interrupted;

/// A reply that takes longer is taken for lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Places in flight on a connection: their number is the low byte of the identifiers of calls.
pub const IN_FLIGHT_MAX: u32 = 256;

const RECEIVE_BYTES: usize = 256 << 10;

/// Latencies are told apart to three digits.
const DIGITS: u8 = 3;

/// Drives a load to its end. Its files must be there ([`files::prepare`]), except those that it extends.
pub fn drive(endpoint: &Endpoint, load: &Load, length: Length, interrupted: &Interrupted) -> Result<Outcome> {
    check(load)?;
    let (mut session, root) = Session::mount(endpoint)?;
    let limits = session.limits(&root)?;
    let most = if matches!(load.operation, Operation::Read(_)) { limits.read } else { limits.write };
    ensure!(load.request_bytes <= most, "the server takes at most {most} bytes a request, not {}", load.request_bytes);
    let mut files = Vec::new();
    for connection in 0..load.connections {
        files.push(files::open(&mut session, &root, load, connection)?);
    }
    drop(session);
    run(endpoint, load, length, &root, files, interrupted)
}

/// Is a load one that can be driven?
pub fn check(load: &Load) -> Result<()> {
    let bytes = u64::from(load.request_bytes);
    ensure!(bytes > 0 && bytes.is_multiple_of(4), "requests are of a multiple of 4 bytes");
    ensure!(load.file_bytes >= bytes && load.file_bytes.is_multiple_of(bytes), "files are of whole requests");
    ensure!((1..=IN_FLIGHT_MAX).contains(&load.in_flight), "1 to {IN_FLIGHT_MAX} requests in flight");
    ensure!(load.connections > 0 && load.files > 0, "at least one connection and one file");
    Ok(())
}

/// Drives a load on files that are open: for each connection its own.
pub fn run(
    endpoint: &Endpoint,
    load: &Load,
    length: Length,
    root: &nfs_fh3,
    files: Vec<Vec<nfs_fh3>>,
    interrupted: &Interrupted,
) -> Result<Outcome> {
    let payload = random_bytes(load.request_bytes as usize);
    let epoll = Epoll::new()?;
    let mut lanes = Vec::new();
    for (number, files) in files.into_iter().enumerate() {
        let connection = Connection::new(endpoint.nfs, &payload)?;
        epoll.add(&connection, number)?;
        lanes.push(Lane {
            connection,
            plan: Plan::new(load, length, number as u32),
            flights: vec![None; load.in_flight as usize],
            in_flight: 0,
            sequence: first_sequence(),
            verifier: None,
            number,
            root: root.clone(),
            files,
            is_blocked: false,
        });
    }
    let mut drive = Drive {
        caller: Caller::new(endpoint.uid, endpoint.gid),
        request_bytes: load.request_bytes,
        outcome: Outcome {
            requests: 0,
            commits: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            latency_ns: Histogram::new(DIGITS)?,
        },
    };
    let deadline = match length {
        Length::For(duration) => Instant::now().checked_add(duration),
        Length::OnePass => None,
    };
    drive.run(&mut lanes, &epoll, deadline, interrupted)?;
    Ok(drive.outcome)
}

#[derive(Clone, Copy)]
struct Flight {
    xid: u32,
    step: Step,
    start: Instant,
}

/// One connection and what it is to do.
struct Lane<'a> {
    connection: Connection<'a>,
    plan: Plan,
    flights: Vec<Option<Flight>>,
    in_flight: usize,
    sequence: u32,
    verifier: Option<writeverf3>,
    number: usize,
    root: nfs_fh3,
    files: Vec<nfs_fh3>,
    is_blocked: bool,
}

struct Drive {
    caller: Caller,
    request_bytes: u32,
    outcome: Outcome,
}

impl Drive {
    fn run(
        &mut self,
        lanes: &mut [Lane<'_>],
        epoll: &Epoll,
        deadline: Option<Instant>,
        interrupted: &Interrupted,
    ) -> Result<()> {
        let start = Instant::now();
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut events = Vec::new();
        for lane in lanes.iter_mut() {
            self.ask(lane, epoll)?;
        }
        let mut last = Instant::now();
        let mut is_stopped = false;
        while lanes.iter().any(|lane| lane.in_flight > 0) {
            epoll.wait(&mut events)?;
            if events.is_empty() && last.elapsed() > PATIENCE {
                bail!("no reply within {} s", PATIENCE.as_secs());
            }
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if !is_stopped && deadline.is_some_and(|deadline| last >= deadline) {
                lanes.iter_mut().for_each(|lane| lane.plan.stop());
                is_stopped = true;
            }
            for &number in &events {
                let now = Instant::now();
                self.take(&mut lanes[number], &mut buffer, now)?;
                self.ask(&mut lanes[number], epoll)?;
                last = now;
            }
        }
        self.outcome.elapsed = last - start;
        Ok(())
    }

    /// Takes the replies of a connection.
    fn take(&mut self, lane: &mut Lane<'_>, buffer: &mut [u8], now: Instant) -> Result<()> {
        let Lane { connection, flights, in_flight, verifier, .. } = lane;
        connection.receive(buffer, |head, bytes| {
            let (xid, results) = reply(head)?;
            let flight = flights.get_mut((xid % IN_FLIGHT_MAX) as usize).and_then(Option::take);
            let flight = flight.filter(|flight| flight.xid == xid).context("a reply to no call")?;
            *in_flight -= 1;
            let behind_head = bytes - head.len();
            examine(flight.step, results, behind_head, self.request_bytes, verifier)
                .with_context(|| format!("{:?}", flight.step))?;
            if matches!(flight.step, Step::Commit { .. }) {
                self.outcome.commits += 1;
                return Ok(());
            }
            self.outcome.requests += 1;
            if matches!(flight.step, Step::Read { .. } | Step::Write { .. }) {
                self.outcome.bytes += u64::from(self.request_bytes);
            }
            let took = now.saturating_duration_since(flight.start).as_nanos() as u64;
            self.outcome.latency_ns.record(took.max(1))?;
            Ok(())
        })
    }

    /// Fills the free places of a connection and sends.
    fn ask(&mut self, lane: &mut Lane<'_>, epoll: &Epoll) -> Result<()> {
        let start = Instant::now();
        for slot in 0..lane.flights.len() {
            if lane.flights[slot].is_some() {
                continue;
            }
            let step = match lane.plan.next(slot, lane.in_flight) {
                Next::Step(step) => step,
                Next::Wait => break,
                Next::End => continue,
            };
            lane.sequence = lane.sequence.wrapping_add(1);
            let xid = lane.sequence.wrapping_mul(IN_FLIGHT_MAX) | slot as u32;
            let call = self.call(lane, xid, step)?;
            lane.connection.queue(call, matches!(step, Step::Write { .. }));
            lane.flights[slot] = Some(Flight { xid, step, start });
            lane.in_flight += 1;
        }
        let is_blocked = !lane.connection.send()?;
        if is_blocked != lane.is_blocked {
            lane.is_blocked = is_blocked;
            epoll.change(&lane.connection, lane.number, is_blocked)?;
        }
        Ok(())
    }

    fn call(&self, lane: &Lane<'_>, xid: u32, step: Step) -> Result<Vec<u8>> {
        let bytes = self.request_bytes;
        let name = |slot| format!("load-{}-slot-{slot}", lane.number);
        match step {
            // Packed field by field (RFC 1813, 3.3.6, 3.3.7 and 3.3.21): the structures of the crate own their handles.
            Step::Read { file, offset } => self.caller.call(xid, NFS_PROGRAM::NFSPROC3_READ.into(), 0, |out| {
                Ok(lane.files[file].pack(out)? + offset.pack(out)? + bytes.pack(out)?)
            }),
            Step::Write { file, offset, stable } => {
                self.caller.call(xid, NFS_PROGRAM::NFSPROC3_WRITE.into(), bytes as usize, |out| {
                    let head = lane.files[file].pack(out)? + offset.pack(out)? + bytes.pack(out)?;
                    Ok(head + stable.pack(out)? + bytes.pack(out)?)
                })
            }
            Step::Commit { file } => self.caller.call(xid, NFS_PROGRAM::NFSPROC3_COMMIT.into(), 0, |out| {
                Ok(lane.files[file].pack(out)? + 0_u64.pack(out)? + 0_u32.pack(out)?)
            }),
            Step::Create { slot } => {
                let name = name(slot);
                let where_ = diropargs3 { dir: lane.root.clone(), name: name.as_bytes().into() };
                let how = createhow3::UNCHECKED(sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() });
                let arguments = CREATE3args { where_, how };
                self.caller.call(xid, NFS_PROGRAM::NFSPROC3_CREATE.into(), 0, |out| arguments.pack(out))
            }
            Step::Remove { slot } => {
                let name = name(slot);
                let arguments =
                    REMOVE3args { object: diropargs3 { dir: lane.root.clone(), name: name.as_bytes().into() } };
                self.caller.call(xid, NFS_PROGRAM::NFSPROC3_REMOVE.into(), 0, |out| arguments.pack(out))
            }
        }
    }
}

/// Is a reply what was asked for?
fn examine(
    step: Step,
    mut results: &[u8],
    behind_head: usize,
    bytes: u32,
    verifier: &mut Option<writeverf3>,
) -> Result<()> {
    let mut same_verifier = |new: writeverf3| {
        ensure!(*verifier.get_or_insert(new) == new, "the write verifier changed: the server may have lost data");
        Ok(())
    };
    match step {
        Step::Read { .. } => {
            // As READ3res (RFC 1813, 3.3.6), without taking the data along.
            let status = nfsstat3::unpack(&mut results)?.0;
            ensure!(status == nfsstat3::NFS3_OK, "{status}");
            post_op_attr::unpack(&mut results)?;
            let (count, _eof) = (u32::unpack(&mut results)?.0, bool::unpack(&mut results)?.0);
            let (length, there) = (u32::unpack(&mut results)?.0, results.len() + behind_head);
            ensure!(count == bytes && length == bytes, "{count} bytes in {length} instead of {bytes}");
            ensure!(there == bytes as usize, "{there} bytes of data instead of {bytes}");
        }
        Step::Write { stable, .. } => match WRITE3res::unpack(&mut results)?.0 {
            Nfs3Result::Ok(ok) => {
                ensure!(ok.count == bytes, "{} bytes instead of {bytes}", ok.count);
                ensure!(stable == stable_how::UNSTABLE || ok.committed == stable_how::FILE_SYNC, "{}", ok.committed);
                same_verifier(ok.verf)?;
            }
            Nfs3Result::Err((status, _)) => bail!("{status}"),
        },
        Step::Commit { .. } => match COMMIT3res::unpack(&mut results)?.0 {
            Nfs3Result::Ok(ok) => same_verifier(ok.verf)?,
            Nfs3Result::Err((status, _)) => bail!("{status}"),
        },
        Step::Create { .. } => match CREATE3res::unpack(&mut results)?.0 {
            Nfs3Result::Ok(_) => {}
            Nfs3Result::Err((status, _)) => bail!("{status}"),
        },
        Step::Remove { .. } => match REMOVE3res::unpack(&mut results)?.0 {
            Nfs3Result::Ok(_) => {}
            Nfs3Result::Err((status, _)) => bail!("{status}"),
        },
    }
    Ok(())
}

/// Not where the last run began: a server that is still there may answer what it takes for the repetition of a request
/// without doing it.
fn first_sequence() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u32)
}

/// Bytes that do not compress.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut word = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..count.div_ceil(8)).flat_map(|_| word()).take(count).collect()
}

#[cfg(test)]
mod tests {
    use nfs3_types::nfs3::{READ3resok, WRITE3resok, wcc_data};
    use nfs3_types::xdr_codec::Opaque;

    use super::*;

    const BYTES: u32 = 8192;

    fn packed(what: &impl Pack) -> Vec<u8> {
        let mut out = Vec::new();
        what.pack(&mut out).unwrap();
        out
    }

    fn written(count: u32, committed: stable_how, verifier: u8) -> Vec<u8> {
        let verf = writeverf3([verifier; 8]);
        packed(&WRITE3res::Ok(WRITE3resok { file_wcc: wcc_data::default(), count, committed, verf }))
    }

    #[test]
    fn a_write_counts_only_if_all_of_it_is_as_durable_as_was_asked() {
        let of = |stable, results: &[u8]| {
            examine(Step::Write { file: 0, offset: 0, stable }, results, 0, BYTES, &mut None).is_ok()
        };
        use stable_how::{DATA_SYNC, FILE_SYNC, UNSTABLE};
        assert!(of(FILE_SYNC, &written(BYTES, FILE_SYNC, 1)));
        assert!(of(UNSTABLE, &written(BYTES, UNSTABLE, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, UNSTABLE, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, DATA_SYNC, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES - 1, FILE_SYNC, 1)));
        assert!(!of(FILE_SYNC, &written(BYTES, FILE_SYNC, 1)[..20]));
    }

    #[test]
    fn a_verifier_that_changes_ends_the_load() {
        let mut verifier = None;
        let mut of = |verf| {
            let step = Step::Write { file: 0, offset: 0, stable: stable_how::UNSTABLE };
            examine(step, &written(BYTES, stable_how::UNSTABLE, verf), 0, BYTES, &mut verifier).is_ok()
        };
        assert_eq!([of(1), of(1), of(2)], [true, true, false]);
    }

    #[test]
    fn a_read_counts_only_if_all_its_data_came() {
        let read = |count, data: &[u8]| {
            let ok = READ3resok { file_attributes: Nfs3Option::None, count, eof: true, data: Opaque::borrowed(data) };
            packed(&nfs3_types::nfs3::READ3res::Ok(ok))
        };
        let of = |results: &[u8], behind_head| {
            examine(Step::Read { file: 0, offset: 0 }, results, behind_head, BYTES, &mut None).is_ok()
        };
        let whole = read(BYTES, &[7; BYTES as usize]);
        assert!(of(&whole, 0));
        assert!(of(&whole[..1000], whole.len() - 1000));
        assert!(!of(&whole[..1000], whole.len() - 1004));
        assert!(!of(&read(4096, &[7; 4096]), 0));
        assert!(!of(&packed(&nfsstat3::NFS3ERR_STALE), 0));
    }
}
