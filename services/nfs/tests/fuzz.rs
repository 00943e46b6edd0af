//! Anything that a client sends is decoded or refused, and alike in any pieces; and any answer of rpcbind is handled.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::thread;

use nfs::decode;
use nfs::rpcbind::Rpcbind;
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::{conversation, mutate};

#[test]
fn damaged_conversations_hold_the_same_in_whatever_pieces_they_come() {
    let handle = |byte| nfs_fh3 { data: Opaque::owned(vec![byte; 40]) };
    let messages = conversation::nfs("/files", &handle(1), &handle(2));
    let whole = decode(&messages.concat(), &[usize::MAX]);
    assert_eq!((whole.calls, whole.understood, whole.refused), (messages.len(), messages.len(), 0), "{whole:?}");
    for seed in Rounds::new("damaged_conversations_hold_the_same_in_whatever_pieces_they_come", 1000) {
        let random = &mut Random(seed << 32);
        let stream = mutate::conversation(random, &messages);
        let cuts: Vec<usize> = (0..1 + random.below(8)).map(|_| 1 + random.index(3000)).collect();
        assert_eq!(decode(&stream, &cuts), decode(&stream, &[usize::MAX]), "seed {seed}");
    }
}

/// Answers calls as rpcbind does, except for one damaged answer with nothing after it.
fn answer(listener: &UnixListener, random: &mut Random, conversations: usize) {
    for _ in 0..conversations {
        let (mut stream, _) = listener.accept().expect("a client");
        let damaged = random.below(5);
        for call_no in 0.. {
            let mut mark = [0; 4];
            if stream.read_exact(&mut mark).is_err() {
                break;
            }
            let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
            stream.read_exact(&mut call).expect("a call");
            let words = [u32::from_be_bytes(call[..4].try_into().expect("4 bytes")), 1, 0, 0, 0, 0, 1];
            let reply: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let record = [&(0x8000_0000 | reply.len() as u32).to_be_bytes()[..], &reply].concat();
            if call_no == damaged {
                // The peer may be gone already.
                let _ = stream.write_all(&mutate::conversation(random, &[record]));
                break;
            }
            stream.write_all(&record).expect("a client that waits for it");
        }
    }
}

#[test]
fn whatever_rpcbind_answers_is_an_answer_or_an_error() {
    const AT_ONCE: usize = 20;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rpcbind = Rpcbind { socket: directory.path().join("rpcbind.sock"), ..Rpcbind::default() };
    let listener = UnixListener::bind(&rpcbind.socket).expect("a socket");
    let listening: SocketAddr = "127.0.0.1:2049".parse().expect("an address");
    let (mut accepted, mut refused) = (0u32, 0u32);
    for seed in Rounds::new("whatever_rpcbind_answers_is_an_answer_or_an_error", 10) {
        thread::scope(|scope| {
            scope.spawn(|| answer(&listener, &mut Random(seed << 32), AT_ONCE));
            for _ in 0..AT_ONCE {
                match rpcbind.register(listening) {
                    Ok(()) => accepted += 1,
                    Err(_) => refused += 1,
                }
            }
        });
    }
    assert!(accepted > 0 && refused > 0, "{accepted} accepted, {refused} refused");
}
