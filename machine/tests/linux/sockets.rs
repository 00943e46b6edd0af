//! Sockets on both engines.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use crate::rig::{Memory, Rig, build, on_both_engines, pattern};
use machine::linux::Engine;
use machine::linux::net::{self, ListeningSocket};
use machine::{Connection, Errno, Op, Segments};
use rustix::net::sockopt;

on_both_engines!(
    sixty_four_mebibytes_arrive_in_order_through_a_unix_socket,
    sixty_four_mebibytes_arrive_in_order_through_tcp,
    both_ends_on_one_processor_exchange_vectors,
    two_accepts_in_flight_get_one_client_each,
    stopping_a_listener_completes_its_accepts,
    a_listener_that_was_handed_over_goes_on_without_the_accepts_that_are_cancelled,
    a_receive_from_a_closed_peer_returns_0,
    shutdown_completes_a_receive_and_a_send_in_flight,
    sending_to_a_closed_peer_is_an_error_and_no_signal,
    a_dropped_machine_no_longer_receives_into_memory,
    data_without_a_reply_is_acknowledged_on_request,
    a_client_of_tcp_is_asked_whether_it_is_there,
);

fn receive(connection: Connection, into: Segments) -> Op {
    Op::Receive { connection, into }
}

fn send(connection: Connection, from: Segments) -> Op {
    Op::Send { connection, from }
}

fn pair() -> (Connection, Connection) {
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    (adopt(a), adopt(b))
}

fn adopt(stream: impl Into<OwnedFd>) -> Connection {
    net::adopt_connection(stream.into()).expect("adopted")
}

fn accept(rig: &mut Rig, listening: &ListeningSocket) -> Connection {
    let listener = listening.listener();
    let connection = rig.run(Op::Accept { listener }).expect("accepted");
    Connection(connection as u32)
}

fn sixty_four_mebibytes_arrive_in_order_through_a_unix_socket(rig: Rig) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("socket");
    let listening = net::listen_unix(&path).expect("listening");
    let connect = move || adopt(UnixStream::connect(&path).expect("connected"));
    carry_sixty_four_mebibytes(rig, &listening, connect);
}

fn sixty_four_mebibytes_arrive_in_order_through_tcp(rig: Rig) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let (listening, addr) = net::listen_tcp(any).expect("listening");
    let connect = move || adopt(TcpStream::connect(addr).expect("connected"));
    carry_sixty_four_mebibytes(rig, &listening, connect);
}

/// The other end sends with the thread engine, so each engine meets one that it did not make.
fn carry_sixty_four_mebibytes(
    mut rig: Rig,
    listening: &ListeningSocket,
    connect: impl FnOnce() -> Connection + Send + 'static,
) {
    const TOTAL: usize = 64 << 20;
    const CHUNK: usize = 1 << 20;
    let mut builders = build(Engine::Threads, 1).expect("threads");
    let builder = builders.remove(0);
    let sender = thread::spawn(move || {
        let mut rig = Rig::new(builder().expect("a machine"));
        let connection = connect();
        let mut sent = 0;
        while sent < TOTAL {
            let from = Memory::filled(CHUNK, sent as u64);
            let halves = from.segments(&[(0, CHUNK / 2), (CHUNK / 2, CHUNK / 2)]);
            let count = rig.run(send(connection, halves)).expect("sent") as usize;
            assert!((1..=CHUNK).contains(&count));
            sent += count;
            // A chunk may overshoot; the receiver stops at the total.
        }
        rig.machine.shutdown(connection);
        rig.machine.close(connection);
    });
    let connection = accept(&mut rig, listening);
    let into = Memory::new(CHUNK);
    let mut received = 0;
    loop {
        // Not in the order of memory, and at times a single segment.
        let pieces = [(CHUNK / 2, 1000), (0, CHUNK / 2)];
        let pieces = if received % 2 == 0 { &pieces[..] } else { &pieces[..1] };
        let count = rig.run(receive(connection, into.segments(pieces)));
        let count = count.expect("received") as usize;
        if count == 0 {
            break;
        }
        let mut left = count;
        for &(at, len) in pieces {
            let len = len.min(left);
            for byte in &into.bytes()[at..at + len] {
                assert_eq!(*byte, pattern(received as u64), "at {received}");
                received += 1;
            }
            left -= len;
        }
    }
    assert!(received >= TOTAL);
    rig.machine.close(connection);
    sender.join().expect("the sender passed");
}

fn both_ends_on_one_processor_exchange_vectors(mut rig: Rig) {
    let (a, b) = pair();
    let from = Memory::filled(8192, 5);
    let into = Memory::new(8192);
    let token = rig.start(receive(b, into.segments(&[(4096, 100), (0, 200)])));
    let sent = rig.run(send(a, from.segments(&[(0, 10), (100, 20), (200, 30)])));
    assert_eq!(sent, Ok(60));
    assert_eq!(rig.wait(token), Ok(60));
    let expected = [&from.bytes()[..10], &from.bytes()[100..120], &from.bytes()[200..230]];
    assert_eq!(into.bytes()[4096..4156], expected.concat());
    rig.machine.close(a);
    rig.machine.close(b);
}

fn two_accepts_in_flight_get_one_client_each(mut rig: Rig) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("socket");
    let listening = net::listen_unix(&path).expect("listening");
    let listener = listening.listener();
    let tokens = [0, 1].map(|_| rig.start(Op::Accept { listener }));
    rig.machine.enter(machine::Park::No, &mut rig.done);
    let clients = [0, 1].map(|_| adopt(UnixStream::connect(&path).expect("connected")));
    let accepted = tokens.map(|token| Connection(rig.wait(token).expect("accepted") as u32));
    assert_ne!(accepted[0], accepted[1]);
    for connection in accepted.into_iter().chain(clients) {
        rig.machine.close(connection);
    }
}

fn stopping_a_listener_completes_its_accepts(mut rig: Rig) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unix = net::listen_unix(&directory.path().join("socket")).expect("listening");
    let (tcp, _) = net::listen_tcp(any).expect("listening");
    for listening in [unix, tcp] {
        let listener = listening.listener();
        let token = rig.start(Op::Accept { listener });
        rig.machine.enter(machine::Park::No, &mut rig.done);
        listening.stop();
        assert_eq!(rig.wait(token), Err(Errno::INVALID));
    }
}

fn a_listener_that_was_handed_over_goes_on_without_the_accepts_that_are_cancelled(mut rig: Rig) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("socket");
    let unix = UnixListener::bind(&path).expect("bound");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = tcp.local_addr().expect("bound");
    let sockets: [(OwnedFd, Box<dyn Fn() -> Connection>); 2] = [
        (unix.into(), Box::new(move || adopt(UnixStream::connect(&path).expect("connected")))),
        (tcp.into(), Box::new(move || adopt(TcpStream::connect(addr).expect("connected")))),
    ];
    for (socket, connect) in sockets {
        let own = socket.try_clone().expect("a duplicate");
        let adopted = net::adopt_listener(socket).expect("adopted");
        let token = rig.start(Op::Accept { listener: adopted.listener() });
        rig.machine.enter(machine::Park::No, &mut rig.done);
        rig.machine.cancel_accepts(adopted.listener());
        let waiting = connect();
        assert_eq!(rig.wait(token), Err(Errno::CANCELLED));
        adopted.stop();
        drop(adopted);
        let next = net::adopt_listener(own).expect("adopted again");
        for client in [waiting, connect()] {
            let connection = accept(&mut rig, &next);
            rig.machine.close(connection);
            rig.machine.close(client);
        }
    }
}

fn a_receive_from_a_closed_peer_returns_0(mut rig: Rig) {
    let (a, b) = pair();
    let into = Memory::new(4096);
    let token = rig.start(receive(a, into.all()));
    rig.machine.enter(machine::Park::No, &mut rig.done);
    rig.machine.close(b);
    assert_eq!(rig.wait(token), Ok(0));
    rig.machine.close(a);
}

fn shutdown_completes_a_receive_and_a_send_in_flight(mut rig: Rig) {
    let (a, b) = pair();
    let into = Memory::new(4096);
    let from = Memory::new(1 << 20);
    let receiving = rig.start(receive(a, into.all()));
    // Fill the socket until a send has to wait.
    let sending = loop {
        let token = rig.start(send(a, from.all()));
        rig.machine.enter(machine::Park::No, &mut rig.done);
        if rig.done.iter().all(|c| c.token != token) {
            break token;
        }
    };
    rig.machine.shutdown(a);
    assert_eq!(rig.wait(receiving), Ok(0));
    assert!(rig.wait(sending).is_err());
    rig.machine.close(a);
    rig.machine.close(b);
}

fn sending_to_a_closed_peer_is_an_error_and_no_signal(mut rig: Rig) {
    let (a, b) = pair();
    rig.machine.close(b);
    let from = Memory::new(4096);
    let gone = [Errno(libc::EPIPE), Errno::CONNECTION_RESET];
    let whole = rig.run(send(a, from.all())).expect_err("the peer is gone");
    assert!(gone.contains(&whole), "{whole}");
    let pieces = from.segments(&[(2048, 100), (0, 100)]);
    let pieces = rig.run(send(a, pieces)).expect_err("the peer is gone");
    assert!(gone.contains(&pieces), "{pieces}");
    rig.machine.close(a);
}

fn a_dropped_machine_no_longer_receives_into_memory(mut rig: Rig) {
    let (a, b) = pair();
    let into = Memory::new(4096);
    let both = into.segments(&[(2048, 100), (0, 100)]);
    rig.start(receive(a, both));
    rig.machine.enter(machine::Park::No, &mut rig.done);
    drop(rig);
    let mut builders = build(Engine::Threads, 1).expect("threads");
    let mut rig = Rig::new(builders.remove(0)().expect("a machine"));
    let from = Memory::filled(100, 1);
    assert_eq!(rig.run(send(b, from.all())), Ok(100));
    assert!(into.bytes().iter().all(|&byte| byte == 0));
    rig.machine.close(a);
    rig.machine.close(b);
}

#[test]
fn the_core_of_a_peer_on_this_host_is_known() {
    let (a, _b) = pair();
    assert!(net::peer_core(a).is_some_and(|core| core < 1024), "a Unix socket");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listening");
    let client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    std::io::Write::write_all(&mut &client, b"x").expect("sent");
    let connection = net::adopt_connection(server.into()).expect("adopted");
    assert!(net::peer_core(connection).is_some_and(|core| core < 1024), "loopback");
}

/// Segments that the peer has not acknowledged.
fn unacknowledged(stream: &TcpStream) -> u32 {
    // SAFETY: all zeroes is a valid value of the structure, which has integers only.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the structure is passed with its length.
    let status = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    assert_eq!(status, 0);
    info.tcpi_unacked
}

fn data_without_a_reply_is_acknowledged_on_request(mut rig: Rig) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let (listening, addr) = net::listen_tcp(any).expect("listening");
    let mut client = TcpStream::connect(addr).expect("connected");
    let connection = accept(&mut rig, &listening);
    let (question, answer) = (Memory::new(64), Memory::filled(64, 0));
    // After questions and answers TCP delays acknowledgements, to send them with the answers.
    for _ in 0..32 {
        client.write_all(&[1; 64]).expect("sent");
        assert_eq!(rig.run(receive(connection, question.segments(&[(0, 64)]))), Ok(64));
        assert_eq!(rig.run(send(connection, answer.segments(&[(0, 64)]))), Ok(64));
        client.read_exact(&mut [0; 64]).expect("received");
    }
    client.write_all(&[2; 64]).expect("sent");
    assert_eq!(rig.run(receive(connection, question.segments(&[(0, 64)]))), Ok(64));
    rig.machine.acknowledge(connection);
    assert_eq!(unacknowledged(&client), 0);
    rig.machine.close(connection);
    // A hint to other sockets, too.
    let (a, b) = pair();
    rig.machine.acknowledge(a);
    rig.machine.close(a);
    rig.machine.close(b);
}

fn a_client_of_tcp_is_asked_whether_it_is_there(mut rig: Rig) {
    let (listening, addr) = net::listen_tcp("127.0.0.1:0".parse().expect("an address")).expect("listening");
    let _client = TcpStream::connect(addr).expect("connected");
    let connection = accept(&mut rig, &listening);
    // SAFETY: the connection is open until it is closed below.
    let socket = unsafe { BorrowedFd::borrow_raw(connection.0 as RawFd) };
    assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
    let lost_after = sockopt::tcp_keepidle(socket).expect("set")
        + sockopt::tcp_keepintvl(socket).expect("set") * sockopt::tcp_keepcnt(socket).expect("set");
    assert_eq!(lost_after, Duration::from_secs(20 * 60));
    rig.machine.close(connection);
}
