//! A home that stays and ends in order, and returns.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use testkit::scene::context;

use crate::acknowledged::write;
use crate::clients::Clients;
use crate::failures::leave;
use crate::scene::{Backing, Scene, Setup};

/// Of the first shard.
const BLOCK: u64 = 3;

fn scene(seed: u64) -> (Scene, Clients) {
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, ..Setup::new(seed, 3) });
    scene.until_connected();
    let clients = Clients::new(&scene);
    (scene, clients)
}

/// What its disk has after a power cut.
fn found(scene: &mut Scene, clients: &Clients) -> u64 {
    scene.power_cut(0);
    scene.boot(0);
    scene.until_connected();
    let own = clients.clone();
    scene.run(0, async move |cpu, volume| own.read(&cpu, &volume, 0, BLOCK).await).expect("read")
}

/// What node 1 has written is stored, since node 2 has read it, and not flushed. If its host loses power after that, too, nothing is
/// lost.
#[test]
fn no_flush_fails_after_a_home_has_ended_in_order() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, clients) = scene(seed);
        let value = write(&mut scene, &clients, 1, BLOCK);
        let own = clients.clone();
        let read = scene.run(2, async move |cpu, volume| own.read(&cpu, &volume, 2, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
        leave(&mut scene, 0);
        scene.boot(0);
        scene.until_connected();
        if seed.is_multiple_of(2) {
            assert_eq!(found(&mut scene, &clients), value, "seed {seed}");
        }
        let stable = {
            let own = clients.clone();
            async move |cpu: Processor, volume: Arc<Volume>| {
                own.write(&cpu, &volume, 1, BLOCK + 1, (false, true)).await.map(drop)
            }
        };
        assert_eq!(scene.run(1, stable), Ok(()), "seed {seed}");
        let flush = async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await;
        assert_eq!([2, 1, 0].map(|node| scene.run(node, flush)), [Ok(()); 3], "seed {seed}");
    }
}

/// It ends and returns at any time while a block is written, stored and flushed.
#[test]
fn what_is_flushed_while_its_home_ends_in_order_and_returns_is_durable() {
    for (us, is_stable) in (0..6000).step_by(200).flat_map(|us| [(us, false), (us, true)]) {
        let (mut scene, clients) = scene(us);
        let own = clients.clone();
        let written = scene.start(1, async move |cpu: Processor, volume: Arc<Volume>| {
            let value = own.write(&cpu, &volume, 1, BLOCK, (false, is_stable)).await?;
            if !is_stable {
                volume.flush(&cpu, context()).await?;
            }
            Ok::<_, machine::Errno>(value)
        });
        scene.pass(Duration::from_micros(us));
        leave(&mut scene, 0);
        scene.boot(0);
        assert!(scene.run_until(None, |_| written.borrow().is_some()), "{us} us");
        let value = written.take().expect("just looked");
        assert!(value.is_ok(), "{us} us, {is_stable}: {value:?}");
        assert_eq!(Ok(found(&mut scene, &clients)), value, "{us} us, {is_stable}");
    }
}
