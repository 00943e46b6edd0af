//! The part of HTTP/1.1 that serving a page needs: requests without a body, one for each connection, bounded in time and
//! size.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::hosts::Hosts;

/// Connections at a time. For a further one, the oldest is ended.
const CONNECTIONS_MAX: usize = 32;

/// Threads at a time, including those of ended connections, which take a moment to end.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;

/// Longest head of a request. Bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Most header lines of a request.
const HEADERS_MAX: usize = 64;

/// For the request, and again for taking the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Answer {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    pub(super) fn ok(kind: &'static str, body: String) -> Self {
        Answer { status: 200, kind, body }
    }

    pub(super) fn plain(status: u16, line: &str) -> Self {
        Answer { status, kind: "text/plain; charset=utf-8", body: line.to_owned() }
    }

    fn head(&self) -> String {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let (status, kind, len) = (self.status, self.kind, self.body.len());
        let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
    }
}

/// The open connections.
pub(super) struct OpenConnections {
    hosts: Hosts,
    open: Mutex<Open>,
    left: Condvar,
    /// Held while an answer is made, so that clients together use one core at most.
    making: Mutex<()>,
}

#[derive(Default)]
struct Open {
    streams: VecDeque<(u64, TcpStream)>,
    count: u64,
    threads: usize,
}

impl OpenConnections {
    pub(super) fn new(hosts: Hosts) -> Self {
        OpenConnections { hosts, open: Mutex::default(), left: Condvar::new(), making: Mutex::default() }
    }

    /// Serves a connection in a thread of its own; `answer` is called with the requested path.
    pub(super) fn admit(self: &Arc<Self>, stream: TcpStream, answer: impl FnOnce(&str) -> Answer + Send + 'static) {
        let Ok(second) = stream.try_clone() else { return };
        let number = {
            let mut open = self.open.lock();
            if open.streams.len() >= CONNECTIONS_MAX
                && let Some((_, oldest)) = open.streams.pop_front()
            {
                // Its thread then ends by itself, if it has not ended yet.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            self.left.wait_while(&mut open, |open| open.threads >= THREADS_MAX);
            open.count += 1;
            open.threads += 1;
            let number = open.count;
            open.streams.push_back((number, second));
            number
        };
        let connections = Arc::clone(self);
        let serve = move || {
            // A client that sends no request or takes no answer is dropped.
            let _ = serve(&stream, &connections.hosts, |path| {
                let _alone = connections.making.lock();
                answer(path)
            });
            connections.leave(number);
        };
        if std::thread::Builder::new().name("metrics".into()).spawn(serve).is_err() {
            self.leave(number);
        }
    }

    fn leave(&self, number: u64) {
        let mut open = self.open.lock();
        open.streams.retain(|(of, _)| *of != number);
        open.threads -= 1;
        self.left.notify_all();
    }
}

fn serve(stream: &TcpStream, hosts: &Hosts, answer: impl FnOnce(&str) -> Answer) -> std::io::Result<()> {
    let request = read_request(stream)?;
    let (answer, has_body) = match request {
        Ok(Request { host: Some(host), head_only, .. }) if !hosts.has(&host) => {
            let line = "this server is not known by that name; listen.metrics_names says by which it is\n";
            (Answer::plain(421, line), !head_only)
        }
        Ok(request) => (answer(&request.path), !request.head_only),
        Err(refusal) => (refusal, true),
    };
    let mut bytes = answer.head().into_bytes();
    if has_body {
        bytes.extend_from_slice(answer.body.as_bytes());
    }
    send(stream, &bytes)?;
    stream.shutdown(Shutdown::Write)?;
    // A close with unread input would reset the connection and discard the answer.
    let mut rest = [0; HEAD_BYTES_MAX];
    stream.set_read_timeout(Some(TIMEOUT))?;
    let _ = (&mut &*stream).read(&mut rest)?;
    Ok(())
}

#[derive(Debug)]
struct Request {
    path: String,
    /// The `Host` header, which every browser sends.
    host: Option<String>,
    head_only: bool,
}

/// Reads a request's head. Fails when the client disconnects or takes too long.
fn read_request(mut stream: &TcpStream) -> std::io::Result<Result<Request, Answer>> {
    let end = Instant::now() + TIMEOUT;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut len = 0;
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        let count = stream.read(&mut head[len..])?;
        len += count;
        match parse(&head[..len]) {
            Some(parsed) => return Ok(parsed),
            None if count == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            None if len == HEAD_BYTES_MAX => return Ok(Err(Answer::plain(431, "the request is too long\n"))),
            None => {}
        }
    }
}

/// The request or its refusal; `None` while the head is incomplete.
fn parse(head: &[u8]) -> Option<Result<Request, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some(method @ ("GET" | "HEAD")), Some(target)) => {
                let path = target.split('?').next().unwrap_or_default().to_owned();
                let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
                let host = hosts.next().map(|header| String::from_utf8_lossy(header.value).trim().to_owned());
                if hosts.next().is_some() {
                    return Some(Err(Answer::plain(400, "the request names several hosts\n")));
                }
                Ok(Request { path, host, head_only: method == "HEAD" })
            }
            _ => Err(Answer::plain(405, "only GET and HEAD are answered\n")),
        }),
        Err(httparse::Error::TooManyHeaders) => Some(Err(Answer::plain(431, "the request has too many headers\n"))),
        Err(_) => Some(Err(Answer::plain(400, "this is not an HTTP request\n"))),
    }
}

fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        let count = stream.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// The time left, which is not zero.
fn left(end: Instant) -> std::io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> Option<u16> {
        parse(head).map(|parsed| parsed.map_or_else(|refusal| refusal.status, |_| 200))
    }

    #[test]
    fn requests_are_parsed_or_refused_at_any_length() {
        let whole = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost:9809\r\nAccept: */*\r\n\r\n";
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_none(), "{len} bytes are an incomplete request");
        }
        let request = parse(whole).expect("whole").map_err(|refusal| refusal.status).expect("good");
        assert_eq!((request.path.as_str(), request.head_only), ("/metrics", false));
        assert_eq!(request.host.as_deref(), Some("localhost:9809"));
        assert_eq!(status(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), Some(400));
        assert_eq!(status(b"HEAD / HTTP/1.0\r\n\r\n"), Some(200));
        assert_eq!(status(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), Some(405));
        assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), Some(400));
        assert_eq!(status(b"GET / HTTP/9\r\n\r\n"), Some(400));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(status(many.as_bytes()), Some(431));
    }
}
