//! The instances of calls that are executed at once. To make one and to drop it takes as long as a short call. So one whose
//! call returned waits for the next call of its program on this processor, as new, if its module allows that ([`State`]).

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use kernel::Processor;
use wasmtime::{Instance, Store, Val};

use super::Program;
use super::callee::{Callee, Parameters, called};
use super::direct::Direct;
use super::engine::{Place, Runtime};
use super::guest::{Guest, SLICE};
use super::state::{self, State};

/// Instances that wait on a processor, at most.
const WAITING_MAX: usize = 16;

/// Those of one processor, the last used at the end.
#[derive(Default)]
struct Waiting(RefCell<Vec<CallInstance>>);

pub(super) struct CallInstance {
    pub store: Store<Direct>,
    /// `None`: its first call makes it.
    instance: Option<Instance>,
    /// `None`: it has one call only.
    state: Option<(Weak<State>, state::Of)>,
    place: Place<'static>,
}

impl CallInstance {
    /// One of this program. `None`: there is no place for it.
    pub(super) fn take(cpu: &Processor, program: &Program) -> Option<CallInstance> {
        if let Some(state) = &program.state {
            let waiting = cpu.own::<Waiting>();
            let mut waiting = waiting.0.borrow_mut();
            if let Some(index) = waiting.iter().rposition(|instance| instance.is_of(state)) {
                return Some(waiting.remove(index));
            }
        }
        let runtime = Runtime::get().ok()?;
        let place = runtime.places.try_take()?;
        let mut store = Store::new(&runtime.engine, Direct::default());
        store.limiter(|guest| guest.invocation_mut());
        Some(CallInstance { store, instance: None, state: None, place })
    }

    fn state(&self) -> Option<Arc<State>> {
        self.state.as_ref()?.0.upgrade()
    }

    fn is_of(&self, program: &Arc<State>) -> bool {
        self.state.as_ref().is_some_and(|(state, _)| std::ptr::eq(state.as_ptr(), Arc::as_ptr(program)))
    }

    /// Calls the function, which may execute for a slice.
    pub(super) fn call(&mut self, callee: &Callee<'_>, parameters: &Parameters) -> wasmtime::Result<Option<Val>> {
        self.store.set_fuel(SLICE)?;
        let instance = match self.instance {
            Some(instance) => instance,
            None => self.make(callee.program)?,
        };
        let function = called(&mut self.store, callee, &instance)?;
        let mut results = callee.room();
        function.call(&mut self.store, &parameters.values, &mut results)?;
        Ok(results.pop())
    }

    fn make(&mut self, program: &Program) -> wasmtime::Result<Instance> {
        let instance = program.at_once.instantiate(&mut self.store)?;
        let store = &mut self.store;
        self.state = program.state.as_ref().map(|state| (Arc::downgrade(state), state.of(store, &instance)));
        Ok(*self.instance.insert(instance))
    }

    /// After a call that returned.
    pub(super) fn give_back(mut self, cpu: &Processor) {
        let Some((state, of)) = &self.state else { return };
        let is_new = state.upgrade().is_some_and(|state| state.restore(&mut self.store, of));
        if is_new && self.place.is_spare() {
            let waiting = cpu.own::<Waiting>();
            let mut waiting = waiting.0.borrow_mut();
            // Those of programs that were replaced.
            waiting.retain(|instance| instance.state().is_some());
            if waiting.len() == WAITING_MAX {
                waiting.remove(0);
            }
            waiting.push(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel::ForcedUnitAccess;
    use testkit::scene::disk::Server;

    use super::*;
    use crate::Monitor;
    use crate::program::Programs;
    use crate::store::Database;

    /// After some calls of a function that needs that much memory, how many instances wait for the next.
    fn waiting_after_calls(pages: u32) -> usize {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            r#"(module (memory (export "memory") {pages}) (func (export "f") (i32.store (i32.const 8) (i32.const 1))))"#
        );
        std::fs::write(directory.path().join("test.wasm"), wat::parse_str(text).unwrap()).unwrap();
        let (programs, _) = Programs::load(directory.path());
        let server = Server::new(1);
        let volume = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, _, _| {
            let database = Database::open(&cpu, volume).await.unwrap();
            let monitor = Monitor::new("test".to_owned(), database, programs);
            let function = monitor.programs().find("f").unwrap();
            for _ in 0..3 {
                monitor.call(&cpu, &function, &[]).await.unwrap();
            }
            let waiting = cpu.own::<Waiting>().0.borrow().len();
            drop(monitor);
            waiting
        })
    }

    #[test]
    fn an_instance_waits_for_the_next_call_if_its_memory_can_be_restored() {
        assert_eq!([1, 2, 17, 32, 33].map(waiting_after_calls), [1, 1, 1, 1, 0]);
    }
}
