//! Retransmitted calls, and other calls with the same numbers, on the wire.

use std::rc::Rc;

use kernel::Processor;
use kernel::connection::send_all;
use machine::Connection;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack};

use crate::stage::client::{Client, head};
use crate::stage::rpc::receive_record;
use crate::stage::{PORT, Setup, Stage};

const XID: u32 = 777;

/// A connection on which any call can be sent with any number.
struct Wire {
    cpu: Processor,
    connection: Connection,
}

impl Wire {
    fn new(cpu: &Processor, connect: &impl Fn() -> Connection) -> Wire {
        Wire { cpu: cpu.clone(), connection: connect() }
    }

    async fn call(&self, xid: u32, procedure: NFS_PROGRAM, args: &impl Pack) -> Vec<u8> {
        let message = [&xid.to_be_bytes()[..], &head(PROGRAM, procedure as u32, args)].concat();
        let mark = (message.len() as u32 | 1 << 31).to_be_bytes();
        send_all(&self.cpu, self.connection, [&mark, &message[..]].concat()).await.expect("sent");
        let reply = receive_record(&self.cpu, self.connection).await.expect("a reply");
        assert_eq!(reply[..4], xid.to_be_bytes());
        reply[24..].to_vec()
    }

    async fn write(&self, xid: u32, file: &nfs_fh3, data: &[u8]) -> Vec<u8> {
        let (count, data) = (data.len() as u32, Opaque::borrowed(data));
        let args = WRITE3args { file: file.clone(), offset: 0, count, stable: stable_how::FILE_SYNC, data };
        let results = self.call(xid, NFS_PROGRAM::NFSPROC3_WRITE, &args).await;
        assert_eq!(results[..4], [0; 4], "NFS3_OK");
        results
    }
}

/// It hangs up.
impl Drop for Wire {
    fn drop(&mut self) {
        self.cpu.shutdown(self.connection);
        self.cpu.close(self.connection);
    }
}

/// Runs `task` with a client, the root, and a factory of connections.
fn run(seed: u64, task: impl AsyncFnOnce(Processor, Rc<Client>, nfs_fh3, Box<dyn Fn() -> Connection>) + 'static) {
    let stage = Stage::new(Setup { files_max: 1000, network: Default::default(), ..Setup::drawn(seed) });
    let life = stage.begin();
    let client = stage.client(&life, 0);
    let (world, from, to) = (stage.world.clone(), stage.clients.id, stage.server_host);
    let connect = Box::new(move || world.connect(from, to, PORT).expect("the server listens"));
    stage.run(&life, async move |cpu| {
        let root = client.mount().await.expect("the root");
        task(cpu, client, root, connect).await;
    });
}

async fn content(client: &Client, file: &nfs_fh3) -> Vec<u8> {
    client.read_all(file, 1 << 20).await.expect("read")
}

#[test]
fn a_write_is_done_whatever_number_it_has() {
    run(1, async |cpu, client, root, connect| {
        let file = client.make(&root, "file").await;
        let (first, second) = (Wire::new(&cpu, &connect), Wire::new(&cpu, &connect));
        for (wire, text) in [(&first, b"AAAA"), (&first, b"BBBB"), (&second, b"CCCC"), (&first, b"AAAA")] {
            wire.write(XID, &file, text).await;
            assert_eq!(content(&client, &file).await, text);
        }
        // Pages that differ in one byte anywhere.
        for changed in [0, 255, 256, 511, 4095, 8191] {
            let mut page = vec![7; 8192];
            page[changed] = 8;
            let wire = Wire::new(&cpu, &connect);
            wire.write(XID, &file, &page).await;
            assert_eq!(content(&client, &file).await, page);
        }
    });
}

#[test]
fn a_write_that_is_sent_again_on_another_connection_does_not_undo_a_later_one() {
    run(2, async |cpu, client, root, connect| {
        let file = client.make(&root, "file").await;
        let first = Wire::new(&cpu, &connect);
        let reply = first.write(XID, &file, b"AAAA").await;
        first.write(XID + 1, &file, b"BBBB").await;
        drop(first);
        let second = Wire::new(&cpu, &connect);
        assert_eq!(second.write(XID, &file, b"AAAA").await, reply, "answered again");
        assert_eq!(content(&client, &file).await, b"BBBB", "and not done again");
    });
}

#[test]
fn a_number_that_was_answered_on_a_connection_is_a_new_call_there() {
    run(3, async |cpu, client, root, connect| {
        let wire = Wire::new(&cpu, &connect);
        for _ in 0..3 {
            client.make(&root, "file").await;
            let args = REMOVE3args { object: diropargs3 { dir: root.clone(), name: filename3::from(&b"file"[..]) } };
            let results = wire.call(XID, NFS_PROGRAM::NFSPROC3_REMOVE, &args).await;
            assert_eq!(results[..4], [0; 4], "NFS3_OK");
            assert!(client.lookup(&root, "file").await.is_err(), "it was removed");
        }
    });
}
