//! A stand-in for rpcbind.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::thread;

use super::{Cursor, opaque, xdr};
use crate::rpcbind::{Rpcbind, RpcbindError};

/// Answers `results.len()` calls; returns the calls, from the program's number on.
fn answer(mut stream: impl Read + Write, results: &[u32]) -> Vec<Vec<u8>> {
    let mut calls = Vec::new();
    for result in results {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).expect("a call");
        let mut call = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        stream.read_exact(&mut call).expect("a call");
        let xid = Cursor(&call).u32().expect("an xid");
        stream.write_all(&xdr(&[1 << 31 | 28, xid, 1, 0, 0, 0, 0, *result], &[])).expect("taken");
        calls.push(call[12..].to_vec());
    }
    calls
}

/// A call to rpcbind: version, procedure, arguments.
fn expected(version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    [&xdr(&[100_000, version, procedure, 0, 0, 0, 0], &[]), arguments].concat()
}

#[test]
fn both_programs_are_registered_through_the_socket_of_rpcbind() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("rpcbind.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let unused = SocketAddr::from(([127, 0, 0, 1], 1));
    let server = thread::spawn(move || answer(listener.accept().expect("a client").0, &[0, 1, 1, 1]));
    let listening: SocketAddr = "[::1]:2049".parse().expect("an address");
    Rpcbind { socket, address: unused }.register(listening).expect("registered");
    let arguments = |program| [xdr(&[program, 3], &[]), opaque(b"tcp6"), opaque(b"::1.8.1"), opaque(b"")].concat();
    let calls = [(2, 100_003), (1, 100_003), (2, 100_005), (1, 100_005)];
    let calls = calls.map(|(procedure, program)| expected(4, procedure, &arguments(program)));
    assert_eq!(server.join().expect("four calls"), calls);
}

#[test]
fn where_there_is_no_such_socket_the_port_mapper_is_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let rpcbind = Rpcbind { socket: "/nonexistent".into(), address };
    let listening = SocketAddr::from(([0, 0, 0, 0], 20490));
    let server = thread::spawn(move || {
        let mut calls = answer(listener.accept().expect("a client").0, &[1, 1, 0, 0]);
        calls.extend(answer(listener.accept().expect("a client").0, &[1, 1]));
        calls
    });
    let refused = rpcbind.register(listening);
    assert!(matches!(refused, Err(RpcbindError::Refused { program: 100_005 })), "{refused:?}");
    rpcbind.unregister(listening).expect("unregistered");
    let calls =
        [(2, 100_003, 0), (1, 100_003, 20490), (2, 100_005, 0), (1, 100_005, 20490), (2, 100_003, 0), (2, 100_005, 0)];
    let calls = calls.map(|(procedure, program, port)| expected(2, procedure, &xdr(&[program, 3, 6, port], &[])));
    assert_eq!(server.join().expect("six calls"), calls);
}

#[test]
fn without_rpcbind_it_is_said_so() {
    // A port that was just freed has no listener.
    let address = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let rpcbind = Rpcbind { socket: "/nonexistent".into(), address };
    assert!(matches!(rpcbind.register(address), Err(RpcbindError::Unreachable(_))));
}
