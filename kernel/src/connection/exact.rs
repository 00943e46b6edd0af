//! Whole messages over a stream, for what is short and infrequent. Bytes are copied; payload is not sent this way.

use machine::{Connection, Errno, Segment};
use smallvec::smallvec;

use crate::{Hold, Processor};

/// The peer closed the connection, or it broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A segment for a part of a buffer that will be moved into a [`Hold`].
pub fn segment(bytes: &mut [u8]) -> Segment {
    Segment { ptr: bytes.as_mut_ptr(), len: bytes.len() as u32, region: None }
}

/// Receives exactly `len` bytes.
pub async fn receive_exact(cpu: &Processor, connection: Connection, len: usize) -> Result<Vec<u8>, Gone> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        let into = smallvec![segment(&mut bytes[at..])];
        let (result, hold) = cpu.receive(connection, Hold::new(bytes, Default::default()), into).await;
        bytes = hold.bytes;
        match result {
            Ok(0) | Err(_) => return Err(Gone),
            Ok(received) => at += received as usize,
        }
    }
    Ok(bytes)
}

pub async fn send_all(cpu: &Processor, connection: Connection, mut bytes: Vec<u8>) -> Result<(), Gone> {
    let mut at = 0;
    while at < bytes.len() {
        let from = smallvec![segment(&mut bytes[at..])];
        let (result, hold) = cpu.send(connection, Hold::new(bytes, Default::default()), from).await;
        bytes = hold.bytes;
        at += result.map_err(|_: Errno| Gone)? as usize;
    }
    Ok(())
}
