//! The loopback link: one thread sends what is read, or receives what is written; another takes the part of the
//! benchmark's client.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Done;
use super::disk::{self, Buffer};
use crate::measure::load::Load;

/// Header of a READ or WRITE, and size of a message without data. Bytes; roughly those of NFS.
const HEAD_BYTES: usize = 132;

/// Largest receive of the client, as in [`crate::measure::load`].
const RECEIVE_BYTES: usize = 256 << 10;

/// Threads that write the received data.
const WRITERS: u64 = 4;

/// Size of their writes.
const WRITE_BYTES: usize = 1 << 20;

/// Sends data from memory.
pub fn send(load: &Load, duration: Duration) -> Result<Done> {
    let message = HEAD_BYTES + load.request_bytes as usize;
    let memory = vec![7; message * (load.file_bytes / u64::from(load.request_bytes)) as usize];
    let serve = move |mut stream: TcpStream| {
        let mut call = [0; HEAD_BYTES];
        let mut replies = memory.chunks(message).cycle();
        // Until the client disconnects.
        while let (Ok(()), Some(reply)) = (stream.read_exact(&mut call), replies.next()) {
            if stream.write_all(reply).is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    exchange(load.in_flight, &[1; HEAD_BYTES], message, duration, serve)
}

/// Receives data into memory and writes it to a file, flushed every `commit_bytes`.
pub fn receive(load: &Load, commit_bytes: u64, path: &Path, duration: Duration) -> Result<Done> {
    let message = HEAD_BYTES + load.request_bytes as usize;
    let file = disk::direct(path)?;
    disk::fill(&file, load.file_bytes)?;
    let load = *load;
    let serve = move |mut stream: TcpStream| {
        let mut memory = vec![0; message * (load.file_bytes / u64::from(load.request_bytes)) as usize];
        let mut disk = Writers::new(file, load.file_bytes);
        let (mut received, mut flushed) = (0, 0);
        loop {
            for place in memory.chunks_mut(message) {
                if stream.read_exact(place).is_err() {
                    return Ok(());
                }
                received += u64::from(load.request_bytes);
                disk.write(received)?;
                if received - flushed >= commit_bytes {
                    disk.flush()?;
                    flushed = received;
                }
                if stream.write_all(&[2; HEAD_BYTES]).is_err() {
                    return Ok(());
                }
            }
        }
    };
    exchange(load.in_flight, &vec![1; message], HEAD_BYTES, duration, serve)
}

/// Sends calls, `in_flight` at a time, and counts the replies of `reply_bytes`. `serve` answers them.
fn exchange(
    in_flight: u32,
    call: &[u8],
    reply_bytes: usize,
    duration: Duration,
    serve: impl FnOnce(TcpStream) -> Result<()> + Send + 'static,
) -> Result<Done> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    other.set_nodelay(true)?;
    let server = thread::spawn(move || serve(other));
    let mut buffer = vec![0; RECEIVE_BYTES];
    let (start, mut bytes, mut sent) = (Instant::now(), 0, 0);
    while start.elapsed() < duration {
        while sent < bytes / reply_bytes + in_flight as usize {
            stream.write_all(call)?;
            sent += 1;
        }
        match stream.read(&mut buffer)? {
            0 => break,
            more => bytes += more,
        }
    }
    let done = Done { requests: (bytes / reply_bytes) as u64, elapsed: start.elapsed() };
    drop(stream);
    match server.join() {
        Ok(result) => result.map(|()| done),
        Err(_) => bail!("the other end panicked"),
    }
}

struct Writers {
    file: Arc<File>,
    /// Bytes that were handed to them, and bytes written.
    submitted: u64,
    written: u64,
    sender: mpsc::Sender<u64>,
    ended: mpsc::Receiver<std::io::Result<()>>,
}

impl Writers {
    fn new(file: File, file_bytes: u64) -> Writers {
        let file = Arc::new(file);
        let (sender, receiver) = mpsc::channel::<u64>();
        let (end, ended) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..WRITERS {
            let (file, receiver, end) = (Arc::clone(&file), Arc::clone(&receiver), end.clone());
            thread::spawn(move || {
                let buffer = Buffer::new(WRITE_BYTES);
                let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(at) = next() {
                    if end.send(file.write_all_at(buffer.bytes(), at % file_bytes)).is_err() {
                        return;
                    }
                }
            });
        }
        Writers { file, submitted: 0, written: 0, sender, ended }
    }

    /// Hands to the threads what was received and not yet handed over.
    fn write(&mut self, received: u64) -> Result<()> {
        while self.submitted + WRITE_BYTES as u64 <= received {
            self.sender.send(self.submitted).context("no thread writes")?;
            self.submitted += WRITE_BYTES as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while self.written < self.submitted {
            self.ended.recv().context("no thread writes")??;
            self.written += WRITE_BYTES as u64;
        }
        Ok(self.file.sync_data()?)
    }
}
