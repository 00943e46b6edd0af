//! What an instance's state is, so that one can be used again: a module whose instances have nothing to restore but a
//! memory and numbers in global variables.
//!
//! A memory of one page is cleared. Compilers reserve more, as a rule 1 MiB for the stack, of which a call uses a few KiB: of such a
//! one only what is in the host's memory is cleared. Giving it back to the host after each call took 90 µs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{LazyLock, OnceLock};

use wasm_encoder::{Encode as _, ExportKind, RawSection};
use wasmtime::wasmparser::{BinaryReaderError, GlobalType, Operator, Parser, Payload, TypeRef};
use wasmtime::{Global, Instance, Memory, Module, ModuleExport, Store, Val};

use super::engine::MEMORY_KEPT;

/// Of the names under which global variables are exported for this.
const EXPORT: &str = "awase:state ";

/// Variables that are restored; compilers have one or two.
const VARIABLES_MAX: usize = 64;

/// Longest memory that is restored. Bytes.
const RESTORED_BYTES_MAX: u64 = 2 << 20;

/// Of a memory, what is kept in the host's. Bytes.
const RESIDENT_MAX: usize = 256 << 10;

/// Tells which pages of this process are in memory; 64 bits for each (proc_pid_pagemap(5)).
static PAGEMAP: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/self/pagemap").ok());
const PAGEMAP_ENTRY_BYTES: usize = 8;
const PAGE_BYTES_MIN: usize = 4096;
/// Bits of those that are in memory, or were and are swapped.
const PAGEMAP_RESIDENT: u64 = 3 << 62;

/// What instances of a module have to be given back before the next call.
pub(super) struct State {
    memory: Option<ModuleExport>,
    variables: Vec<ModuleExport>,
    /// What is in the memory of a new instance.
    content: OnceLock<Content>,
}

struct Content {
    memory_bytes: usize,
    /// Where the first byte is that is not zero, and all up to the last one.
    from: usize,
    bytes: Box<[u8]>,
}

/// The state of one instance.
pub(super) struct Of {
    memory: Option<Memory>,
    variables: Vec<(Global, Val)>,
}

/// The module with its variables exported. `None`: its instances cannot be made as new ones are, or it is invalid.
pub(super) fn with_exports(module: &[u8]) -> Option<Vec<u8>> {
    let variables = variables(module).ok().flatten()?;
    let mut encoder = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.ok()?;
        let Some((id, range)) = payload.as_section() else { continue };
        let mut data = module.get(range)?.to_vec();
        if let Payload::ExportSection(exports) = payload {
            let entries = exports.original_position();
            data.clear();
            exports.count().checked_add(variables.len() as u32)?.encode(&mut data);
            data.extend_from_slice(module.get(entries..exports.range().end)?);
            for index in &variables {
                name(*index).as_str().encode(&mut data);
                ExportKind::Global.encode(&mut data);
                index.encode(&mut data);
            }
        }
        encoder.section(&RawSection { id, data: &data });
    }
    Some(encoder.finish())
}

/// Indices of the global variables. `None`: there is other state, or something happens before the first call.
fn variables(module: &[u8]) -> Result<Option<Vec<u32>>, BinaryReaderError> {
    let (mut variables, mut memories) = (Vec::new(), 0);
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::StartSection { .. } => return Ok(None),
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    if !matches!(import?.ty, TypeRef::Func(_)) {
                        return Ok(None);
                    }
                }
            }
            Payload::MemorySection(section) => memories += section.count(),
            Payload::GlobalSection(globals) => {
                for (index, global) in (0..).zip(globals) {
                    let GlobalType { mutable, content_type, .. } = global?.ty;
                    if mutable && content_type.is_reference_type() {
                        return Ok(None);
                    }
                    variables.extend(mutable.then_some(index));
                }
            }
            Payload::CodeSectionEntry(function) => {
                for operator in function.get_operators_reader()? {
                    if changes_more(&operator?) {
                        return Ok(None);
                    }
                }
            }
            _ => {}
        }
    }
    Ok((memories <= 1 && variables.len() <= VARIABLES_MAX).then_some(variables))
}

/// Tables, and segments that are dropped.
const fn changes_more(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::TableSet { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. }
            | Operator::TableInit { .. }
            | Operator::ElemDrop { .. }
            | Operator::DataDrop { .. }
    )
}

fn name(index: u32) -> String {
    format!("{EXPORT}{index}")
}

impl State {
    /// Of a module that [`with_exports`] returned. `None`: its memory is too long, or not exported.
    pub(super) fn new(module: &Module) -> Option<State> {
        let memory = module.get_export("memory")?;
        let memory = memory.memory()?;
        let bytes = memory.minimum() * memory.page_size();
        if bytes > RESTORED_BYTES_MAX || bytes > MEMORY_KEPT as u64 && PAGEMAP.is_none() {
            return None;
        }
        let variables = module.exports().map(|export| export.name()).filter(|name| name.starts_with(EXPORT));
        Some(State {
            memory: module.get_export_index("memory"),
            variables: variables.filter_map(|name| module.get_export_index(name)).collect(),
            content: OnceLock::new(),
        })
    }

    /// That of a new instance.
    pub(super) fn of<T>(&self, store: &mut Store<T>, instance: &Instance) -> Of {
        let memory = self.memory.as_ref().and_then(|memory| instance.get_module_export(&mut *store, memory));
        let memory = memory.and_then(|export| export.into_memory());
        self.content.get_or_init(|| Content::of(memory.map_or(&[], |memory| memory.data(&*store))));
        let variable = |variable| {
            let variable = instance.get_module_export(&mut *store, variable)?.into_global()?;
            Some((variable, variable.get(&mut *store)))
        };
        Of { memory, variables: self.variables.iter().filter_map(variable).collect() }
    }

    /// Makes it that of a new instance. False: it cannot be.
    pub(super) fn restore<T>(&self, store: &mut Store<T>, of: &Of) -> bool {
        let Some(content) = self.content.get() else { return false };
        let memory = of.memory.map_or(&mut [][..], |memory| memory.data_mut(&mut *store));
        if memory.len() != content.memory_bytes {
            return false;
        }
        if memory.len() <= MEMORY_KEPT {
            content.restore(0, memory);
        } else if content.restore_resident(memory).is_err() {
            return false;
        }
        of.variables.iter().all(|(variable, value)| variable.set(&mut *store, *value).is_ok())
    }
}

impl Content {
    fn of(memory: &[u8]) -> Content {
        let from = memory.iter().position(|byte| *byte != 0).unwrap_or(memory.len());
        let to = memory.iter().rposition(|byte| *byte != 0).map_or(from, |last| last + 1);
        Content { memory_bytes: memory.len(), from, bytes: memory[from..to].into() }
    }

    /// Restores a part of the memory, which begins at `at`.
    fn restore(&self, at: usize, part: &mut [u8]) {
        part.fill(0);
        let (from, to) = (self.from.max(at), (self.from + self.bytes.len()).min(at + part.len()));
        if from < to {
            part[from - at..to - at].copy_from_slice(&self.bytes[from - self.from..to - self.from]);
        }
    }

    /// Restores the pages that are in the host's memory. The others were never written.
    ///
    /// # Errors
    /// If the host does not tell which those are, or they are too many to be kept.
    fn restore_resident(&self, memory: &mut [u8]) -> io::Result<()> {
        let page_bytes = rustix::param::page_size();
        let mut entries = [0; RESTORED_BYTES_MAX as usize / PAGE_BYTES_MIN * PAGEMAP_ENTRY_BYTES];
        let entries = &mut entries[..memory.len() / page_bytes * PAGEMAP_ENTRY_BYTES];
        let at = memory.as_ptr() as usize / page_bytes * PAGEMAP_ENTRY_BYTES;
        PAGEMAP.as_ref().ok_or(io::ErrorKind::Unsupported)?.read_exact_at(entries, at as u64)?;
        let (entries, _) = entries.as_chunks();
        let is_resident = |entry: [u8; PAGEMAP_ENTRY_BYTES]| u64::from_ne_bytes(entry) & PAGEMAP_RESIDENT != 0;
        if entries.iter().filter(|entry| is_resident(**entry)).count() * page_bytes > RESIDENT_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        for (index, page) in memory.chunks_exact_mut(page_bytes).enumerate() {
            if is_resident(entries[index]) {
                self.restore(index * page_bytes, page);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::Engine;

    use super::*;

    fn is_restored(body: &str) -> bool {
        let module = wat::parse_str(format!("(module {body})")).unwrap();
        let Some(exported) = with_exports(&module) else { return false };
        Module::from_binary(&Engine::default(), &exported).is_ok_and(|module| State::new(&module).is_some())
    }

    #[test]
    fn what_is_restored_is_a_memory_and_numbers() {
        let plain = r#"(memory (export "memory") 1) (global (mut i32) (i32.const 3)) (global i64 (i64.const 5))
            (func (export "f") (global.set 0 (i32.const 7)))"#;
        assert!(is_restored(plain));
        for more in [
            "(start $start) (func $start)",
            "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func)))",
            "(table 1 funcref) (func (drop (table.grow (ref.null func) (i32.const 1))))",
            "(table 1 funcref) (func (table.fill (i32.const 0) (ref.null func) (i32.const 1)))",
            "(table 1 funcref) (func (table.copy (i32.const 0) (i32.const 0) (i32.const 1)))",
            "(table 1 funcref) (elem $e func) (func (table.init $e (i32.const 0) (i32.const 0) (i32.const 0)))",
            "(elem $e func) (func (elem.drop $e))",
            r#"(data $d "d") (func (data.drop $d))"#,
            "(global (mut externref) (ref.null extern))",
            r#"(global (export "awase:state 0") i32 (i32.const 0))"#,
        ] {
            assert!(!is_restored(&format!("{plain} {more}")), "{more}");
        }
        assert!(is_restored(r#"(memory (export "memory") 32) (func (export "f"))"#));
        assert!(!is_restored(r#"(memory (export "memory") 33) (func (export "f"))"#));
        let variables = |count| "(global (mut i64) (i64.const 1))".repeat(count);
        assert!(is_restored(&(plain.to_owned() + &variables(VARIABLES_MAX - 1))));
        assert!(!is_restored(&(plain.to_owned() + &variables(VARIABLES_MAX))));
        assert!(!is_restored(r#"(memory 1) (func (export "f"))"#));
    }

    #[test]
    fn a_part_of_a_module_is_refused_or_accepted_as_before() {
        let module = wat::parse_str(r#"(module (memory (export "memory") 1) (global (mut i32) (i32.const 3)) (func))"#);
        let (module, engine) = (module.unwrap(), Engine::default());
        let is_accepted = |module: &[u8]| Module::from_binary(&engine, module).is_ok();
        for length in 0..=module.len() {
            let part = &module[..length];
            assert!(with_exports(part).is_none_or(|exported| is_accepted(&exported) == is_accepted(part)), "{length}");
        }
    }
}
