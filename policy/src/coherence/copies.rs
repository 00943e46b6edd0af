//! A node's own copies of pages: requested, held, given up.

use std::time::Duration;

use super::surveyed::Surveyed;
use super::table::{Record, Table};
use super::{
    Action, Address, Copied, Forward, Incarnation, Local, LocalError, Message, Mode, NodeId, Outbox, PageNo, Places,
    Request, Serial, Storage, Version,
};
use crate::unit::Instant;

#[derive(Clone, Debug)]
pub(super) struct Copies {
    pub(super) me: Address,
    pub(super) pages: Table<Copy>,
    pub(super) pages_max: usize,
    pub(super) requests: u64,
    /// Pages held to read, and to write.
    pub(super) held: [usize; 2],
    /// Homes that have surveyed this node, with their terms.
    pub(super) surveyed: Surveyed,
}

/// State of one page. Removed when all is `None`.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) page: PageNo,
    pub(super) held: Option<Held>,
    /// Nothing is unanswered of most pages.
    busy: Option<Box<Busy>>,
}

#[derive(Clone, Debug, Default)]
struct Busy {
    waiting: Option<Waiting>,
    saving: Option<Saving>,
    /// When the last unanswered message was sent.
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) serial: Serial,
    pub(super) mode: Mode,
    pub(super) version: Version,
    pub(super) is_dirty: bool,
    /// Another node has sent it, and the home may not have it.
    pub(super) is_forwarded: bool,
}

/// A local request that is not granted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) mode: Mode,
    pub(super) blank: bool,
    /// The recall of its grant, if that has come first.
    pub(super) recalled: Option<Recalled>,
}

/// What a home wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recalled {
    pub(super) serial: Serial,
    pub(super) retain: bool,
    pub(super) forward: Option<Forward>,
}

/// Data given up, until the home has them. No request is sent meanwhile: the home would not know that they exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saving {
    pub(super) serial: Serial,
    pub(super) version: Version,
    /// A local process waits for `Saved`.
    pub(super) is_awaited: bool,
    /// The node that was sent them, too.
    pub(super) forwarded: Option<NodeId>,
    /// They came from another node, and the home may not have them: also if nothing was written here since.
    pub(super) is_forwarded: bool,
}

impl Held {
    fn saving(self, is_awaited: bool) -> Saving {
        let Held { serial, version, is_forwarded, .. } = self;
        Saving { serial, version, is_awaited, forwarded: None, is_forwarded }
    }
}

impl Record for Copy {
    fn page(&self) -> PageNo {
        self.page
    }

    fn is_quiet(&self) -> bool {
        self.waiting().is_none() && self.saving().is_none()
    }
}

impl Copy {
    pub(super) fn new(page: PageNo) -> Self {
        Copy { page, held: None, busy: None }
    }

    fn is_idle(&self) -> bool {
        self.held.is_none() && self.is_quiet()
    }

    pub(super) fn waiting(&self) -> Option<Waiting> {
        self.busy.as_ref().and_then(|busy| busy.waiting)
    }

    pub(super) fn saving(&self) -> Option<Saving> {
        self.busy.as_ref().and_then(|busy| busy.saving)
    }

    fn is_saving(&self, serial: Serial) -> bool {
        self.saving().is_some_and(|saving| saving.serial == serial)
    }

    pub(super) fn set_waiting(&mut self, waiting: Option<Waiting>) {
        self.busy().waiting = waiting;
    }

    pub(super) fn set_sent(&mut self, now: Instant) {
        self.busy().sent = now;
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// Gives back what it needs only while something is unanswered.
    pub(super) fn rest(&mut self) {
        if self.is_quiet() {
            self.busy = None;
        }
    }

    pub(super) fn ask(&mut self, out: &mut Outbox) {
        let Some(Waiting { request, mode, blank, .. }) = self.waiting().filter(|_| self.saving().is_none()) else {
            return;
        };
        self.busy().sent = out.now;
        let have = self.held.map(|held| held.serial);
        out.send_home(self.page, Message::Ask { page: self.page, mode, request, have, blank });
    }

    /// The state of this grant at the node.
    pub(super) fn send_gave_up(&mut self, serial: Serial, out: &mut Outbox) {
        self.busy().sent = out.now;
        let retained = self.held.is_some_and(|held| held.serial == serial);
        let saving = self.saving().filter(|saving| saving.serial == serial);
        let (data, to) = (saving.map(|saving| saving.version), Incarnation::default());
        let forwarded = saving.and_then(|saving| saving.forwarded);
        out.send_home(self.page, Message::GaveUp { page: self.page, serial, retained, data, to, forwarded });
    }

    /// Gives up the right to write, and what the home may not have, retaining a copy to read.
    fn protect(&mut self, is_awaited: bool, out: &mut Outbox) {
        let Some(held) = self.held.as_mut().filter(|held| held.mode == Mode::Write || held.is_forwarded) else {
            return;
        };
        held.mode = Mode::Read;
        out.act(Action::Protect(self.page));
        let before = *held;
        (held.is_dirty, held.is_forwarded) = (false, false);
        if before.is_dirty || before.is_forwarded {
            self.busy().saving = Some(before.saving(is_awaited));
        }
    }

    fn revoke(&mut self, is_awaited: bool, out: &mut Outbox) {
        let Some(held) = self.held.take() else { return };
        out.act(Action::Revoke(self.page));
        if held.is_dirty || held.is_forwarded {
            self.busy().saving = Some(held.saving(is_awaited));
        } else if self.saving().is_none() {
            out.act(Action::Discard(self.page));
        }
    }

    fn write(&mut self, out: &mut Outbox) {
        let Some(held) = self.held.as_mut() else { return };
        let writes = if held.is_dirty { held.version.writes + 1 } else { 1 };
        held.version = Version { serial: held.serial, writes };
        held.is_dirty = true;
        out.act(Action::Access { page: self.page, mode: Mode::Write, version: held.version });
    }

    /// `is_forwarded`: it comes from the node that had the page. Returns its recall, if that has come already.
    fn on_grant(&mut self, message: Message, is_forwarded: bool, out: &mut Outbox) -> Option<Recalled> {
        let Message::Grant { page, mode, request, serial, data } = message else { return None };
        let version = data.or(self.held.map(|held| held.version));
        let waiting = self.waiting().filter(|waiting| waiting.request == request);
        let unseen = waiting.filter(|waiting| waiting.blank).map(|_| Version { serial, writes: 0 });
        match version.or(unseen).filter(|_| waiting.is_some()) {
            Some(version) => {
                self.set_waiting(None);
                self.held = Some(Held { serial, mode, version, is_dirty: false, is_forwarded });
                match mode {
                    Mode::Read => out.act(Action::Access { page, mode, version }),
                    Mode::Write => self.write(out),
                }
                return waiting?.recalled.filter(|recalled| recalled.serial == serial);
            }
            // A duplicate of the present grant.
            None if self.held.is_some_and(|held| held.serial == serial) && !self.is_saving(serial) => {}
            None => self.send_gave_up(serial, out),
        }
        None
    }

    /// Answers a recall; one that has overtaken the grant of this request when that comes.
    fn on_recall(&mut self, request: Request, recalled: Recalled, lives: impl Fn(Address) -> bool, out: &mut Outbox) {
        match self.waiting() {
            Some(waiting) if waiting.request == request => {
                self.set_waiting(Some(Waiting { recalled: Some(recalled), ..waiting }));
            }
            _ => self.give_up(recalled, lives, out),
        }
    }

    fn give_up(&mut self, recalled: Recalled, lives: impl Fn(Address) -> bool, out: &mut Outbox) {
        let Recalled { serial, retain, forward } = recalled;
        if let Some(held) = self.held.filter(|held| held.serial == serial) {
            if retain {
                self.protect(false, out)
            } else {
                self.revoke(false, out)
            }
            // Only what ends the right to write: the home has not granted the page to anybody else since.
            let is_written = held.mode == Mode::Write && (held.is_dirty || held.is_forwarded);
            if let Some(forward) = forward.filter(|forward| is_written && lives(forward.to)) {
                self.forward(forward, held.version, retain, out);
            }
        }
        self.send_gave_up(serial, out);
    }

    /// Sends what was just given up to the node that wants it.
    fn forward(&mut self, Forward { to, request, serial }: Forward, version: Version, retain: bool, out: &mut Outbox) {
        let mode = if retain { Mode::Read } else { Mode::Write };
        if let Some(saving) = &mut self.busy().saving {
            saving.forwarded = Some(to.node);
        }
        let data = Some(version);
        out.send_to(to, Message::Grant { page: self.page, mode, request, serial, data });
    }

    fn on_recorded(&mut self, serial: Serial) {
        if let Some(held) = self.held.as_mut().filter(|held| held.serial == serial) {
            held.is_forwarded = false;
        }
    }

    /// Whether something was retained until now.
    fn on_taken(&mut self, serial: Serial, storage: Storage, out: &mut Outbox) -> bool {
        if storage == Storage::Shared {
            out.send_home(self.page, Message::Noted { page: self.page, serial });
        }
        let Some(saving) = self.saving().filter(|saving| saving.serial == serial) else { return false };
        self.busy().saving = None;
        if self.held.is_none() {
            out.act(Action::Discard(self.page));
        }
        if saving.is_awaited {
            out.act(Action::Saved(self.page));
        }
        self.ask(out);
        true
    }
}

impl Copies {
    pub(super) fn new(me: Address, pages_max: usize) -> Self {
        Copies { me, pages: Table::new([]), pages_max, requests: 0, held: [0; 2], surveyed: Surveyed::default() }
    }

    pub(super) fn holds(&self, page: PageNo) -> Option<(Mode, Version)> {
        self.pages.get(page).and_then(|copy| copy.held).map(|held| (held.mode, held.version))
    }

    pub(super) fn copied(&self, page: PageNo) -> Copied {
        self.pages.get(page).map_or(Copied::default(), |copy| Copied {
            held: copy.held.map(|held| held.mode),
            is_dirty: copy.held.is_some_and(|held| held.is_dirty),
            is_forwarded: copy.held.is_some_and(|held| held.is_forwarded),
            is_waiting: copy.waiting().is_some(),
        })
    }

    pub(super) fn is_dirty(&self, page: PageNo) -> bool {
        self.pages.get(page).and_then(|copy| copy.held).is_some_and(|held| held.is_dirty)
    }

    pub(super) fn held_from(&self, from: PageNo) -> impl Iterator<Item = (PageNo, Mode)> + '_ {
        self.pages.from(from).filter_map(|(page, copy)| copy.held.map(|held| (page, held.mode)))
    }

    pub(super) fn is_waiting(&self, page: PageNo) -> bool {
        self.pages.get(page).is_some_and(|copy| copy.waiting().is_some())
    }

    pub(super) fn is_saving(&self, page: PageNo) -> bool {
        self.pages.get(page).is_some_and(|copy| copy.saving().is_some())
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.pages.is_quiet()
    }

    /// The access that made this version changed nothing. If its grant was recalled before it came, that was given up already.
    pub(super) fn unwritten(&mut self, page: PageNo, version: Version) {
        self.change(page, |copy| {
            let held = copy.held.as_mut().filter(|held| held.version == version);
            held.into_iter().for_each(|held| held.is_dirty = false);
            if copy.saving().is_some_and(|saving| saving.version == version && !saving.is_forwarded) {
                copy.busy().saving = None;
            }
        });
    }

    pub(super) fn on_local(&mut self, want: Local, page: PageNo, out: &mut Outbox) -> Result<(), LocalError> {
        let is_full = self.pages.len() >= self.pages_max;
        match self.pages.get(page) {
            Some(copy) if copy.waiting().is_some() => return Err(LocalError::Busy(page.0)),
            Some(_) => {}
            None if matches!(want, Local::WriteBack | Local::Drop) => {
                out.act(Action::Saved(page));
                return Ok(());
            }
            None if is_full => return Err(LocalError::Full),
            None => {}
        }
        let mut requests = self.requests;
        self.change(page, |copy| match (want, copy.held) {
            (Local::Read, Some(Held { version, .. })) => {
                out.act(Action::Access { page, mode: Mode::Read, version });
            }
            (Local::Write | Local::Overwrite, Some(Held { mode: Mode::Write, .. })) => copy.write(out),
            (Local::Read | Local::Write | Local::Overwrite, _) => {
                requests += 1;
                let mode = if want == Local::Read { Mode::Read } else { Mode::Write };
                let blank = want == Local::Overwrite;
                copy.set_waiting(Some(Waiting { request: Request(requests), mode, blank, recalled: None }));
                copy.ask(out);
            }
            (Local::WriteBack | Local::Drop, _) => save(copy, want, out),
        });
        self.requests = requests;
        Ok(())
    }

    /// Asks the home at once for what is waited for.
    pub(super) fn ask_again(&mut self, page: PageNo, out: &mut Outbox) {
        self.change(page, |copy| copy.ask(out));
    }

    pub(super) fn on_message(&mut self, places: &Places, (from, message): (Address, Message), out: &mut Outbox) {
        let storage = places.config.storage;
        let (Message::Grant { page, .. }
        | Message::Recall { page, .. }
        | Message::Taken { page, .. }
        | Message::Recorded { page, .. }) = message
        else {
            return;
        };
        let is_forwarded = places.named(page).is_none_or(|home| home.at != from);
        let lives = |to: Address| places.members.of(to.node) == Some(to.incarnation);
        let mut is_taken = false;
        self.change(page, |copy| match message {
            Message::Grant { .. } => {
                if let Some(recalled) = copy.on_grant(message, is_forwarded, out) {
                    copy.give_up(recalled, lives, out);
                }
            }
            Message::Recall { serial, request, retain, forward, .. } => {
                copy.on_recall(request, Recalled { serial, retain, forward }, lives, out);
            }
            Message::Recorded { serial, .. } => copy.on_recorded(serial),
            Message::Taken { serial, .. } => is_taken = copy.on_taken(serial, storage, out),
            _ => {}
        });
        // It may be the last that a survey waits for.
        if let (Message::Taken { serial, .. }, Some(home)) = (message, places.named(page).filter(|_| is_taken))
            && serial.incarnation < home.since
        {
            self.answer_survey(places, (home.at, home.since), page, out);
        }
    }

    fn change(&mut self, page: PageNo, change: impl FnOnce(&mut Copy)) {
        let mode = |copy: &Copy| copy.held.map(|held| held.mode);
        let change = |copy: &mut Copy| {
            let before = mode(copy);
            change(copy);
            copy.rest();
            (before, mode(copy))
        };
        let (before, after) = self.pages.change(page, || Copy::new(page), change, Copy::is_idle);
        before.into_iter().for_each(|mode| self.held[mode as usize] -= 1);
        after.into_iter().for_each(|mode| self.held[mode as usize] += 1);
    }

    /// Pages held to read, and to write.
    pub(super) fn held(&self) -> [usize; 2] {
        self.held
    }

    pub(super) fn on_tick(&mut self, places: &Places, timeout: Duration, out: &mut Outbox) {
        let (me, surveyed) = (self.me, &self.surveyed);
        self.pages.for_waiting(|copy| {
            // Messages of a node to itself are never lost.
            let is_own = places.named(copy.page).is_some_and(|home| home.at == me);
            if out.now.since(copy.busy().sent) < timeout || is_own {
                return;
            }
            match copy.saving() {
                Some(saving) if surveyed.will_ask(places, copy.page, saving.serial) => {}
                Some(saving) => copy.send_gave_up(saving.serial, out),
                None => copy.ask(out),
            }
        });
    }

    /// The homes of these pages have returned, or are others. Earlier grants end: data that are dirty, or that an earlier home
    /// may have lost, return to the home, and copies are dropped.
    pub(super) fn on_new_home(
        &mut self,
        places: &Places,
        (concerns, is_uncertain): (impl Fn(PageNo) -> bool, impl Fn(PageNo) -> bool),
        out: &mut Outbox,
    ) {
        self.surveyed.forget(places);
        let (storage, surveyed) = (places.config.storage, &self.surveyed);
        let change = |page, copy: &mut Copy| {
            let Some(home) = places.named(page).filter(|_| concerns(page)) else { return };
            let has_no_versions = matches!(storage, Storage::Plain | Storage::Volatile);
            if has_no_versions && copy.held.is_none() && copy.busy().saving.take().is_some() {
                out.act(Action::Lost(page));
            }
            let is_stored = copy.saving().is_none();
            if let Some(held) = copy.held.as_mut().filter(|held| held.serial.incarnation < home.since) {
                held.is_dirty |= is_stored && (storage == Storage::Volatile || is_uncertain(page));
                copy.revoke(false, out);
            }
            match copy.saving() {
                Some(saving) if surveyed.will_ask(places, page, saving.serial) => {}
                Some(saving) => copy.send_gave_up(saving.serial, out),
                None => copy.ask(out),
            }
            copy.rest();
        };
        self.pages.for_all(change, Copy::is_idle);
        self.held = [0; 2];
        self.pages.iter().filter_map(|copy| copy.held).for_each(|held| self.held[held.mode as usize] += 1);
    }
}

/// Writes back what the home may not have; another copy is dropped without a message.
fn save(copy: &mut Copy, want: Local, out: &mut Outbox) {
    let is_kept = copy.held.is_some_and(|held| held.is_dirty || held.is_forwarded);
    match want {
        Local::Drop => copy.revoke(true, out),
        _ if is_kept => copy.protect(true, out),
        _ => {}
    }
    match &mut copy.busy().saving {
        // In flight already, after a recall.
        Some(saving) => {
            saving.is_awaited = true;
            let serial = saving.serial;
            if is_kept {
                copy.send_gave_up(serial, out);
            }
        }
        None => out.act(Action::Saved(copy.page)),
    }
}
