//! As much of NFSv3 (RFC 1813), MOUNT and ONC RPC (RFC 5531) as a load needs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

use super::nbd::{be32, be64};
use super::{Action, PATIENCE, Protocol, Reply, refused};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const VERSION: u32 = 3;
const MNT: u32 = 1;
const GETATTR: u32 = 1;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const COMMIT: u32 = 21;
const AUTH_UNIX: u32 = 1;
const FILE_SYNC: u32 = 2;
const LAST_FRAGMENT: u32 = 1 << 31;
/// Mark, number, kind, state of the reply, verifier, state of the call; status of the procedure.
const HEAD_BYTES: usize = 32;
/// `fattr3` begins with five words; then comes the size.
const SIZE_AT: usize = 20;
/// Replies to what is called here one at a time are no longer.
const ANSWER_BYTES_MAX: u32 = 64 << 10;
/// Written at a time when the file is made.
const PIECE_BYTES: u32 = 64 << 10;

/// Of a call's number, so many bits tell its slot; the others are never the same twice within minutes, or a server would
/// take the call for one that was sent again.
const SLOT_BITS: u32 = 8;

/// Where the numbers of the next connection begin, before the slot.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// Numbers between those of two connections.
const NUMBERS_APART: u32 = 1 << 19;

/// One connection's calls, all on one file.
pub(super) struct Nfs {
    number: u32,
    file: Vec<u8>,
    payload: Vec<u8>,
}

impl Nfs {
    /// Connects, mounts, and makes the file where it is not there.
    pub(super) fn connect(
        address: SocketAddr,
        directory: &str,
        name: &str,
        payload: Vec<u8>,
    ) -> io::Result<(Nfs, TcpStream)> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut path = Vec::new();
        opaque(&mut path, directory.as_bytes());
        let mut number = NUMBERS.fetch_add(NUMBERS_APART, Ordering::Relaxed);
        let answer = call(&mut stream, next(&mut number, 0), MOUNT, MNT, &path)?;
        let root = handle(&answer)?;
        let mut create = Vec::new();
        opaque(&mut create, &root);
        opaque(&mut create, name.as_bytes());
        // UNCHECKED; its mode is set, and neither owner, group, size nor times.
        [0, 1, 0o644, 0, 0, 0, 0, 0].into_iter().for_each(|word: u32| create.extend(word.to_be_bytes()));
        let answer = call(&mut stream, next(&mut number, 0), NFS, CREATE, &create)?;
        if be32(&answer) != 1 {
            return Err(refused("a file was made without a handle"));
        }
        let file = handle(&answer[4..])?;
        Ok((Nfs { number, file, payload }, stream))
    }

    /// Makes the file at least so long.
    pub(super) fn prepare(&mut self, stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
        let mut arguments = Vec::new();
        opaque(&mut arguments, &self.file);
        let size = be64(self.call(stream, GETATTR, &arguments)?.get(SIZE_AT..).unwrap_or_default());
        if size >= bytes {
            return Ok(());
        }
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            let mut write = self.arguments(at, PIECE_BYTES);
            let piece = vec![0x5a; PIECE_BYTES as usize];
            write.extend(0_u32.to_be_bytes());
            opaque(&mut write, &piece);
            self.call(stream, WRITE, &write)?;
        }
        let all = self.arguments(0, 0);
        self.call(stream, COMMIT, &all).map(drop)
    }

    fn call(&mut self, stream: &mut TcpStream, procedure: u32, arguments: &[u8]) -> io::Result<Vec<u8>> {
        call(stream, next(&mut self.number, 0), NFS, procedure, arguments)
    }

    fn arguments(&self, at: u64, len: u32) -> Vec<u8> {
        let mut arguments = Vec::with_capacity(self.file.len() + 16);
        opaque(&mut arguments, &self.file);
        arguments.extend(at.to_be_bytes());
        arguments.extend(len.to_be_bytes());
        arguments
    }
}

impl Protocol for Nfs {
    fn head_bytes(&self) -> usize {
        HEAD_BYTES
    }

    fn request(&mut self, slot: u32, action: Action, out: &mut Vec<u8>) {
        let mark = begin(out, next(&mut self.number, slot), NFS, procedure(action));
        opaque(out, &self.file);
        match action {
            Action::Attributes => {}
            Action::Read { at, len } => {
                out.extend(at.to_be_bytes());
                out.extend(len.to_be_bytes());
            }
            Action::Write { at, len } => {
                out.extend(at.to_be_bytes());
                out.extend(len.to_be_bytes());
                out.extend(FILE_SYNC.to_be_bytes());
                opaque(out, &self.payload[..len as usize]);
            }
            Action::Flush => out.extend([0; 12]),
        }
        end(out, mark);
    }

    fn reply(&self, head: &[u8], slots: &[Action]) -> io::Result<Reply> {
        let slot = be32(&head[4..]) % (1 << SLOT_BITS);
        let Some(action) = slots.get(slot as usize) else { return Err(refused("a reply to no call")) };
        let rest = accepted(head).map_err(|error| refused(&format!("{action:?}: {error}")))?;
        Ok(Reply { slot, rest })
    }
}

fn procedure(action: Action) -> u32 {
    match action {
        Action::Read { .. } => READ,
        Action::Write { .. } => WRITE,
        Action::Flush => COMMIT,
        Action::Attributes => GETATTR,
    }
}

/// The number of the next call.
fn next(number: &mut u32, slot: u32) -> u32 {
    *number = number.wrapping_add(1);
    *number << SLOT_BITS | slot
}

/// Begins a call; gives the place of its mark.
fn begin(out: &mut Vec<u8>, xid: u32, program: u32, procedure: u32) -> usize {
    let mark = out.len();
    // The call, by the user's own name, so that what it makes is its own: the server decides who that is.
    for word in [0, xid, 0, 2, program, VERSION, procedure, AUTH_UNIX, 20, 0, 0, 0, 0, 0, 0, 0] {
        out.extend(word.to_be_bytes());
    }
    mark
}

fn end(out: &mut [u8], mark: usize) {
    let len = (out.len() - mark - 4) as u32;
    if let Some(place) = out.get_mut(mark..mark + 4) {
        place.copy_from_slice(&(LAST_FRAGMENT | len).to_be_bytes());
    }
}

/// Opaque data of variable length (RFC 4506, 4.10).
fn opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
    out.extend(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
}

/// The handle that comes first.
fn handle(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let len = be32(bytes) as usize;
    bytes.get(4..4 + len).map(<[u8]>::to_vec).ok_or_else(|| refused("a handle is cut off"))
}

/// Checks the head of a reply; gives what follows it. Bytes.
fn accepted(head: &[u8]) -> io::Result<u64> {
    let word = |number: usize| be32(&head[4 * number..]);
    let bytes = u64::from(word(0) & !LAST_FRAGMENT);
    if word(0) & LAST_FRAGMENT == 0 || word(2) != 1 || bytes + 4 < HEAD_BYTES as u64 {
        return Err(refused("a reply is none"));
    }
    match (word(3), word(5), word(6), word(7)) {
        (0, 0, 0, 0) => Ok(bytes + 4 - HEAD_BYTES as u64),
        (0, 0, 0, status) => Err(refused(&format!("status {status}"))),
        _ => Err(refused("the call was not accepted")),
    }
}

/// Calls, and waits for the answer: the results after their status.
fn call(stream: &mut TcpStream, xid: u32, program: u32, procedure: u32, arguments: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mark = begin(&mut out, xid, program, procedure);
    out.extend(arguments);
    end(&mut out, mark);
    stream.write_all(&out)?;
    let mut head = [0; HEAD_BYTES];
    // A refusal may be shorter: then the end of patience tells.
    stream.read_exact(&mut head)?;
    let rest = accepted(&head)?;
    if rest > ANSWER_BYTES_MAX.into() {
        return Err(refused("a reply is too long"));
    }
    let mut answer = vec![0; rest as usize];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(words: [u32; 8]) -> Vec<u8> {
        words.into_iter().flat_map(u32::to_be_bytes).collect()
    }

    #[test]
    fn a_reply_is_taken_only_if_the_call_was_accepted_and_did_what_was_asked() {
        let reply = |status| head([LAST_FRAGMENT | 100, 7, 1, 0, 0, 0, 0, status]);
        assert_eq!(accepted(&reply(0)).expect("accepted"), 72);
        assert!(accepted(&reply(70)).expect_err("stale").to_string().contains("70"));
        assert!(accepted(&head([LAST_FRAGMENT | 100, 7, 1, 1, 0, 0, 0, 0])).is_err(), "denied");
        assert!(accepted(&head([100, 7, 1, 0, 0, 0, 0, 0])).is_err(), "in pieces");
        assert!(accepted(&head([LAST_FRAGMENT | 8, 7, 1, 0, 0, 0, 0, 0])).is_err(), "shorter than its head");
    }

    #[test]
    fn a_call_says_how_long_it_is_and_its_data_end_at_a_word() {
        let mut nfs = Nfs { number: 6, file: vec![1; 5], payload: vec![2; 6] };
        let mut out = vec![9];
        nfs.request(3, Action::Write { at: 8, len: 6 }, &mut out);
        assert_eq!(be32(&out[1..]), LAST_FRAGMENT | (out.len() as u32 - 5));
        assert_eq!(be32(&out[5..]), 7 << SLOT_BITS | 3, "another number each time, which tells the slot");
        assert_eq!((out.len() - 1) % 4, 0);
        assert_eq!(&out[out.len() - 8..], [2, 2, 2, 2, 2, 2, 0, 0]);
    }
}
