//! Messages to clients, by the codec.

use bytes::BytesMut;
use pgwire::messages::Message;

/// Appends a message. Its length is within the protocol's limits: what makes it long is bounded elsewhere.
pub fn put(out: &mut BytesMut, message: &impl Message) {
    let start = out.len();
    if message.encode(out).is_err() {
        debug_assert!(false, "a message longer than the protocol permits");
        out.truncate(start);
    }
}
