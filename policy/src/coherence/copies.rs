//! A node's own copies of pages: asked for, held, given up.

use std::time::Duration;

use super::{Action, Address, Config, Local, LocalError, Message, Mode, PageNo, Request, Serial, Turn, Version};
use crate::unit::Instant;

/// A node's copies, in order of page.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    pub(super) me: Address,
    pub(super) pages: Vec<Copy>,
    pages_max: usize,
    pub(super) requests: u64,
}

/// What there is to know of one page. Forgotten when all is `None`.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) page: PageNo,
    pub(super) held: Option<Held>,
    pub(super) waiting: Option<Waiting>,
    pub(super) saving: Option<Saving>,
    /// When what is unanswered was sent.
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) serial: Serial,
    pub(super) mode: Mode,
    pub(super) version: Version,
    pub(super) is_dirty: bool,
}

/// The local request that was not granted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) mode: Mode,
}

/// Data given up, until the home has them. Nothing is asked for meanwhile: the home would think that they do not exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saving {
    pub(super) serial: Serial,
    pub(super) version: Version,
    /// Somebody here waits to hear that they are saved.
    pub(super) is_awaited: bool,
}

impl Copy {
    fn new(page: PageNo) -> Self {
        Copy { page, held: None, waiting: None, saving: None, sent: Instant::ZERO }
    }

    fn is_idle(&self) -> bool {
        self.held.is_none() && self.waiting.is_none() && self.saving.is_none()
    }

    fn ask(&mut self, turn: &mut Turn) {
        let Some(Waiting { request, mode }) = self.waiting.filter(|_| self.saving.is_none()) else { return };
        self.sent = turn.now;
        let have = self.held.map(|held| held.serial);
        turn.send_home(self.page, Message::Ask { page: self.page, mode, request, have });
    }

    /// How the node stands to this grant.
    fn tell_given_up(&mut self, serial: Serial, turn: &mut Turn) {
        self.sent = turn.now;
        let kept = self.held.is_some_and(|held| held.serial == serial);
        let data = self.saving.filter(|saving| saving.serial == serial).map(|saving| saving.version);
        turn.send_home(self.page, Message::GaveUp { page: self.page, serial, kept, data });
    }

    /// Gives up the right to write, keeping a copy to read.
    fn protect(&mut self, is_awaited: bool, turn: &mut Turn) {
        let Some(held) = self.held.as_mut().filter(|held| held.mode == Mode::Write) else { return };
        held.mode = Mode::Read;
        turn.act(Action::Protect(self.page));
        if std::mem::take(&mut held.is_dirty) {
            self.saving = Some(Saving { serial: held.serial, version: held.version, is_awaited });
        }
    }

    fn revoke(&mut self, is_awaited: bool, turn: &mut Turn) {
        let Some(held) = self.held.take() else { return };
        turn.act(Action::Revoke(self.page));
        if held.is_dirty {
            self.saving = Some(Saving { serial: held.serial, version: held.version, is_awaited });
        } else if self.saving.is_none() {
            turn.act(Action::Discard(self.page));
        }
    }

    fn write(&mut self, turn: &mut Turn) {
        let Some(held) = self.held.as_mut() else { return };
        let writes = if held.is_dirty { held.version.writes + 1 } else { 1 };
        held.version = Version { serial: held.serial, writes };
        held.is_dirty = true;
        turn.act(Action::Access { page: self.page, mode: Mode::Write, version: held.version });
    }

    fn on_grant(&mut self, message: Message, turn: &mut Turn) {
        let Message::Grant { page, mode, request, serial, data } = message else { return };
        let version = data.or(self.held.map(|held| held.version));
        let is_mine = self.waiting.is_some_and(|waiting| waiting.request == request);
        match version.filter(|_| is_mine) {
            Some(version) => {
                self.waiting = None;
                self.held = Some(Held { serial, mode, version, is_dirty: false });
                match mode {
                    Mode::Read => turn.act(Action::Access { page, mode, version }),
                    Mode::Write => self.write(turn),
                }
                turn.send_home(page, Message::Got { page, serial });
            }
            // It came before, and is held still.
            None if self.held.is_some_and(|held| held.serial == serial) && self.saving.is_none() => {
                turn.send_home(page, Message::Got { page, serial });
            }
            None => self.tell_given_up(serial, turn),
        }
    }

    fn on_recall(&mut self, serial: Serial, keep: bool, turn: &mut Turn) {
        if self.held.is_some_and(|held| held.serial == serial) {
            if keep { self.protect(false, turn) } else { self.revoke(false, turn) }
        }
        self.tell_given_up(serial, turn);
    }

    fn on_taken(&mut self, serial: Serial, turn: &mut Turn) {
        let Some(saving) = self.saving.filter(|saving| saving.serial == serial) else { return };
        self.saving = None;
        if self.held.is_none() {
            turn.act(Action::Discard(self.page));
        }
        if saving.is_awaited {
            turn.act(Action::Saved(self.page));
        }
        self.ask(turn);
    }
}

impl Copies {
    pub(super) fn new(me: Address, pages_max: usize) -> Self {
        Copies { me, pages: Vec::new(), pages_max, requests: 0 }
    }

    pub(super) fn holds(&self, page: PageNo) -> Option<(Mode, Version)> {
        self.find(page).and_then(|copy| copy.held).map(|held| (held.mode, held.version))
    }

    pub(super) fn is_waiting(&self, page: PageNo) -> bool {
        self.find(page).is_some_and(|copy| copy.waiting.is_some())
    }

    pub(super) fn is_saving(&self, page: PageNo) -> bool {
        self.find(page).is_some_and(|copy| copy.saving.is_some())
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.pages.iter().all(|copy| copy.waiting.is_none() && copy.saving.is_none())
    }

    pub(super) fn on_local(&mut self, want: Local, page: PageNo, turn: &mut Turn) -> Result<(), LocalError> {
        let is_full = self.pages.len() >= self.pages_max;
        let index = match self.index(page) {
            Ok(index) => index,
            Err(_) if matches!(want, Local::WriteBack | Local::Drop) => {
                turn.act(Action::Saved(page));
                return Ok(());
            }
            Err(_) if is_full => return Err(LocalError::Full),
            Err(index) => {
                self.pages.insert(index, Copy::new(page));
                index
            }
        };
        let copy = &mut self.pages[index];
        if copy.waiting.is_some() {
            return Err(LocalError::Busy(page.0));
        }
        match (want, copy.held) {
            (Local::Read, Some(Held { version, .. })) => {
                turn.act(Action::Access { page, mode: Mode::Read, version });
            }
            (Local::Write, Some(Held { mode: Mode::Write, .. })) => copy.write(turn),
            (Local::Read | Local::Write, _) => {
                self.requests += 1;
                let mode = if want == Local::Read { Mode::Read } else { Mode::Write };
                copy.waiting = Some(Waiting { request: Request(self.requests), mode });
                copy.ask(turn);
            }
            (Local::WriteBack | Local::Drop, _) => {
                save(copy, want, turn);
                self.forget(page);
            }
        }
        Ok(())
    }

    pub(super) fn on_message(&mut self, message: Message, turn: &mut Turn) {
        let (Message::Grant { page, .. } | Message::Recall { page, .. } | Message::Taken { page, .. }) = message else {
            return;
        };
        let mut unknown = Copy::new(page);
        let copy = match self.index(page) {
            Ok(index) => &mut self.pages[index],
            Err(_) => &mut unknown,
        };
        match message {
            Message::Grant { .. } => copy.on_grant(message, turn),
            Message::Recall { serial, keep, .. } => copy.on_recall(serial, keep, turn),
            Message::Taken { serial, .. } => copy.on_taken(serial, turn),
            _ => {}
        }
        self.forget(page);
    }

    pub(super) fn on_tick(&mut self, config: &Config, patience: Duration, turn: &mut Turn) {
        let me = self.me;
        for copy in &mut self.pages {
            // What a node says to itself is never lost.
            if turn.now.since(copy.sent) < patience || config.home(copy.page) == me.node {
                continue;
            }
            match copy.saving {
                Some(saving) => copy.tell_given_up(saving.serial, turn),
                None => copy.ask(turn),
            }
        }
    }

    /// A home has returned. What it granted before ends: data go back to it, and copies are gone.
    pub(super) fn on_new_home(&mut self, config: &Config, home: Address, turn: &mut Turn) {
        for copy in self.pages.iter_mut().filter(|copy| config.home(copy.page) == home.node) {
            if copy.held.is_some_and(|held| held.serial.incarnation < home.incarnation) {
                copy.revoke(false, turn);
            }
            match copy.saving {
                Some(saving) => copy.tell_given_up(saving.serial, turn),
                None => copy.ask(turn),
            }
        }
        self.pages.retain(|copy| !copy.is_idle());
    }

    /// A home asks what there is of before.
    pub(super) fn on_survey(&mut self, config: &Config, home: Address, turn: &mut Turn) {
        let mut has_old = false;
        for copy in self.pages.iter_mut().filter(|copy| config.home(copy.page) == home.node) {
            if let Some(old) = copy.saving.filter(|saving| saving.serial.incarnation < home.incarnation) {
                has_old = true;
                copy.tell_given_up(old.serial, turn);
            }
        }
        if !has_old {
            turn.send(home.node, Message::Surveyed);
        }
    }

    fn find(&self, page: PageNo) -> Option<&Copy> {
        self.index(page).ok().map(|index| &self.pages[index])
    }

    fn index(&self, page: PageNo) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&page, |copy| copy.page)
    }

    fn forget(&mut self, page: PageNo) {
        if let Ok(index) = self.index(page)
            && self.pages[index].is_idle()
        {
            self.pages.remove(index);
        }
    }
}

/// Writes back what is dirty; a clean copy to be dropped goes without a word.
fn save(copy: &mut Copy, want: Local, turn: &mut Turn) {
    let was_dirty = copy.held.is_some_and(|held| held.is_dirty);
    match want {
        Local::Drop => copy.revoke(true, turn),
        _ if was_dirty => copy.protect(true, turn),
        _ => {}
    }
    match &mut copy.saving {
        // Under way already, by a recall.
        Some(saving) => {
            saving.is_awaited = true;
            let serial = saving.serial;
            if was_dirty {
                copy.tell_given_up(serial, turn);
            }
        }
        None => turn.act(Action::Saved(copy.page)),
    }
}
