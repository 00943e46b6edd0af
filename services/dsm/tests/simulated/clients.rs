//! Clients of the nodes, which record what they do.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange};
use testkit::history::{Act, Event, Flush, History};
use testkit::random::Random;
use testkit::scene::disk::block;
use testkit::scene::{context, stable};

use crate::scene::Scene;

/// Blocks used: a few that all want, of several shards.
pub const BLOCKS: [u64; 8] = [0, 1, 2, 256, 257, 700, 1100, 1101];

/// What all clients share.
#[derive(Clone)]
pub struct Clients {
    pub history: Rc<RefCell<History>>,
    pub stopping: Rc<Cell<bool>>,
    values: Rc<Cell<u64>>,
    pub failures: Rc<Cell<u64>>,
}

/// What a server would answer, as it does over NBD.
fn answered<T>(volume: &Volume, result: Result<T, Errno>) -> Result<T, Errno> {
    if volume.may_answer() { result } else { Err(Errno::SHUT_DOWN) }
}

impl Clients {
    pub fn new(scene: &Scene) -> Clients {
        Clients {
            history: Rc::clone(&scene.history),
            stopping: Rc::default(),
            values: Rc::default(),
            failures: Rc::default(),
        }
    }

    /// Starts clients at a node.
    pub fn start(&self, scene: &Scene, node: usize, count: u64, seed: u64) {
        for client in 0..count {
            let clients = self.clone();
            let random = Random(seed ^ (client + 1) << 32 ^ (node as u64) << 48);
            let process = node + 1000 * scene.incarnation(node);
            scene.start(node, async move |cpu, volume| clients.run(&cpu, &volume, process, random).await);
        }
    }

    async fn run(&self, cpu: &Processor, volume: &Arc<Volume>, node: usize, mut random: Random) {
        while !self.stopping.get() {
            let number = BLOCKS[random.below(BLOCKS.len() as u64) as usize];
            match random.below(100) {
                0..50 => self.read(cpu, volume, node, number).await.map(drop).unwrap_or_else(|_| self.fail()),
                50..94 => {
                    let (part, is_stable) = (random.chance(400), random.chance(100));
                    let _ = self.write(cpu, volume, node, number, (part, is_stable)).await;
                }
                _ => self.flush(cpu, volume, node).await,
            }
            cpu.sleep(Duration::from_micros(random.below(4000))).await;
        }
    }

    /// Reads one block after the other.
    pub async fn read_on(&self, cpu: &Processor, volume: &Volume, node: usize, mut random: Random) {
        while !self.stopping.get() {
            let number = BLOCKS[random.below(BLOCKS.len() as u64) as usize];
            let _ = self.read(cpu, volume, node, number).await;
            cpu.sleep(Duration::from_micros(random.below(4000))).await;
        }
    }

    fn fail(&self) {
        self.failures.set(self.failures.get() + 1);
    }

    fn begin(&self, cpu: &Processor, node: usize, block: u64, act: Act, value: u64) -> usize {
        let mut history = self.history.borrow_mut();
        history.events.push(Event { block, node, act, value, begun: cpu.now().ns(), ended: None });
        history.events.len() - 1
    }

    pub async fn read(&self, cpu: &Processor, volume: &Volume, node: usize, number: u64) -> Result<u64, Errno> {
        let event = self.begin(cpu, node, number, Act::Read, 0);
        let frames = answered(volume, volume.read(cpu, block(number), context()).await)?;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&frames[0].bytes()[..8]);
        let value = u64::from_le_bytes(bytes);
        let mut history = self.history.borrow_mut();
        history.events[event].value = value;
        history.events[event].ended = Some(cpu.now().ns());
        Ok(value)
    }

    /// Writes a value of its own into a block: all of it, or its first part.
    pub async fn write(
        &self,
        cpu: &Processor,
        volume: &Volume,
        node: usize,
        number: u64,
        (part, is_stable): (bool, bool),
    ) -> Result<u64, Errno> {
        let value = self.values.get() + 1;
        self.values.set(value);
        let mut frames = cpu.kernel().allocate(cpu, 1).await;
        let bytes = frames[0].bytes_mut().expect("unshared");
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&value.to_le_bytes()));
        let event = self.begin(cpu, node, number, Act::Write, value);
        let range = ByteRange::new(number * BLOCK_BYTES, if part { 512 } else { BLOCK_BYTES });
        let result = volume.write(cpu, range, frames, if is_stable { stable() } else { context() }).await;
        let result = answered(volume, result);
        if result.is_err() {
            self.fail();
        }
        result?;
        let now = cpu.now().ns();
        let mut history = self.history.borrow_mut();
        history.events[event].ended = Some(now);
        if is_stable {
            history.flushes.push(Flush { node, begun: now, ended: now, only: Some(value) });
        }
        Ok(value)
    }

    pub async fn flush(&self, cpu: &Processor, volume: &Volume, node: usize) {
        let begun = cpu.now().ns();
        if answered(volume, volume.flush(cpu, context()).await).is_ok() {
            self.history.borrow_mut().flushes.push(Flush { node, begun, ended: cpu.now().ns(), only: None });
        } else {
            self.fail();
        }
    }
}
