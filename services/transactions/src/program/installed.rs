//! The programs of a database: the files `*.wasm` of a directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use super::describe::check_name;
use super::{Function, MODULE_BYTES_MAX, ModuleError, Program};

const EXTENSION: &str = "wasm";

/// The functions of all programs that are installed.
#[derive(Default)]
pub struct Programs {
    directory: Option<PathBuf>,
    /// Held while they are loaded again.
    loading: Mutex<()>,
    now: RwLock<Arc<Installed>>,
    generation: AtomicU64,
}

#[derive(Default)]
struct Installed {
    /// By their names.
    programs: BTreeMap<String, Arc<Program>>,
    functions: BTreeMap<String, Arc<Function>>,
}

/// The functions of all programs at one time.
#[derive(Clone)]
pub struct Version {
    generation: u64,
    installed: Arc<Installed>,
}

impl Version {
    /// As [`Programs::generation`] then.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// In the order of names.
    pub fn functions(&self) -> Vec<Arc<Function>> {
        self.installed.functions.values().cloned().collect()
    }

    pub fn find(&self, name: &str) -> Option<Arc<Function>> {
        self.installed.functions.get(name).cloned()
    }
}

/// A file that is no program, or not the one that counts. It does not keep others from being loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {what}{}", path.display(), if *former { "; the version that was loaded before stays" } else { "" })]
pub struct Fault {
    pub path: PathBuf,
    pub what: FaultError,
    /// The version of this program that was loaded before stays.
    pub former: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultError {
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("the name of a program's file is one as SQL has them, and .wasm: {0}")]
    Name(super::DescriptionError),
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error("the program {program} has a function {function}, too")]
    Function { function: String, program: String },
    #[error("it cannot be written: {0}")]
    Unwritable(String),
}

impl Programs {
    /// Loads the programs of `directory`.
    pub fn load(directory: &Path) -> (Programs, Vec<Fault>) {
        let programs = Programs { directory: Some(directory.to_owned()), ..Programs::default() };
        let faults = programs.reload();
        (programs, faults)
    }

    /// Loads what is in the directory now. Calls that are under way go on with what they began with.
    pub fn reload(&self) -> Vec<Fault> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let _alone = self.loading.lock();
        let before = Arc::clone(&self.now.read());
        let files = match files(directory) {
            Ok(files) => files,
            Err(fault) => return vec![Fault { former: !before.programs.is_empty(), ..fault }],
        };
        let mut next = Installed::default();
        let mut faults = Vec::new();
        for path in files {
            if let Err(fault) = next.add(&path, &before) {
                faults.push(fault);
            }
        }
        let mut now = self.now.write();
        *now = Arc::new(next);
        self.generation.fetch_add(1, Ordering::Release);
        faults
    }

    /// As they are now, for a transaction of several calls.
    pub fn version(&self) -> Version {
        let now = self.now.read();
        Version { generation: self.generation(), installed: Arc::clone(&now) }
    }

    /// Changes whenever programs were loaded: who keeps a [`Function`] finds it again then.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn find(&self, name: &str) -> Option<Arc<Function>> {
        self.now.read().functions.get(name).cloned()
    }

    /// In the order of names.
    pub fn functions(&self) -> Vec<Arc<Function>> {
        self.now.read().functions.values().cloned().collect()
    }

    /// In the order of names.
    pub fn programs(&self) -> Vec<Arc<Program>> {
        self.now.read().programs.values().cloned().collect()
    }
}

impl Installed {
    /// Adds the program in the file, or, if that cannot be, the version `before`.
    fn add(&mut self, path: &Path, before: &Installed) -> Result<(), Fault> {
        let name = name_of(path);
        let former = name.as_ref().ok().and_then(|name| before.programs.get(name));
        let loaded = name.and_then(|name| {
            let bytes = read(path)?;
            match former.filter(|program| program.bytes() == bytes) {
                Some(same) => Ok((Arc::clone(same), before.functions_of(same))),
                None => Ok(Program::compile(&name, &bytes)?),
            }
        });
        let what = match loaded.and_then(|(program, functions)| self.insert(program, functions)) {
            Ok(()) => return Ok(()),
            Err(what) => what,
        };
        let stays = former.is_some_and(|former| self.insert(Arc::clone(former), before.functions_of(former)).is_ok());
        Err(Fault { path: path.to_owned(), what, former: stays })
    }

    fn insert(&mut self, program: Arc<Program>, functions: Vec<Arc<Function>>) -> Result<(), FaultError> {
        for function in &functions {
            if let Some(other) = self.functions.get(&function.signature().name) {
                let function = function.signature().name.clone();
                return Err(FaultError::Function { function, program: other.program().name().to_owned() });
            }
        }
        let named = functions.into_iter().map(|function| (function.signature().name.clone(), function));
        self.functions.extend(named);
        self.programs.insert(program.name().to_owned(), program);
        Ok(())
    }

    fn functions_of(&self, program: &Arc<Program>) -> Vec<Arc<Function>> {
        self.functions.values().filter(|function| Arc::ptr_eq(function.program(), program)).cloned().collect()
    }
}

/// Checks the program in `file` and copies it into `directory`, in place of one of the same name. Returns it with its
/// functions. A server finds there either version, and never a part of one.
///
/// # Errors
/// If it is no program, another program of the directory has a function of the same name, or it cannot be copied.
pub fn install(file: &Path, directory: &Path) -> Result<(Arc<Program>, Vec<Arc<Function>>), Fault> {
    let fault = |path: &Path, what| Fault { path: path.to_owned(), what, former: false };
    let (program, functions) = check(file)?;
    let target = directory.join(program.name()).with_extension(EXTENSION);
    let mut others = Installed::default();
    for path in files(directory)?.iter().filter(|path| **path != target) {
        // What is broken already is no obstacle.
        let _ = others.add(path, &Installed::default());
    }
    others.insert(Arc::clone(&program), functions.clone()).map_err(|what| fault(file, what))?;
    let unwritable = |error: io::Error| fault(&target, FaultError::Unwritable(error.to_string()));
    replace(&target, program.bytes()).map_err(unwritable)?;
    Ok((program, functions))
}

/// The program in `file`, with its functions, if it is one.
///
/// # Errors
/// If it is no program.
pub fn check(file: &Path) -> Result<(Arc<Program>, Vec<Arc<Function>>), Fault> {
    let compiled = name_of(file).and_then(|name| Ok(Program::compile(&name, &read(file)?)?));
    compiled.map_err(|what| Fault { path: file.to_owned(), what, former: false })
}

/// Replaces a file, durably, all or nothing.
///
/// # Errors
/// The host's.
pub fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let beside = target.with_extension("wasm.new");
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&beside, target)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })?;
    File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn files(directory: &Path) -> Result<Vec<PathBuf>, Fault> {
    let entries = fs::read_dir(directory).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<io::Result<Vec<_>>>()
    });
    let unreadable = |error: io::Error| Fault {
        path: directory.to_owned(),
        what: FaultError::Unreadable(error.to_string()),
        former: false,
    };
    let mut files = entries.map_err(unreadable)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    files.sort_unstable();
    Ok(files)
}

fn name_of(path: &Path) -> Result<String, FaultError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(check_name(&stem).map_err(FaultError::Name)?.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, FaultError> {
    let mut bytes = Vec::new();
    // One more, so that what is too long is seen to be.
    let read = File::open(path).and_then(|file| file.take(MODULE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| FaultError::Unreadable(error.to_string()))?;
    Ok(bytes)
}
