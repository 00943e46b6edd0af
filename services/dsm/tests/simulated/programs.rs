//! Programs that have mapped the volume, at simulated nodes. What the host would do for them is a model that knows which
//! pages each may read and write: a page is copied out only when nobody writes it any more, and never filled twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dsm::MappingNo;
use machine::mapping::{Fault, Faults, Mapping};
use machine::{Connection, Errno};
use policy::unit::BLOCK_BYTES;

use crate::scene::{Scene, Setup};

const PORT: u16 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    ReadOnly,
    Writable,
    Poisoned,
}

#[derive(Default)]
struct Pages {
    pages: BTreeMap<u64, (State, Box<[u8]>)>,
    wakes: BTreeMap<u64, u64>,
}

impl Pages {
    fn wake(&mut self, page: u64) {
        *self.wakes.entry(page).or_default() += 1;
    }
}

/// A program's memory.
pub struct Memory {
    pages: Mutex<Pages>,
    len: u64,
    /// The program has ended: it takes nothing any more.
    pub is_gone: AtomicBool,
    /// What is there may not be what was written: the guard may have emptied it.
    pub has_lapsed: AtomicBool,
    /// The host has no memory for pages.
    pub is_short: AtomicBool,
    /// The mapping is over: all was taken away at once.
    is_cleared: AtomicBool,
}

impl Memory {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("one thread")
    }

    pub fn state(&self, page: u64) -> Option<State> {
        self.pages().pages.get(&page).map(|(state, _)| *state)
    }

    /// Changes each time threads that wait for the page are woken, and look again.
    pub fn wakes(&self, page: u64) -> u64 {
        self.pages().wakes.get(&page).copied().unwrap_or(0)
    }

    pub fn is_cleared(&self) -> bool {
        self.is_cleared.load(Ordering::Relaxed)
    }

    /// Pages that it has.
    pub fn held(&self) -> usize {
        self.pages().pages.len()
    }

    /// What an instruction does with a page that it may access.
    pub fn access<T>(&self, page: u64, access: impl FnOnce(&mut [u8]) -> T) -> T {
        access(&mut self.pages().pages.get_mut(&page).expect("it is there").1)
    }

    fn change(&self, page: u64, from: State, to: State) -> Result<(), Errno> {
        let mut pages = self.pages();
        let (state, _) = pages.pages.get_mut(&page).filter(|(state, _)| *state == from).ok_or(Errno::INVALID)?;
        *state = to;
        Ok(())
    }
}

impl Mapping for Memory {
    fn faults(&self) -> Faults {
        Faults(0)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn decode(&self, _received: &[u8]) -> Vec<Fault> {
        Vec::new()
    }

    fn fill(&self, page: u64, bytes: &[u8; 4096], is_writable: bool) -> Result<(), Errno> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(Errno::INVALID);
        }
        if self.is_short.load(Ordering::Relaxed) {
            return Err(Errno::NO_MEMORY);
        }
        let state = if is_writable { State::Writable } else { State::ReadOnly };
        assert!(!self.is_cleared(), "page {page} is filled when all was taken away");
        let mut pages = self.pages();
        let before = pages.pages.insert(page, (state, bytes[..].into()));
        pages.wake(page);
        assert!(before.is_none_or(|(state, _)| state == State::Poisoned), "page {page} is filled twice");
        Ok(())
    }

    fn allow_writes(&self, page: u64) -> Result<(), Errno> {
        if self.is_short.load(Ordering::Relaxed) {
            return Err(Errno::NO_MEMORY);
        }
        if self.has_lapsed.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        self.change(page, State::ReadOnly, State::Writable)?;
        self.wake(page)
    }

    fn forbid_writes(&self, page: u64) -> Result<(), Errno> {
        self.change(page, State::Writable, State::ReadOnly)
    }

    fn copy_out(&self, page: u64, into: &mut [u8; 4096]) -> Result<(), Errno> {
        let pages = self.pages();
        let (state, bytes) = pages.pages.get(&page).ok_or(Errno::INVALID)?;
        assert_eq!(*state, State::ReadOnly, "page {page} is copied while the program may write it");
        into.copy_from_slice(bytes);
        if self.has_lapsed.load(Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }

    fn remove(&self, page: u64) -> Result<(), Errno> {
        let mut pages = self.pages();
        let state = pages.pages.get(&page).map(|(state, _)| *state);
        assert_ne!(state, Some(State::Writable), "page {page} is removed while it is written");
        // As with Linux, poison stays.
        if state == Some(State::ReadOnly) {
            pages.pages.remove(&page);
        }
        Ok(())
    }

    fn clear(&self) -> Result<(), Errno> {
        self.pages().pages.clear();
        self.is_cleared.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn poison(&self, page: u64) -> Result<(), Errno> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(Errno::INVALID);
        }
        let mut pages = self.pages();
        match pages.pages.insert(page, (State::Poisoned, Box::default())) {
            None => pages.wake(page),
            // Linux says that it is there.
            Some((State::Poisoned, _)) => return Err(Errno::INVALID),
            Some(_) => panic!("page {page} is poisoned while it is there"),
        }
        Ok(())
    }

    fn wake(&self, page: u64) -> Result<(), Errno> {
        self.pages().wake(page);
        Ok(())
    }
}

/// A program at a node.
pub struct Program {
    pub node: usize,
    pub no: MappingNo,
    pub memory: Arc<Memory>,
    connection: Connection,
}

impl Program {
    pub fn start(scene: &Scene, node: usize) -> Program {
        Program::try_start(scene, node).expect("mapped")
    }

    /// `None`: the node may not answer now.
    pub fn try_start(scene: &Scene, node: usize) -> Option<Program> {
        let running = scene.nodes[node].as_ref().expect("it runs");
        let host = running.host.id;
        let memory = Arc::new(Memory {
            pages: Mutex::default(),
            len: running.shared().config().size / BLOCK_BYTES,
            is_gone: AtomicBool::new(false),
            has_lapsed: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            is_cleared: AtomicBool::new(false),
        });
        // What the program says there, it does not.
        let connection = scene.world.connect(host, host, PORT).expect("connected");
        let cpu = &running.host.processors[0];
        match running.shared().map(cpu, memory.clone(), connection) {
            Some(no) => Some(Program { node, no, memory, connection }),
            None => {
                scene.world.reset_connection(connection);
                None
            }
        }
    }

    /// Its process dies.
    pub fn end(self, scene: &Scene) {
        scene.world.reset_connection(self.connection);
    }

    /// A thread waits for a page.
    pub fn fault(&self, scene: &Scene, page: u64, is_write: bool) {
        let running = scene.nodes[self.node].as_ref().expect("it runs");
        let cpu = &running.host.processors[0];
        running.shared().on_faults(cpu, self.no, &[Fault { page, is_write }]);
        scene.world.kick(running.host.id, cpu.id());
    }

    /// Waits until a thread of the program may access a page, as the host makes it wait; false: that is a signal.
    fn touch(&self, scene: &mut Scene, page: u64, is_write: bool) -> bool {
        let is_over = |memory: &Memory| match memory.state(page) {
            Some(State::Writable | State::Poisoned) => true,
            Some(State::ReadOnly) => !is_write,
            None => false,
        };
        if !is_over(&self.memory) {
            self.fault(scene, page, is_write);
            let memory = Arc::clone(&self.memory);
            assert!(scene.run_until(None, |_| is_over(&memory)), "page {page} never came");
        }
        self.memory.state(page) != Some(State::Poisoned)
    }

    pub fn load(&self, scene: &mut Scene, page: u64) -> Option<u8> {
        self.touch(scene, page, false).then(|| self.memory.access(page, |bytes| bytes[0]))
    }

    pub fn store(&self, scene: &mut Scene, page: u64, value: u8) -> bool {
        let may = self.touch(scene, page, true);
        if may {
            self.memory.access(page, |bytes| bytes.fill(value));
        }
        may
    }
}

/// With nodes that programs can connect to.
pub fn scene(setup: Setup) -> Scene {
    let scene = Scene::new(setup);
    (0..scene.nodes.len()).for_each(|node| listen(&scene, node));
    scene
}

/// From now on, programs can connect to a node that has just started.
pub fn listen(scene: &Scene, node: usize) {
    let host = scene.nodes[node].as_ref().expect("it runs").host.id;
    scene.world.listen(host, PORT);
}
