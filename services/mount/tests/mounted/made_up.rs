//! A server whose replies are made up, for what ours never says.

use std::rc::Rc;

use kernel::Processor;
use kernel::connection::{Gone, receive_exact, send_all};
use machine::{Connection, Listener};

/// Procedures of NFS (RFC 1813).
pub const GETATTR: u32 = 1;
pub const LOOKUP: u32 = 3;
pub const REMOVE: u32 = 12;
pub const READDIRPLUS: u32 = 17;

/// Ends a record (RFC 5531, section 11).
const LAST_FRAGMENT: u32 = 1 << 31;

/// The results of a procedure with these arguments.
pub type Answers = Rc<dyn Fn(u32, &[u8]) -> Vec<u8>>;

pub async fn serve(cpu: Processor, listener: Listener, answers: Answers) {
    while let Ok(connection) = cpu.accept(listener).await {
        let (here, answers) = (cpu.clone(), Rc::clone(&answers));
        cpu.spawn(async move {
            while answer(&here, connection, &answers).await.is_ok() {}
            here.close(connection);
        });
    }
}

/// Answers the next call.
async fn answer(cpu: &Processor, connection: Connection, answers: &Answers) -> Result<(), Gone> {
    let mark = word(&receive_exact(cpu, connection, 4).await?, 0);
    let call = receive_exact(cpu, connection, (mark & !LAST_FRAGMENT) as usize).await?;
    let results = answers(word(&call, 20), arguments(&call));
    // Accepted, with an empty verifier.
    let header = [LAST_FRAGMENT | (24 + results.len() as u32), word(&call, 0), 1, 0, 0, 0, 0];
    send_all(cpu, connection, [header.map(u32::to_be_bytes).concat(), results].concat()).await
}

/// What follows the header of a call, its credentials and verifier.
fn arguments(call: &[u8]) -> &[u8] {
    let verifier = 32 + word(call, 28) as usize;
    &call[verifier + 8 + word(call, verifier + 4) as usize..]
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&(bytes.len() as u32).to_be_bytes(), bytes, &[0; 3][..padding]].concat()
}

/// What follows the first opaque of `arguments`.
pub fn after_opaque(arguments: &[u8]) -> &[u8] {
    &arguments[4 + (word(arguments, 0) as usize).next_multiple_of(4)..]
}

/// An empty file's (RFC 1813, section 2.5).
pub fn attributes(number: u64) -> Vec<u8> {
    let words = [1, 0o644, 1, 0, 0u32].map(u32::to_be_bytes).concat();
    let longs = [0, 0, 0, 0, number, 0, 0, 0u64].map(u64::to_be_bytes).concat();
    [words, longs].concat()
}
