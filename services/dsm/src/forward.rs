//! Pages that go straight from the node that has them to the one that wants them (switch `forwarding`). What was sent so is
//! retained here until its home says that it has it: a copy that may only be read is otherwise evicted without a word.

use kernel::Processor;
use policy::coherence::{Envelope, Forward, Message, Mode, PageNo};

use crate::Shared;
use crate::core::Core;
use crate::waiting::{Content, Loaded};

impl Shared {
    /// The message as this node can act upon it; `None`: not now, and it is sent again.
    pub(crate) fn possible(&self, core: &Core, mut envelope: Envelope, content: &Content) -> Option<Envelope> {
        match &mut envelope.message {
            // Without a connection it would be waited for in vain.
            Message::Recall { forward, .. } => {
                let is_up = |to: &Forward| self.links.get(usize::from(to.to.node.0)).is_some_and(|link| link.is_up());
                *forward = forward.filter(is_up);
            }
            // There is no frame in which it could be retained: it comes from its home when it is asked for again.
            Message::Grant { page, .. } if matches!(content, Content::Page(Loaded::Bytes(_))) => {
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
        self.note_granted(cpu, core, page, forward.to);
    }

    /// A grant has put content here.
    pub(crate) fn retain_forwarded(&self, core: &mut Core, page: PageNo, content: &Content) {
        if let Content::Page(Loaded::Frame(frame)) = content
            && core.node.copied(page).is_forwarded
        {
            core.forwarded.insert(page, frame.clone());
        }
    }

    /// Retains it no longer than its home may not have it; what was written since is in the cache.
    pub(crate) fn settle_forwarded(&self, core: &mut Core, page: PageNo) {
        if !core.forwarded.is_empty() {
            let copied = core.node.copied(page);
            if !copied.is_forwarded || copied.is_dirty {
                core.forwarded.remove(&page);
            }
        }
    }
}
