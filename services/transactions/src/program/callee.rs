//! What is called with what, what it returned, and why it ended otherwise.

use std::sync::Arc;

use smallvec::SmallVec;
use wasmtime::{Func, Instance, ModuleExport, Store, Trap, Val, WasmBacktrace};

use super::attempts::Attempts;
use super::describe::EXPORT;
use super::guest::{Guest, Invocation};
use super::{Program, ProgramError};

/// Frames of the program's stack in a message.
const FRAMES_SHOWN: usize = 4;

/// What is called.
pub(super) struct Callee<'a> {
    pub program: &'a Program,
    pub export: &'a ModuleExport,
    /// Values that it returns.
    pub results: usize,
    /// `None`: it is never executed at once.
    pub attempts: Option<&'a Attempts>,
    /// It may not write.
    pub read_only: bool,
}

/// A function's arguments, as WebAssembly has them.
#[derive(Default)]
pub(super) struct Parameters {
    pub values: SmallVec<[Val; 4]>,
    pub texts: Vec<Option<Arc<[u8]>>>,
    pub nulls: u32,
}

/// What a function returned, as WebAssembly has it.
pub(super) struct Returned {
    pub result: Option<Val>,
    pub reply: Option<Vec<u8>>,
    pub null: bool,
    pub at_once: bool,
}

impl Returned {
    pub(super) fn new(result: Option<Val>, invocation: Invocation, at_once: bool) -> Returned {
        Returned { result, reply: invocation.reply, null: invocation.returns_null, at_once }
    }
}

impl Callee<'_> {
    /// Room for what it returns.
    pub(super) fn room(&self) -> SmallVec<[Val; 1]> {
        SmallVec::from_elem(Val::I64(0), self.results)
    }
}

/// The function that is called, in an instance of its own.
pub(super) fn called<G: Guest>(
    store: &mut Store<G>,
    callee: &Callee<'_>,
    instance: &Instance,
) -> wasmtime::Result<Func> {
    let memory = callee.program.memory.and_then(|memory| instance.get_module_export(&mut *store, &memory));
    store.data_mut().invocation_mut().memory = memory.and_then(|memory| memory.into_memory());
    let function = instance.get_module_export(store, callee.export).and_then(|export| export.into_func());
    function.ok_or_else(|| wasmtime::Error::msg("the function is not there"))
}

/// Why a program ended, in a person's words.
pub(super) fn reason(error: &wasmtime::Error) -> ProgramError {
    let what = match (error.downcast_ref::<ProgramError>(), error.downcast_ref::<Trap>()) {
        (Some(ProgramError::Trap(what)), _) => what.clone(),
        (Some(other), _) => return other.clone(),
        (None, Some(Trap::OutOfFuel)) => return ProgramError::Timeout,
        (None, Some(Trap::StackOverflow)) => "its stack is full: endless recursion?".to_owned(),
        (None, Some(Trap::UnreachableCodeReached)) => "it came to an instruction `unreachable`".to_owned(),
        (None, Some(trap)) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
        (None, None) => format!("{error:#}"),
    };
    let frames = error.downcast_ref::<WasmBacktrace>().map_or(&[][..], WasmBacktrace::frames);
    let names = frames.iter().filter_map(|frame| frame.func_name()).take(FRAMES_SHOWN);
    let names: Vec<&str> = names.map(plain_name).collect();
    let place = if names.is_empty() { String::new() } else { format!(" (in {})", names.join(", called by ")) };
    ProgramError::Trap(what + &place)
}

/// A function's name without what its export has, and without the types of its parameters, which linkers of C add.
fn plain_name(name: &str) -> &str {
    let name = name.strip_prefix(EXPORT).unwrap_or(name);
    if name.ends_with(')') { name.split('(').next().unwrap_or(name) } else { name }
}
