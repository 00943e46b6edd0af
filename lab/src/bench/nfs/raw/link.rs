//! The loopback link: one thread that sends what is asked for, or receives what is written, and one that does the other end
//! of it as the benchmark's client does.

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
use crate::bench::nfs::load::Load;

/// What goes with the data of a READ or WRITE, and what is a message without data. Bytes; as NFS has it, roughly.
const HEAD_BYTES: usize = 132;

/// What one receive of the client takes, as that of [`crate::bench::nfs::drive`].
const RECEIVE_BYTES: usize = 256 << 10;

/// Threads that write what was received.
const WRITERS: u64 = 4;

/// What they write at once.
const WRITE_BYTES: usize = 1 << 20;

/// Sends data that lies in memory.
pub fn send(load: &Load, duration: Duration) -> Result<Done> {
    let message = HEAD_BYTES + load.request_bytes as usize;
    let memory = vec![7; message * (load.file_bytes / u64::from(load.request_bytes)) as usize];
    let serve = move |mut stream: TcpStream| {
        let mut call = [0; HEAD_BYTES];
        let mut replies = memory.chunks(message).cycle();
        // Until the client has gone.
        while let (Ok(()), Some(reply)) = (stream.read_exact(&mut call), replies.next()) {
            if stream.write_all(reply).is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    exchange(load.in_flight, &[1; HEAD_BYTES], message, duration, serve)
}

/// Receives data into memory and writes it to a file, flushed after so many bytes.
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

/// Sends calls, so many in flight, and counts the replies of so many bytes. `serve` answers them.
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
    let (start, mut bytes, mut asked) = (Instant::now(), 0, 0);
    while start.elapsed() < duration {
        while asked < bytes / reply_bytes + in_flight as usize {
            stream.write_all(call)?;
            asked += 1;
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

/// Threads that write to a file behind the receiver.
struct Writers {
    file: Arc<File>,
    /// Bytes that they were told to write, and those written.
    told: u64,
    written: u64,
    tell: mpsc::Sender<u64>,
    ended: mpsc::Receiver<std::io::Result<()>>,
}

impl Writers {
    fn new(file: File, file_bytes: u64) -> Writers {
        let file = Arc::new(file);
        let (tell, told) = mpsc::channel::<u64>();
        let (end, ended) = mpsc::channel();
        let told = Arc::new(Mutex::new(told));
        for _ in 0..WRITERS {
            let (file, told, end) = (Arc::clone(&file), Arc::clone(&told), end.clone());
            thread::spawn(move || {
                let buffer = Buffer::new(WRITE_BYTES);
                let next = || told.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(at) = next() {
                    if end.send(file.write_all_at(buffer.bytes(), at % file_bytes)).is_err() {
                        return;
                    }
                }
            });
        }
        Writers { file, told: 0, written: 0, tell, ended }
    }

    /// So much is there to be written.
    fn write(&mut self, received: u64) -> Result<()> {
        while self.told + WRITE_BYTES as u64 <= received {
            self.tell.send(self.told).context("no thread writes")?;
            self.told += WRITE_BYTES as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while self.written < self.told {
            self.ended.recv().context("no thread writes")??;
            self.written += WRITE_BYTES as u64;
        }
        Ok(self.file.sync_data()?)
    }
}
