//! Pages that go straight from the node that has them to the one that wants them (switch `forwarding`). What was sent so is
//! retained here until its home says that it has it: a copy that may only be read is otherwise evicted without a word.

use std::time::Duration;

use kernel::Processor;
use policy::coherence::{Envelope, Forward, Local, Message, Mode, PageNo};
use policy::unit::Instant;

use crate::Shared;
use crate::core::Core;
use crate::waiting::{Content, Loaded, RETRANSMIT_AFTER};
use crate::watch::Part;

impl Shared {
    /// The message as this node can act upon it; `None`: not at all, and the page is to be asked for again.
    pub(crate) fn possible(&self, core: &Core, mut envelope: Envelope, content: &Content) -> Option<Envelope> {
        match &mut envelope.message {
            // Without a connection it would be waited for in vain.
            Message::Recall { forward, .. } => {
                let is_up = |to: &Forward| self.links.get(usize::from(to.to.node.0)).is_some_and(|link| link.is_up());
                *forward = forward.filter(is_up);
            }
            // There is no frame in which it could be retained until its home has it: it is to come from there.
            Message::Grant { page, .. } if matches!(content, Content::Page(Loaded::Bytes(_), _)) => {
                core.node.home(*page).filter(|home| home.at == envelope.from)?;
            }
            _ => {}
        }
        Some(envelope)
    }

    /// A grant of this home is made by the node that has the page.
    pub(crate) fn note_forwarded(
        &self,
        cpu: &Processor,
        core: &mut Core,
        page: PageNo,
        forward: &Forward,
        retain: bool,
    ) {
        core.watch.on_grant(page, forward.to.node, if retain { Mode::Read } else { Mode::Write });
        core.watch.end(Part::Home, page, forward.to.node, cpu.now());
    }

    /// A grant has put content here.
    pub(crate) fn retain_forwarded(&self, cpu: &Processor, core: &mut Core, page: PageNo, content: &Content) {
        if let Content::Page(Loaded::Frame(frame), _) = content
            && core.node.copied(page).is_forwarded
        {
            core.forwarded.insert(page, (cpu.now(), frame.clone()));
        }
    }

    /// Retains it no longer than its home may not have it; what was written since is in the cache.
    pub(crate) fn settle_forwarded(&self, core: &mut Core, page: PageNo) {
        if !core.forwarded.is_empty() {
            let copied = core.node.copied(page);
            if !copied.is_forwarded || copied.is_dirty {
                core.has_changed |= core.forwarded.remove(&page).is_some();
            }
        }
    }

    /// Gives their homes what was forwarded so long ago: the word that they have it may have been lost.
    pub(crate) fn save_forwarded(&self, cpu: &Processor, core: &mut Core, ago: Duration) {
        let now = cpu.now();
        let is_old = |page: &PageNo, since: Instant| now.since(since) >= ago && !core.is_leaving(*page);
        let old = core.forwarded.iter().filter(|(page, (since, _))| is_old(page, *since));
        for page in old.map(|(page, _)| *page).collect::<Vec<_>>() {
            if let Ok(actions) = core.node.on_local(now, Local::WriteBack, page) {
                self.note(core, actions, Content::None);
            }
        }
    }

    /// Does so with all of it, and waits for that.
    pub(crate) async fn give_back_forwarded(&self, cpu: &Processor) {
        let deadline = cpu.now() + 2 * RETRANSMIT_AFTER;
        {
            let mut core = self.core.lock();
            if core.forwarded.is_empty() {
                return;
            }
            self.save_forwarded(cpu, &mut core, Duration::ZERO);
            self.drive(cpu, &mut core);
        }
        let is_saved = |core: &Core| core.forwarded.is_empty() && core.saving.is_empty();
        // Late, the others wait until this node is dead.
        let _ = self.until(cpu, deadline, |core| is_saved(core).then_some(())).await;
    }
}
