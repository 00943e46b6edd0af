//! Nearly valid conversations, from the first option to the last request, in any pieces: each session ends, and no
//! other client notices.

use crate::scene::{Peer, Route, Setup, serve};
use kernel::Processor;
use std::time::Duration;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::{conversation, mutate};

const MIB: u64 = 1 << 20;

const PEERS: u64 = 12;

async fn attack(cpu: &Processor, route: &Route, seed: u64) {
    let random = &mut testkit::random::Random(seed);
    let bytes = mutate::conversation(random, &conversation::nbd("disk", seed.is_multiple_of(2)));
    let mut peer: Peer = route.peer(cpu);
    for piece in bytes.chunks(1 + random.index(bytes.len().max(2) - 1)) {
        if peer.send(piece).await.is_err() {
            break;
        }
        if random.chance(100) {
            peer.pause(Duration::from_micros(random.below(2000))).await;
        }
    }
}

#[test]
fn damaged_conversations_end_and_harm_nobody_else() {
    for seed in Rounds::new("damaged_conversations_end_and_harm_nobody_else", 5) {
        serve(Setup { memory: 8 * MIB, ..Setup::new(seed, 64 * MIB) }, async move |cpu, route| {
            let good = route.client(&cpu, "disk", true).await;
            // Far from where conversations write, unless all of an offset is damaged.
            let at = 48 * MIB + Random(seed).below(1000) * 4096;
            for peer in 0..PEERS {
                good.write(at, &[peer as u8; 8192], false).await.expect("written");
                attack(&cpu, &route, seed << 8 | peer).await;
                assert_eq!(good.flush().await, Ok(()));
                assert_eq!(good.read(at, 8192).await, Ok(vec![peer as u8; 8192]));
            }
        });
    }
}
