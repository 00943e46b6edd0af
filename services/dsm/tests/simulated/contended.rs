//! Pages that many want, again and again.

use std::sync::Arc;
use std::time::Duration;

use kernel::device::Device;
use kernel::request::{Action, Request};
use kernel::{Processor, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange};
use testkit::scene::context;
use testkit::scene::disk::fill;

use crate::acknowledged::moving;

/// Blocks that all nodes write, and those that one writes, too, around them.
const CONTENDED: u64 = 16;
const WRITTEN: u64 = 64;

/// The device takes 5 ms, so that some block is always being read or stored for others.
#[test]
fn a_write_out_does_not_wait_until_nobody_wants_any_of_its_blocks() {
    for seed in [2, 5, 8] {
        let (mut scene, clients) = moving(seed, 3);
        for (node, number) in [1, 2].into_iter().flat_map(|node| (0..CONTENDED).map(move |number| (node, number))) {
            let own = clients.clone();
            scene.start(node, async move |cpu: Processor, volume: Arc<Volume>| {
                while !own.stopping.get() {
                    let _ = own.write(&cpu, &volume, node, number * 4, (false, false)).await;
                    // Not all at the same time.
                    cpu.sleep(Duration::from_micros(50 + 370 * number)).await;
                }
            });
        }
        scene.pass(Duration::from_millis(100));
        let home = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let written = scene.run(0, async move |cpu, volume| {
            let range = ByteRange::new(0, WRITTEN * BLOCK_BYTES);
            fill(&cpu, &volume, range, 7, context()).await?;
            let frames = cpu.kernel().allocate(&cpu, WRITTEN as usize).await;
            home.perform(&cpu, Request { action: Action::Write(range, frames), context: context() }).await.map(drop)
        });
        clients.stopping.set(true);
        assert_eq!(written, Ok(()), "seed {seed}");
    }
}
