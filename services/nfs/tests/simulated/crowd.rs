//! A thousand clients of one server, some of them stuck and some hostile: the others do not notice.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::connection::{Acceptor, Protocol, receive_exact, send_all};
use kernel::wait::WaitList;
use machine::Connection;
use nfs3_types::nfs3::{PROGRAM, nfs_fh3, stable_how};
use nfs3_types::xdr_codec::Void;
use sim::NetworkConfig;

use crate::stage::client::{Client, head};
use crate::stage::{PORT, Setup, Stage};
use testkit::random::Random;
use testkit::scene::serving;

const CLIENTS: usize = 1000;
/// Well-behaved clients, at most as many connections.
const GOOD: usize = 400;
/// Bytes of cache, and most that it may hold with what connections need.
const CACHE: u64 = 16 << 20;
/// Names in the directory: a list of them fills a reply.
const NAMES: usize = 500;
const ROUNDS: u64 = 5;
/// A WRITE that never ends, in bytes: far more of them arrive than would fit into the cache.
const LEN: u32 = 1 << 20;

fn stage(seed: u64) -> Stage {
    let network = NetworkConfig { backlog_max: CLIENTS * 2, ..NetworkConfig::default() };
    let drawn = Setup::drawn(seed);
    let setup = Setup { cache: CACHE, files_max: 10_000, network, tree: sim::TreeConfig::new(), ..drawn };
    Stage::new(setup)
}

/// A well-behaved client's repeated work. Returns the longest time of one pass.
async fn rounds(cpu: &Processor, client: &Client, dir: &nfs_fh3, no: usize) -> Duration {
    let file = client.make(dir, &no.to_string()).await;
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let start = cpu.now();
        let bytes = vec![(no + round as usize) as u8 | 1; 5000];
        let at = round * 3000;
        client.write(&file, at, &bytes, stable_how::UNSTABLE).await.expect("written");
        assert_eq!(&client.read(&file, at, 5000).await.expect("read").data[..], &bytes[..]);
        client.commit(&file, 0, 0).await.expect("durable");
        longest = longest.max(cpu.now().since(start));
        // Until the others have begun, too.
        cpu.sleep(Duration::from_millis(30)).await;
    }
    client.book.hang_up();
    longest
}

/// The longest pass of any client.
async fn side_by_side(cpu: &Processor, clients: Vec<Rc<Client>>, dir: nfs_fh3) -> Duration {
    let (all, ended) = (clients.len(), Rc::new(WaitList::default()));
    let took: Rc<RefCell<Vec<Duration>>> = Rc::default();
    for (no, client) in clients.into_iter().enumerate() {
        let (cpu, dir, took, ended) = (cpu.clone(), dir.clone(), Rc::clone(&took), Rc::clone(&ended));
        cpu.clone().spawn(async move {
            let longest = rounds(&cpu, &client, &dir, no).await;
            took.borrow_mut().push(longest);
            ended.wake_all();
        });
    }
    ended.until(|| (took.borrow().len() == all).then(|| took.borrow().iter().max().copied())).await.unwrap_or_default()
}

/// The longest pass of any of `GOOD` clients, concurrent with `others` clients that misbehave.
fn longest_round(seed: u64, others: usize) -> Duration {
    let stage = stage(seed);
    let life = stage.begin();
    let clients: Vec<Rc<Client>> = (0..GOOD).map(|no| stage.client(&life, no as u8)).collect();
    let world = stage.world.clone();
    let (from, to, frames) = (stage.clients.id, stage.server_host, life.host.kernel.clone());
    let (nfs, acceptor) = (Arc::clone(&life.nfs), Arc::clone(&life.acceptor));
    let longest = stage.run(&life, async move |cpu| {
        let dir = clients[0].mount().await.expect("the root");
        for no in 0..NAMES {
            clients[0].make(&dir, &format!("name {no}")).await;
        }
        for no in 0..others {
            let connection = world.connect(from, to, PORT).expect("the server listens");
            misbehave(&cpu, connection, Random(seed ^ no as u64), no, &dir);
        }
        let longest = side_by_side(&cpu, clients, dir).await;
        let (reservations, held) = (nfs.sessions().reservations(), frames.frames().bytes_held());
        assert!(held <= CACHE, "{held} bytes of frames are held");
        assert!(reservations.in_flight() <= CACHE / 2, "{} bytes of replies are held", reservations.in_flight());
        assert!(
            others == 0 || reservations.in_flight() > CACHE / 4,
            "nobody is stuck: {} bytes",
            reservations.in_flight()
        );
        assert!(
            others == 0 || reservations.arriving() > CACHE / 4 / 4096,
            "nobody is stuck: {} frames",
            reservations.arriving()
        );
        // Connections that never end by themselves are ended.
        ended(&cpu, &acceptor).await;
        assert_eq!((reservations.in_flight(), reservations.arriving()), (0, 0));
        longest
    });
    stage.end(life);
    longest
}

/// Waits until no client is connected any more.
async fn ended(cpu: &Processor, acceptor: &Acceptor) {
    let start = cpu.now();
    while serving(acceptor) > 0 {
        let waited = cpu.now().since(start);
        assert!(waited < Duration::from_secs(1200), "{} connections after {waited:?}", serving(acceptor));
        cpu.sleep(Duration::from_secs(1)).await;
    }
}

/// A client that misbehaves: it never reads its replies, stops in the middle, or sends garbage.
fn misbehave(cpu: &Processor, connection: Connection, mut random: Random, no: usize, dir: &nfs_fh3) {
    let head = |procedure: u32| [&7_u32.to_be_bytes()[..], &head(PROGRAM, procedure, &Void)].concat();
    let record = |message: &[u8]| [&(message.len() as u32 | 1 << 31).to_be_bytes(), message].concat();
    let handle = [&(dir.data.len() as u32).to_be_bytes()[..], &dir.data[..]].concat();
    let readdirplus = record(&[&head(17)[..], &handle, &[0; 16], &[0, 1, 0, 0, 0, 1, 0, 0]].concat());
    let bytes = match no % 4 {
        // Never reads the replies.
        0 => readdirplus.repeat(300),
        // The beginning of a WRITE.
        1 => {
            let arguments = [&handle[..], &[0; 8], &LEN.to_be_bytes(), &[0, 0, 0, 0]].concat();
            let length = LEN.to_be_bytes();
            let mark = (((head(7).len() + arguments.len() + 4) as u32 + LEN) | (1 << 31)).to_be_bytes();
            [&mark[..], &head(7), &arguments, &length, &[1; 3000]].concat()
        }
        // Sends nothing more after the first bytes.
        2 => readdirplus[..17].to_vec(),
        _ => (0..20_000).map(|_| random.next() as u8).collect(),
    };
    let here = cpu.clone();
    cpu.spawn(async move {
        let _ = send_all(&here, connection, bytes).await;
        if no % 8 == 3 {
            while receive_exact(&here, connection, 1).await.is_ok() {}
        }
    });
}

#[test]
fn among_a_thousand_clients_the_stuck_and_the_hostile_harm_nobody() {
    for seed in 1..=3 {
        let alone = longest_round(seed, 0);
        let among = longest_round(seed, CLIENTS - GOOD);
        assert!(among <= alone * 2, "seed {seed}: {alone:?} became {among:?}");
    }
}
