//! What a shared volume does from time to time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel::Processor;
use kernel::connection::Sessions;
use policy::coherence::{Action, Envelope, NodeId, PageNo};
use policy::unit::Instant;

use crate::Shared;
use crate::waiting::{Content, RETRANSMIT_AFTER};
use crate::wire::Word;

const TICK: Duration = Duration::from_millis(100);

/// So often a peer hears of this node at least. Ticks.
const BEAT_EACH: u64 = 10;

/// A peer that is silent for this long is disconnected, and connected anew.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Held pages looked at in one tick, once there are twice as many as the cache has blocks.
const LOOKED_AT: usize = 1024;

pub(crate) async fn run(cpu: Processor, shared: Weak<Shared>, sessions: Arc<Sessions>) {
    let (mut ticks, mut from) = (0, PageNo(0));
    while !sessions.is_stopping() {
        cpu.sleep(TICK).await;
        let Some(shared) = shared.upgrade().filter(|shared| !shared.has_ended()) else { return };
        ticks += 1;
        tick(&cpu, &shared, ticks);
        from = forget_some(&cpu, &shared, from);
    }
}

fn tick(cpu: &Processor, shared: &Shared, ticks: u64) {
    {
        let mut core = shared.core.lock();
        let core = &mut *core;
        let mut actions = core.node.on_tick(cpu.now());
        actions.retain(|action| match action {
            Action::Send(Envelope { to, .. }) => {
                shared.links.get(usize::from(to.node.0)).is_none_or(|link| !link.is_behind(cpu.now()))
            }
            _ => true,
        });
        shared.note(core, actions, Content::None);
        shared.save_forwarded(cpu, core, RETRANSMIT_AFTER);
        let in_vain = shared.homes_in_vain(core);
        for (page, entry) in core.pages.iter_mut() {
            let home = shared.config.policy().home(page);
            let is_in_vain = home.is_some_and(|home| in_vain & 1 << home.0 != 0);
            entry.expire(page, if is_in_vain { Instant::from_ns(u64::MAX) } else { cpu.now() });
            core.due.push_back(page);
        }
        shared.expire_faults(cpu, core);
        if ticks.is_multiple_of(BEAT_EACH) {
            shared.try_poisoned(cpu, core);
        }
        shared.drive(cpu, core);
        for node in (0..shared.links.len() as u16).map(NodeId).filter(|node| *node != shared.me.node) {
            let link = &shared.links[usize::from(node.0)];
            link.end_if_silent(cpu, SILENCE_MAX);
            if ticks.is_multiple_of(BEAT_EACH) && link.is_up() {
                shared.send_word(shared.address_of(core, node), Word::Beat, None);
            }
        }
    }
    shared.changed.wake_all();
}

/// The cache evicts without a word, so what this node holds grows beyond what it caches.
fn forget_some(cpu: &Processor, shared: &Shared, from: PageNo) -> PageNo {
    let mut core = shared.core.lock();
    if core.node.pages() as u64 <= 2 * cpu.kernel().cache_blocks() {
        return PageNo(0);
    }
    shared.drop_uncached(cpu, &mut core, from, LOOKED_AT, false).map_or(PageNo(0), |last| PageNo(last.0 + 1))
}
