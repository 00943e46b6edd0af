//! The directories that are served: their open trees, and how they follow a new configuration.

mod located;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use kernel::ForcedUnitAccess;
use kernel::export::ExportChange;
use kernel::tree::{FileTree, FileTreeConfig, OpenFiles};
use machine::Errno;
use machine::linux::tree::{self, Handles, OpenTreeError};
use machine::tree::OpenTree;
use nfs::Names;
use policy::unit::ProcessorId;

use crate::closing::{self, Closing};
use crate::config::{Directory, Export, Problem, Problems};
use crate::predecessor::Deadline;
use crate::processors::Processors;
use crate::stable_writes::Measured;
use crate::stack::queue_of_directory;
use located::{Identity, Located, locate, refuse_leaving, refuse_open_media};

/// Reported of a directory that is served in the slower way.
const BY_PLACE: &str =
    "files are found by their names and by searching, for want of CAP_DAC_READ_SEARCH or persistent file handles";

pub struct OpenDirectory {
    pub directory: Directory,
    pub export: Arc<nfs::Export>,
}

/// An open tree. All exports of one directory share it: two caches over one file would not see each other's changes.
#[derive(Clone)]
struct Root {
    /// Without symbolic links.
    path: PathBuf,
    identity: Option<Identity>,
    tree: Arc<FileTree>,
}

/// A tree that is no longer served; requests in flight may still hold it.
struct Retired {
    root: Root,
    closing: Option<Arc<Closing>>,
}

/// The directories that are served, and those retired but not closed.
#[derive(Default)]
pub struct Directories {
    served: Vec<OpenDirectory>,
    roots: Vec<Root>,
    retired: Vec<Retired>,
    /// Shared by all trees.
    open_files: Arc<OpenFiles>,
}

/// What a new configuration has changed, as lines of text.
#[derive(Default)]
pub struct Report {
    /// Deviations from the usual way of serving.
    pub notices: Vec<String>,
    pub changes: Vec<String>,
}

/// What a new configuration will change.
pub struct Plan {
    /// With the index of the root.
    wanted: Vec<(Directory, usize)>,
    roots: Vec<Planned>,
    notices: Vec<String>,
}

impl Plan {
    pub fn serves_any(&self) -> bool {
        !self.wanted.is_empty()
    }
}

enum Planned {
    Reused(Root),
    Opened { path: PathBuf, identity: Option<Identity>, open: OpenTree, name: String, read_only: bool },
}

impl Planned {
    fn is(&self, located: &Located<'_>) -> bool {
        match self {
            Planned::Reused(root) => located.is(&root.path, root.identity),
            Planned::Opened { path, identity, .. } => located.is(path, *identity),
        }
    }

    fn keeps_order(&self) -> bool {
        match self {
            Planned::Reused(root) => root.tree.keeps_order(),
            Planned::Opened { open, .. } => open.syncs_as_a_whole,
        }
    }
}

/// Why a directory cannot be served.
struct Refusal {
    problem: Problem,
    /// Does another server have it?
    is_locked: bool,
}

impl Directories {
    pub fn served(&self) -> &[OpenDirectory] {
        &self.served
    }

    pub fn exports(&self) -> Vec<Arc<nfs::Export>> {
        self.served.iter().map(|served| Arc::clone(&served.export)).collect()
    }

    /// Opens the directories that are `wanted` and not open yet; an unchanged one stays open, with its cache. The paths of
    /// files that cannot be found by handle are stored in the data directory. `volumes` are wanted beside them, and `open`
    /// are disks that clients have now.
    ///
    /// # Errors
    /// All problems.
    pub fn plan(
        &self,
        wanted: &[Directory],
        volumes: &[&Export],
        open: &[&Export],
        data: &Path,
    ) -> Result<Plan, Problems> {
        let mut problems = Problems::default();
        let mut plan = Plan { wanted: Vec::new(), roots: Vec::new(), notices: Vec::new() };
        let located = locate(wanted, volumes, true, &mut problems);
        refuse_open_media(&located, volumes, open, &mut problems);
        let is_wanted = |root: &Root| located.iter().any(|wanted| wanted.is(&root.path, root.identity));
        let leaving = self.roots.iter().filter(|root| !is_wanted(root));
        let leaving = leaving.chain(self.retired.iter().map(|retired| &retired.root));
        let written = leaving.filter(|root| !root.tree.read_only());
        let leaving: Vec<_> = written.map(|root| &*root.path).collect();
        refuse_leaving(&located, volumes, &leaving, &mut problems);
        let deadline = Deadline::for_takeover();
        for wanted in &located {
            let directory = wanted.directory;
            let index = plan.roots.iter().position(|root| root.is(wanted));
            // Opened by a writable path, if there is one.
            let by = same(wanted, &located).find(|other| !other.read_only).unwrap_or(wanted);
            let index = match index {
                Some(index) => index,
                None => match self.root(by, handles(wanted, &located), data, deadline) {
                    Ok(root) => {
                        plan.roots.push(root);
                        plan.roots.len() - 1
                    }
                    Err(Refusal { problem, is_locked }) => {
                        // A server before this one may still be writing to it: whoever starts servers tries again.
                        if directory.optional && !is_locked {
                            plan.notices.push(format!("no directory is served: {problem}"));
                        } else {
                            problems.0.push(problem);
                        }
                        continue;
                    }
                },
            };
            problems.note(check_order(directory, plan.roots[index].keeps_order()));
            let directory = Directory { read_only: wanted.read_only, ..directory.clone() };
            plan.wanted.push((directory, index));
        }
        problems.or(plan)
    }

    fn root(
        &self,
        wanted: &Located<'_>,
        handles: Handles,
        data: &Path,
        deadline: Deadline,
    ) -> Result<Planned, Refusal> {
        let Located { directory, path, identity, read_only } = wanted;
        // A writable tree also serves a read-only export, which refuses changes itself.
        let serves = |root: &&Root| wanted.is(&root.path, root.identity) && (*read_only || !root.tree.read_only());
        if let Some(root) = self.roots.iter().find(serves) {
            return Ok(Planned::Reused(root.clone()));
        }
        if self.retired.iter().any(|retired| wanted.is(&retired.root.path, retired.root.identity)) {
            let what = "is no longer served, but still being written to its disk";
            let problem = Problem::new(&directory.place, directory.key("path"), what);
            let problem = problem.allowed("to read the configuration again in a moment");
            return Err(Refusal { problem, is_locked: false });
        }
        let is_locked = |error: &OpenTreeError| matches!(error, OpenTreeError::Locked(_));
        let open = deadline.retry(|| tree::open_locked(path, *read_only, Some(data), handles), is_locked);
        let open =
            open.map_err(|error| Refusal { problem: refused(directory, &error), is_locked: is_locked(&error) })?;
        let (path, name) = (path.clone(), directory.name.clone());
        Ok(Planned::Opened { path, identity: *identity, open, name, read_only: *read_only })
    }

    /// Carries out the plan. At most `files_max` files of all directories are open at a time.
    ///
    /// # Errors
    /// When a processor has ended.
    pub fn apply(
        &mut self,
        processors: &Processors,
        measured: &mut Measured,
        plan: Plan,
        files_max: usize,
    ) -> anyhow::Result<Report> {
        let mut report = Report { notices: plan.notices, changes: Vec::new() };
        let mut roots = Vec::new();
        self.open_files.set_max(files_max);
        for planned in plan.roots {
            roots.push(match planned {
                Planned::Reused(root) => root,
                Planned::Opened { path, identity, open, name, read_only } => {
                    if !tree::finds_by_handle(&open) {
                        report.notices.push(format!("export {name:?}: {BY_PLACE}"));
                    }
                    let queue = queue_of_directory(processors.kernel(), &open);
                    let forced_unit_access = match read_only {
                        true => ForcedUnitAccess::Never,
                        false => measured.of_directory(&path, open.disk),
                    };
                    let open_files = Arc::clone(&self.open_files);
                    let config = FileTreeConfig { name, read_only, open_files, forced_unit_access, queue };
                    Root { path, identity, tree: open_tree(processors, open, config)? }
                }
            });
        }
        let served: Vec<OpenDirectory> =
            plan.wanted.into_iter().map(|(directory, index)| self.serve(directory, &roots[index].tree)).collect();
        for new in &served {
            if !self.served.iter().any(|old| Arc::ptr_eq(&old.export, &new.export)) {
                let Directory { name, path, mount, .. } = &new.directory;
                report.changes.push(format!("export {name:?} is served: directory {} as {mount}", path.display()));
                processors.kernel().note_export(mount, ExportChange::Added);
            }
        }
        for old in &self.served {
            if !served.iter().any(|new| new.directory.name == old.directory.name) {
                report.changes.push(format!("export {:?} is no longer served", old.directory.name));
            }
            if !served.iter().any(|new| new.directory.mount == old.directory.mount) {
                processors.kernel().note_export(&old.directory.mount, ExportChange::Removed);
            }
        }
        self.served = served;
        for root in std::mem::replace(&mut self.roots, roots) {
            if !self.roots.iter().any(|new| Arc::ptr_eq(&new.tree, &root.tree)) {
                self.retired.push(Retired { root, closing: None });
            }
        }
        Ok(report)
    }

    /// The export for clients: the old one if its configuration is unchanged.
    fn serve(&self, directory: Directory, tree: &Arc<FileTree>) -> OpenDirectory {
        let config = nfs::ExportConfig {
            name: directory.mount.clone(),
            read_only: directory.read_only,
            clients: directory.clients.clone(),
            secure: directory.secure,
            squash: directory.squash,
            names: directory.names,
        };
        let is_same = |old: &&OpenDirectory| Arc::ptr_eq(old.export.tree(), tree) && *old.export.config() == config;
        let export = match self.served.iter().find(is_same) {
            Some(old) => Arc::clone(&old.export),
            None => nfs::Export::new(config, Arc::clone(tree)),
        };
        OpenDirectory { directory, export }
    }

    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Closes retired trees that no request holds.
    pub fn close_retired(&mut self, processors: &Processors) {
        for retired in &mut self.retired {
            // Requests hold exports, which hold the tree.
            if retired.closing.is_none() && Arc::strong_count(&retired.root.tree) == 1 {
                let tree = Arc::clone(&retired.root.tree);
                let close = move |cpu| async move { tree.close(&cpu).await };
                retired.closing = Some(Closing::start(processors, retired.root.tree.name(), close));
            }
        }
        let before = self.retired.len();
        self.retired.retain(|retired| !retired.closing.as_ref().is_some_and(|closing| closing.tell_end()));
        if self.retired.len() < before {
            processors.let_go();
        }
    }

    pub fn to_close(&self) -> ToClose {
        let left = self.retired.iter().filter(|retired| retired.closing.is_none()).map(|retired| &retired.root);
        ToClose {
            trees: self.roots.iter().chain(left).map(|root| Arc::clone(&root.tree)).collect(),
            closing: self.retired.iter().filter_map(|retired| retired.closing.clone()).collect(),
        }
    }
}

/// The trees to close at shutdown, and those being closed.
pub struct ToClose {
    trees: Vec<Arc<FileTree>>,
    closing: Vec<Arc<Closing>>,
}

impl ToClose {
    /// Returns the trees that could not be written.
    pub async fn close(self, cpu: &kernel::Processor) -> Vec<(String, Errno)> {
        let mut failures = Vec::new();
        for tree in self.trees {
            if let Err(error) = tree.close(cpu).await {
                failures.push((closing::export(tree.name()), error));
            }
        }
        for closing in self.closing {
            failures.extend(closing.until_ended().await);
        }
        failures
    }
}

fn open_tree(processors: &Processors, open: OpenTree, config: FileTreeConfig) -> anyhow::Result<Arc<FileTree>> {
    let opened = processors.start_task(ProcessorId(0), move |cpu| async move { FileTree::new(&cpu, open, config) });
    opened.recv().context("a processor ended")
}

/// The problems of serving these directories, as far as they show without opening anything for long.
///
/// # Errors
/// All problems; those of a default directory are returned as notices.
pub fn inspect(wanted: &[Directory], volumes: &[&Export]) -> Result<Vec<String>, Problems> {
    let (mut problems, mut report) = (Problems::default(), Vec::new());
    let located = locate(wanted, volumes, false, &mut problems);
    for wanted in &located {
        let Located { directory, path, .. } = wanted;
        // A directory that would be created will be on the file system of its parent.
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        match tree::open(existing, true, None, handles(wanted, &located)) {
            Err(error) if directory.optional => {
                report.push(format!("no directory is served: {}", refused(directory, &error)));
            }
            opened => {
                let opened = opened.map_err(|error| refused(directory, &error));
                let checked = opened.and_then(|open| check_order(directory, open.syncs_as_a_whole));
                problems.note(checked);
            }
        }
    }
    problems.or(report)
}

/// The exports of the directory of this one, it among them.
fn same<'a, 'b>(wanted: &'a Located<'b>, all: &'a [Located<'b>]) -> impl Iterator<Item = &'a Located<'b>> {
    all.iter().filter(|other| wanted.is(&other.path, other.identity))
}

/// One that says that they are persistent does so for all exports of its directory.
fn handles(wanted: &Located<'_>, all: &[Located<'_>]) -> Handles {
    let are_trusted = same(wanted, all).any(|export| export.directory.persistent_handles);
    if are_trusted { Handles::Trusted } else { Handles::Known }
}

fn check_order(directory: &Directory, is_kept: bool) -> Result<(), Problem> {
    if directory.names == Names::Durable || is_kept {
        return Ok(());
    }
    let what = "= \"ordered\" needs a file system that keeps the order of changes of names: ext4 with a journal";
    Err(Problem::new(&directory.place, directory.key("names"), what).allowed("\"durable\", or such a file system"))
}

fn refused(directory: &Directory, error: &OpenTreeError) -> Problem {
    let problem = Problem::new(&directory.place, directory.key("path"), format!("cannot be served: {error}"));
    match error {
        OpenTreeError::NotDirectory(_) => problem.allowed("a directory, or another kind"),
        OpenTreeError::Locked(_) => {
            problem.allowed("a directory that no other server serves, or read_only = true in both")
        }
        OpenTreeError::NoHandles(_) => {
            let others = "a directory on a file system such as ext4, XFS or btrfs";
            problem.allowed(format!("{others}, or persistent_handles = true if its file handles are persistent"))
        }
        _ => problem,
    }
}
