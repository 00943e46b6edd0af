//! A program as it is loaded: its code is checked and compiled, and each of its functions known with its types.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use wasmtime::wasmparser::{Parser, Payload};
use wasmtime::{ExternType, FuncType, InstancePre, Linker, Module, ModuleExport, ValType};

use super::complexity::{VALUES_MAX, is_too_complex};
use super::describe::{self, Description, DescriptionError, EXPORT, SECTION, check_name};
use super::direct::Direct;
use super::engine::Runtime;
use super::guest::Suspendable;
use super::host;
use super::requests::Names;
use super::state::{self, State};
use crate::{Argument, Signature, Type};

/// Longest module. Bytes.
pub const MODULE_BYTES_MAX: u64 = 4 << 20;

/// The function that fills a new database. Clients cannot call it.
pub const INIT: &str = "init";

/// Why a module cannot be a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModuleError {
    #[error("it is longer than {MODULE_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "it may take too long to compile: functions have too many branches, calls and accesses of memory, or locals beside \
         them, or more than {VALUES_MAX} parameters"
    )]
    TooComplex,
    #[error("it is no WebAssembly module that can be executed: {0}")]
    Invalid(String),
    #[error("it imports {name} from {module}; a program has only the module {of}, with {all}",
            of = host::MODULE, all = host::NAMES.join(", "))]
    Import { module: String, name: String },
    #[error(transparent)]
    Description(#[from] DescriptionError),
    #[error("it has the function {0} twice")]
    Twice(String),
    #[error("it describes the function {0}, but does not export it")]
    Missing(String),
    #[error("the function {described} must be of the type {expected} in WebAssembly, and is {found}")]
    Types { described: Box<Signature>, expected: String, found: String },
    #[error("the function {INIT} must neither have arguments nor return anything")]
    Init,
    #[error(
        "the parameters and the result of the function {0} are not all i64 or f64: then it must be described in the \
         section \"{SECTION}\""
    )]
    Undescribed(String),
    #[error("it has no function that could be called")]
    Empty,
    #[error("it does not export its memory")]
    NoMemory,
    #[error("programs cannot be executed on this host: {0}")]
    Runtime(String),
}

/// A function, and where it is in the module.
pub(super) type Described = (Description, ModuleExport);

/// A compiled program.
pub struct Program {
    name: String,
    bytes: Box<[u8]>,
    pub(super) instance: InstancePre<Suspendable>,
    pub(super) at_once: InstancePre<Direct>,
    pub(super) memory: Option<ModuleExport>,
    /// `None`: each call needs a new instance.
    pub(super) state: Option<Arc<State>>,
    pub(super) init: Option<ModuleExport>,
    /// What `init` did is known to be committed and durable, or there is no `init`.
    initialized: AtomicBool,
    /// Tables that its calls asked for by name: a program belongs to one database.
    pub(super) names: Arc<Names>,
}

impl Program {
    /// Checks and compiles the module `bytes`. Returns the program, and its functions in the order of their description.
    ///
    /// # Errors
    /// If it cannot be a program.
    pub(super) fn read(name: &str, bytes: &[u8]) -> Result<(Arc<Program>, Vec<Described>), ModuleError> {
        if bytes.len() as u64 > MODULE_BYTES_MAX {
            return Err(ModuleError::TooLong);
        }
        if is_too_complex(bytes) {
            return Err(ModuleError::TooComplex);
        }
        let runtime = Runtime::get().map_err(|error| ModuleError::Runtime(error.to_owned()))?;
        let invalid = |error: wasmtime::Error| {
            // Some show bytes, each on a line.
            let text = format!("{error:#}");
            ModuleError::Invalid(text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let compile = |bytes: &[u8]| Module::from_binary(&runtime.engine, bytes);
        let with_state = state::with_exports(bytes).and_then(|bytes| compile(&bytes).ok());
        let state = with_state.as_ref().and_then(State::new).map(Arc::new);
        let module = with_state.map_or_else(|| compile(bytes), Ok).map_err(invalid)?;
        check_imports(&module)?;
        let memory = module.get_export("memory").is_some_and(|export| export.memory().is_some());
        if !memory && module.imports().len() > 0 {
            return Err(ModuleError::NoMemory);
        }
        let descriptions = match custom_section(bytes, SECTION) {
            Some(section) => describe::parse(&section)?,
            None => infer(&module)?,
        };
        check_descriptions(&module, &descriptions)?;
        let init = export_name(&module, INIT);
        let init = match module.get_export(&init) {
            None => None,
            Some(ExternType::Func(of)) if of.params().len() + of.results().len() == 0 => module.get_export_index(&init),
            Some(_) => return Err(ModuleError::Init),
        };
        let mut linker = Linker::new(&runtime.engine);
        host::define(&mut linker).map_err(invalid)?;
        let mut at_once = Linker::new(&runtime.engine);
        host::define_at_once(&mut at_once).map_err(invalid)?;
        let program = Arc::new(Program {
            name: name.to_owned(),
            bytes: bytes.into(),
            instance: linker.instantiate_pre(&module).map_err(invalid)?,
            at_once: at_once.instantiate_pre(&module).map_err(invalid)?,
            state,
            memory: memory.then(|| module.get_export_index("memory")).flatten(),
            init,
            initialized: AtomicBool::new(init.is_none()),
            names: Arc::default(),
        });
        let exported = |description: Description| {
            let name = export_name(&module, &description.signature.name);
            module.get_export_index(&name).map(|export| (description, export))
        };
        Ok((program, descriptions.into_iter().filter_map(exported).collect()))
    }

    /// The name of its file, without `.wasm`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module that it was compiled from.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Acquire)
    }

    /// What `init` did is durable.
    pub(crate) fn set_initialized(&self) {
        self.initialized.store(true, Ordering::Release);
    }
}

fn check_imports(module: &Module) -> Result<(), ModuleError> {
    let is_ours = |import: &wasmtime::ImportType<'_>| {
        import.module() == host::MODULE && host::NAMES.contains(&import.name()) && import.ty().func().is_some()
    };
    match module.imports().find(|import| !is_ours(import)) {
        None => Ok(()),
        Some(import) => Err(ModuleError::Import { module: import.module().to_owned(), name: import.name().to_owned() }),
    }
}

/// The name under which the module exports the function `name`: if it has both, the one that nothing else may have.
fn export_name<'a>(module: &Module, name: &'a str) -> Cow<'a, str> {
    let own = format!("{EXPORT}{name}");
    if module.get_export(&own).is_some() { own.into() } else { name.into() }
}

fn check_descriptions(module: &Module, descriptions: &[Description]) -> Result<(), ModuleError> {
    if descriptions.is_empty() {
        return Err(ModuleError::Empty);
    }
    let mut names = BTreeSet::new();
    for description in descriptions {
        let name = &description.signature.name;
        if !names.insert(name) {
            return Err(ModuleError::Twice(name.clone()));
        }
        if name == INIT {
            return Err(ModuleError::Init);
        }
        let Some(ExternType::Func(found)) = module.get_export(&export_name(module, name)) else {
            return Err(ModuleError::Missing(name.clone()));
        };
        let (parameters, results) = wasm_types(description);
        let expected = FuncType::new(module.engine(), parameters, results);
        if !FuncType::eq(&expected, &found) {
            return Err(ModuleError::Types {
                described: Box::new(description.signature.clone()),
                expected: show(&expected),
                found: show(&found),
            });
        }
    }
    Ok(())
}

/// As in WebAssembly's text: `(i64, i32) -> (i64)`.
fn show(of: &FuncType) -> String {
    let list = |types: &mut dyn Iterator<Item = ValType>| types.map(|of| of.to_string()).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(&mut of.params()), list(&mut of.results()))
}

/// How values are passed. A boolean is an i32, a text or bytea the i32 of its length: the program fetches the bytes with
/// `argument`, and returns them with `reply`. In place of NULL there is 0.
fn wasm_types(description: &Description) -> (Vec<ValType>, Vec<ValType>) {
    let parameters = description.signature.arguments.iter().map(|argument| match argument.of {
        Type::BigInt => ValType::I64,
        Type::DoublePrecision => ValType::F64,
        Type::Bool | Type::Text | Type::Bytea => ValType::I32,
    });
    let result = description.signature.returns.and_then(|of| match of {
        Type::Bool => Some(ValType::I32),
        Type::BigInt => Some(ValType::I64),
        Type::DoublePrecision => Some(ValType::F64),
        Type::Text | Type::Bytea => None,
    });
    (parameters.collect(), result.into_iter().collect())
}

/// The functions of a module that does not describe them. Arguments have no names there: they are `a1`, `a2` and so on.
fn infer(module: &Module) -> Result<Vec<Description>, ModuleError> {
    let mut descriptions = Vec::new();
    for export in module.exports() {
        let ExternType::Func(of) = export.ty() else { continue };
        let name = export.name().strip_prefix(EXPORT).unwrap_or(export.name());
        if name == INIT || name.starts_with('_') {
            continue;
        }
        let undescribed = || ModuleError::Undescribed(name.to_owned());
        let types = |mut types: Box<dyn Iterator<Item = ValType> + '_>| {
            types.try_fold(Vec::new(), |mut all, of| {
                all.push(match of {
                    ValType::I64 => Type::BigInt,
                    ValType::F64 => Type::DoublePrecision,
                    _ => return Err(undescribed()),
                });
                Ok(all)
            })
        };
        let parameters = types(Box::new(of.params()))?;
        let results = types(Box::new(of.results()))?;
        if results.len() > 1 || parameters.len() > describe::ARGUMENTS_MAX {
            return Err(undescribed());
        }
        let named = |(index, of)| Argument { name: format!("a{}", index + 1), of };
        let signature = Signature {
            name: check_name(name)?.to_owned(),
            arguments: parameters.into_iter().enumerate().map(named).collect(),
            returns: results.first().copied(),
        };
        let nullable = vec![false; signature.arguments.len()];
        descriptions.push(Description { signature, nullable, returns_null: false });
    }
    Ok(descriptions)
}

/// The content of all custom sections of that name, joined, in a module that is valid; `None` if there is none.
fn custom_section(module: &[u8], name: &str) -> Option<Vec<u8>> {
    let sections = Parser::new(0).parse_all(module).filter_map(|payload| match payload {
        Ok(Payload::CustomSection(section)) if section.name() == name => Some(section.data()),
        _ => None,
    });
    sections.map(<[u8]>::to_vec).reduce(|joined, next| [joined, next].concat())
}
