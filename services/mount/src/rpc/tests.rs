//! Calls that fail while their replies arrive.

use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{receive_exact, send_all};
use kernel::{FRAME_BYTES, Processor, Switches};
use machine::{Connection, Errno, Listener};
use nfs3_types::nfs3::NFS_PROGRAM;
use parking_lot::Mutex;
use sim::World;
use testkit::scene::{Host, run_beside, small_kernel};

use super::message::{LAST_FRAGMENT, MARK_BYTES};
use super::{Caller, Connector, Failure, Payload, Port, Remote, Route, Timeouts};
use crate::client::NFS;

const PORT: u16 = 2049;
const BYTE: u8 = 9;
const FAILS_AFTER: Duration = Duration::from_secs(1);

/// Connections that were made before.
struct Made(Mutex<Vec<Connection>>);

impl Connector for Made {
    fn connect(&self, _port: Port, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>) {
        let next = self.0.lock().pop();
        made(next.ok_or(Errno(libc::ECONNREFUSED)));
    }

    fn report(&self, _line: &str) {}
}

/// Answers the first call on each connection, with two frames of data: with the second when the call has failed.
async fn stall(cpu: Processor, listener: Listener) {
    while let Ok(connection) = cpu.accept(listener).await {
        let here = cpu.clone();
        cpu.spawn(async move {
            let call = receive_exact(&here, connection, MARK_BYTES + 4).await.expect("a call");
            let xid = u32::from_be_bytes(*call.last_chunk().expect("its number"));
            let data = 2 * FRAME_BYTES as u32;
            // Accepted; OK, no attributes, the count, the end of the file, the data's length.
            let head = [LAST_FRAGMENT | (44 + data), xid, 1, 0, 0, 0, 0, 0, 0, data, 1, data];
            let _ =
                send_all(&here, connection, [&head.map(u32::to_be_bytes).concat()[..], &[BYTE; FRAME_BYTES]].concat())
                    .await;
            here.sleep(2 * FAILS_AFTER).await;
            let _ = send_all(&here, connection, vec![BYTE; FRAME_BYTES]).await;
            here.close(connection);
        });
    }
}

#[test]
fn what_arrives_after_a_call_has_failed_does_not_go_to_its_place() {
    let world = World::new(1);
    let [server, client] = ["server", "client"]
        .map(|name| Host::boot(&world, world.add_host(name), small_kernel(1, 1 << 20, Switches::default())));
    let listener = world.listen(server.id, PORT);
    let made = (0..5).map(|_| world.connect(client.id, server.id, PORT).expect("connected")).collect();
    let cpu = server.processors[0].clone();
    cpu.spawn(stall(cpu.clone(), listener));
    world.kick(server.id, cpu.id());
    let route = Route {
        connector: Arc::new(Made(Mutex::new(made))),
        port: Port(PORT),
        connections: 1,
        // It is not late on its connection.
        timeouts: Timeouts { reply: 60 * FAILS_AFTER, fails_after: Some(FAILS_AFTER), fails_unconnected: false },
        caller: Caller { machine: "client".into(), uid: 0, gid: 0, groups: Vec::new() },
        first_xid: 1,
    };
    run_beside(&world, &client, &[&server, &client], async move |cpu| {
        let remote = Remote::new(&cpu, NFS, &route);
        let frames = cpu.kernel().allocate(&cpu, 2).await;
        let place = Payload { frames: frames.clone(), offset: 0, len: 2 * FRAME_BYTES };
        let (read, begun) = (NFS_PROGRAM::NFSPROC3_READ as u32, cpu.now());
        let reply = remote.call_with(&cpu, read, &[], Payload::default(), Some(place)).await;
        assert_eq!(reply.err(), Some(Failure::TimedOut));
        // In time, although each connection would begin to answer.
        assert!(cpu.now().since(begun) < FAILS_AFTER + Duration::from_secs(2), "{:?}", cpu.now().since(begun));
        assert_eq!(frames[0].bytes(), [BYTE; FRAME_BYTES], "it was arriving");
        let before = frames[1].bytes().to_vec();
        cpu.sleep(5 * FAILS_AFTER).await;
        assert!(frames[1].bytes() == before, "the place is the caller's");
        remote.close();
    });
}
