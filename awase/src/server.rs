//! A server that runs: processors, exports, sockets, and the protocols that join them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel::connection::{self, Acceptor, Protocol as _};
use kernel::job::Group;
use kernel::trace::{Mode, Tracer};
use kernel::{Kernel, Volume};
use machine::Errno;
use machine::linux::net::{Address, ListeningSocket};
use nbd::Nbd;
use nfs::Nfs;
use policy::unit::ProcessorId;
use transactions::terminal::Terminals;

use crate::accepting::{self, HostSockets};
use crate::closing::{self, Closing};
use crate::cluster::{self, Cluster};
use crate::config::{Config, Control, Database, Disk, Export, Problems, Settings};
use crate::control::{ControlPanel, ControlSocket, ExportInfo, OverlaidInfo};
use crate::databases::Databases;
use crate::directories::{self, Directories, Report};
use crate::exports::{self, Open, OpenDisk};
use crate::held::{Held, Holder};
use crate::listeners::{self, Sockets};
use crate::metrics::View;
use crate::open_files;
use crate::predecessor::Deadline;
use crate::processors::Processors;
use crate::programs::Programs;
use crate::registration::Registration;
use crate::secret;
use crate::served::{Current, Retired, open_disks, share};
use crate::stable_writes::Measured;
use crate::tell::tell;
use crate::trace::file::{self, TraceFile};

pub struct Server {
    processors: Processors,
    /// As they were at the start.
    settings: Settings,
    sockets: Sockets,
    acceptor: Arc<Acceptor>,
    /// What is shown of it.
    panel: Arc<ControlPanel>,
    control: Option<ControlSocket>,
    nbd: Arc<Nbd>,
    served: Vec<Current>,
    retired: Vec<Retired>,
    /// Of those that were retired.
    closing: Vec<(Held, Arc<Closing>)>,
    nfs: Option<Arc<Nfs>>,
    registration: Option<Registration>,
    cluster: Option<Cluster>,
    programs: Option<Programs>,
    directories: Directories,
    databases: Databases,
    terminals: Arc<Terminals>,
    /// What was found out of disks.
    measured: Measured,
    /// Goes with the server.
    trace: Option<TraceFile>,
}

/// Processors that record what happens, where they can. Nobody is refused service for want of a trace.
fn start_processors(config: &Config) -> anyhow::Result<(Processors, Option<TraceFile>, Vec<String>)> {
    let (mut trace, mut notices) = (None, Vec::new());
    let mode = config.switches.trace;
    let processors = Processors::start_traced(config, |count| {
        // With memory for it though it is off: it may be turned on while the server runs.
        match file::create(&config.settings.data, mode, count) {
            Ok((tracer, file)) => {
                trace = Some(file);
                tracer
            }
            Err(_) if mode == Mode::Off => Tracer::none(),
            Err(error) => {
                notices.push(format!("nothing is traced: {error:#}"));
                Tracer::none()
            }
        }
    })?;
    Ok((processors, trace, notices))
}

/// Exports and databases that could not be written to their disks.
pub type Failures = Vec<(String, Errno)>;

impl Server {
    /// Starts to serve what is configured on `sockets`. `end` ends it. Also returns what people should know of how it is done.
    ///
    /// # Errors
    /// When something stands in the way.
    pub fn start(config: &Config, sockets: Sockets, end: cluster::End) -> anyhow::Result<(Server, Vec<String>)> {
        let (processors, trace, mut notices) = start_processors(config)?;
        processors.kernel().jobs().set_groups(&config.clients);
        let cores = processors.cores().clone();
        let core_of = move |processor| cores.of(processor);
        let acceptor =
            Acceptor::new(processors.cores().count(), core_of, config.settings.limits.connections, HostSockets);
        let terminals =
            Terminals::new(accepting::limits(&config.settings, connection::Limits::default()), secret::random()?);
        let mut server = Server {
            panel: ControlPanel::new(&processors, &acceptor, &terminals),
            control: None,
            acceptor,
            processors,
            settings: config.settings.clone(),
            sockets: Sockets::default(),
            nbd: Nbd::new(accepting::limits(&config.settings, connection::Limits::default())),
            served: Vec::new(),
            retired: Vec::new(),
            closing: Vec::new(),
            nfs: None,
            registration: None,
            cluster: None,
            programs: None,
            directories: Directories::default(),
            databases: Databases::default(),
            terminals,
            measured: Measured::default(),
            trace,
        };
        notices.extend(Programs::await_earlier(config)?);
        server.cluster = Cluster::start(config, &server.processors, end)?;
        if let Some(cluster) = &server.cluster {
            let (nbd, panel) = (Arc::clone(&server.nbd), Arc::clone(&server.panel));
            cluster.on_replace(Box::new(move |name, volume, shared| {
                nbd.replace_volume(name, volume);
                panel.replace_volume(name, volume, shared);
            }));
        }
        let begun = server.begin(config, sockets);
        if begun.is_err() {
            // The other nodes would wait for it until its lease is over.
            server.cluster.iter().for_each(|cluster| cluster.leave(&server.processors));
        }
        notices.extend(begun?);
        Ok((server, notices))
    }

    fn begin(&mut self, config: &Config, sockets: Sockets) -> anyhow::Result<Vec<String>> {
        let mut notices = self.change_on(sockets, config)?.notices;
        notices.extend(self.listen_for_control()?);
        notices.extend(self.listen_for_programs()?);
        let published = self.trace.as_ref().map_or(Ok(()), |trace| trace.publish(Deadline::for_takeover()));
        notices.extend(published.err().map(|error| format!("awase trace will not find what is recorded: {error:#}")));
        Ok(notices)
    }

    /// Listens on the control socket. That one which nobody asked for cannot be made is only told.
    fn listen_for_control(&mut self) -> anyhow::Result<Option<String>> {
        match listeners::control(&self.settings, Deadline::for_takeover()) {
            Ok(socket) => {
                let serve = |socket| ControlSocket::serve(socket, &self.panel);
                self.control = socket.map(serve).transpose()?;
                Ok(None)
            }
            Err(problem) if self.settings.control == Control::InData => {
                Ok(Some(format!("awase top and awase set cannot reach this server: {problem}")))
            }
            Err(problem) => Err(Problems::from(problem).into()),
        }
    }

    /// Listens for programs that map shared disks. That a socket which nobody asked for cannot be made is only told.
    fn listen_for_programs(&mut self) -> anyhow::Result<Option<String>> {
        let Some((cluster, path)) = self.cluster.as_ref().zip(self.settings.shm_socket()) else { return Ok(None) };
        match listeners::shm(&self.settings, &path, Deadline::for_takeover()) {
            Ok(socket) => {
                self.programs = Some(Programs::serve(socket, &path, cluster, &self.processors)?);
                Ok(None)
            }
            Err(problem) if self.settings.shm == Control::InData => {
                Ok(Some(format!("programs cannot map shared disks: {problem}")))
            }
            Err(problem) => Err(Problems::from(problem).into()),
        }
    }

    /// What is shown of it, and where its switches are changed.
    pub fn panel(&self) -> &Arc<ControlPanel> {
        &self.panel
    }

    fn shown(&self) -> Vec<ExportInfo> {
        let disk = |served: &OpenDisk| ExportInfo {
            name: served.export.name.clone(),
            kind: "disk",
            medium: served.export.medium(),
            read_only: served.volume.read_only(),
            volume: Arc::downgrade(&served.volume),
            shared: self.cluster.as_ref().and_then(|cluster| cluster.volume(&served.export.name)).unwrap_or_default(),
        };
        let directory = |served: &directories::OpenDirectory| ExportInfo {
            name: served.directory.mount.clone(),
            kind: "directory",
            medium: served.directory.path.display().to_string(),
            read_only: served.export.read_only(),
            volume: Weak::new(),
            shared: Weak::new(),
        };
        self.disks().map(disk).chain(self.directories().iter().map(directory)).collect()
    }

    /// The disks and databases whose changes go beside.
    fn overlaid(&self) -> Vec<OverlaidInfo> {
        let databases = self.databases().map(|(_, disk)| disk);
        let info = |disk: &OpenDisk| {
            let overlaid = Arc::downgrade(disk.overlaid.as_ref()?);
            let (name, volume) = (disk.export.name.clone(), Arc::downgrade(&disk.volume));
            Some(OverlaidInfo { name, volume, overlaid })
        };
        self.disks().chain(databases).filter_map(info).collect()
    }

    /// Goes over to other exports. Clients keep the disks that they have. Returns what happened.
    ///
    /// # Errors
    /// Everything that stands in the way; then nothing has changed.
    pub fn change(&mut self, config: &Config) -> anyhow::Result<Vec<String>> {
        self.note_replaced();
        self.close_retired();
        let served = self.disks().map(|served| &served.export);
        let served = served.chain(self.databases().map(|(database, _)| &database.volume));
        cluster::refuse_changes(served, config.volumes()).map_err(Problems::from)?;
        let (any_disks, directories, databases) = (!config.exports.is_empty(), &config.directories, &config.databases);
        let sockets =
            self.sockets.make_missing(&self.settings, any_disks, directories, databases, Deadline::passed())?;
        let report = self.change_on(sockets, config)?;
        Ok(report.notices.into_iter().chain(report.changes).collect())
    }

    /// New clients get the disks, which are shown.
    fn publish(&mut self) {
        loop {
            self.nbd.set_exports(self.served.iter().map(|current| Arc::clone(&current.shared)).collect());
            self.panel.set_exports(self.shown());
            // What had begun anew by then was replaced in what was published earlier.
            if !self.note_replaced() {
                return;
            }
        }
    }

    /// Takes over the volumes of shared disks that have begun anew. Were there any?
    fn note_replaced(&mut self) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let mut is_any = false;
        for current in &mut self.served {
            let name = &current.served.export.name;
            let volume = cluster.current(name).filter(|volume| !Arc::ptr_eq(volume, &current.served.volume));
            if let Some(volume) = volume {
                current.earlier = current.clients();
                current.served.volume = volume;
                current.shared = Arc::new(share(&current.served));
                is_any = true;
            }
        }
        is_any
    }

    /// The same, with these sockets more.
    fn change_on(&mut self, mut sockets: Sockets, config: &Config) -> anyhow::Result<Report> {
        // Databases that are open, and addresses at which they are reached, stay until a restart.
        let any_databases = !config.databases.is_empty() || self.databases().next().is_some();
        if any_databases && config.users.is_empty() {
            let mut all = [&self.sockets, &sockets].into_iter();
            all.try_for_each(|sockets| sockets.check_reach(&config.settings)).map_err(Problems::from)?;
        }
        let is_reached = self.sockets.has(Nfs::NAME) || sockets.has(Nfs::NAME);
        let directories = if is_reached { &*config.directories } else { &[] };
        let volumes: Vec<_> = config.volumes().chain(self.databases().map(|(open, _)| &open.volume)).collect();
        let open: Vec<_> = self.open_exports().collect();
        let plan = self.directories.plan(directories, &volumes, &open, &self.settings.data)?;
        let secret = match self.nfs {
            None if plan.serves_any() => Some(secret::load(&self.settings).map_err(Problems::from)?),
            _ => None,
        };
        let cluster = self.cluster.as_ref();
        let (closing, databases) = (self.closing.iter().map(|(held, _)| held), self.databases().map(|(_, disk)| disk));
        let open = open_disks(&self.served, &self.retired, closing, databases);
        let (processors, databases) = (&self.processors, &config.databases);
        let databases = self.databases.plan(processors, &mut self.measured, cluster, databases, &open.held)?;
        let changes = match self.change_disks(open, &config.exports) {
            Ok(changes) => changes,
            Err(problems) => {
                databases.abandon(&self.processors);
                return Err(problems.into());
            }
        };
        // Before there are databases and sockets for which they are.
        self.terminals.set_users(config.users.clone());
        let files_max = open_files::files_max(&self.settings.limits);
        let mut report = self.directories.apply(&self.processors, &mut self.measured, plan, files_max)?;
        report.changes.splice(0..0, changes);
        let (changes, faults) = self.databases.apply(&self.terminals, databases);
        report.changes.extend(changes);
        report.notices.extend(faults);
        if let Some(secret) = secret {
            let defaults = nfs::Limits::default();
            let connection = accepting::limits(&self.settings, defaults.connection);
            let nfs = Nfs::new(secret, nfs::Limits { connection, ..defaults }, Vec::new());
            nfs.report_to(|line| tell(line));
            self.nfs = Some(nfs);
        }
        match &self.nfs {
            Some(nfs) => nfs.set_exports(self.directories.exports()),
            // Nobody asked for directories, or this host cannot serve them.
            None => sockets.close(Nfs::NAME),
        }
        self.publish();
        self.accept(sockets);
        self.panel.set_overlaid(self.overlaid());
        let programs = |database: &Database| (database.name.clone(), database.programs.clone());
        self.panel.set_databases(self.databases().map(|(database, _)| programs(database)).collect());
        self.close_retired();
        Ok(report)
    }

    /// Accepts clients on these sockets, too.
    fn accept(&mut self, sockets: Sockets) {
        accepting::accept(&self.acceptor, &self.processors, &self.nbd, &sockets);
        accepting::accept(&self.acceptor, &self.processors, &self.terminals, &sockets);
        if let Some(nfs) = &self.nfs {
            accepting::accept(&self.acceptor, &self.processors, nfs, &sockets);
            if self.settings.rpcbind && sockets.has(Nfs::NAME) {
                self.registration = Registration::make(sockets.of(Nfs::NAME).map(ListeningSocket::address));
            }
        }
        self.sockets.take(sockets);
    }

    fn change_disks(&mut self, open: Open, wanted: &[Export]) -> Result<Vec<String>, Problems> {
        let change =
            exports::change(self.processors.kernel(), &mut self.measured, self.cluster.as_ref(), &open, wanted)?;
        let mut now: Vec<Current> = Vec::new();
        for served in change.served {
            let is_it = |old: &OpenDisk| Arc::ptr_eq(&old.volume, &served.volume);
            let old = self.served.iter().find(|old| is_it(&old.served)).map_or_else(Vec::new, Current::clients);
            let again = self.retired.extract_if(.., |old| is_it(&old.served)).flat_map(|old| old.clients);
            let earlier = old.into_iter().chain(again).collect();
            now.push(Current { shared: Arc::new(share(&served)), served, earlier });
        }
        for old in std::mem::replace(&mut self.served, now) {
            if change.retired.iter().any(|retired| Arc::ptr_eq(&retired.volume, &old.served.volume)) {
                self.retired.push(Retired { clients: old.clients(), served: old.served });
            }
        }
        Ok(change.report)
    }

    /// The disks that new clients get.
    pub fn disks(&self) -> impl Iterator<Item = &OpenDisk> {
        self.served.iter().map(|current| &current.served)
    }

    /// The exports of all disks that are open, also for old clients only.
    fn open_exports(&self) -> impl Iterator<Item = &Export> {
        let retired = self.retired.iter().map(|retired| &retired.served.export);
        let served = self.disks().map(|served| &served.export);
        served.chain(retired).chain(self.closing.iter().map(|(held, _)| held.export()))
    }

    /// The directories that clients get.
    pub fn directories(&self) -> &[directories::OpenDirectory] {
        self.directories.served()
    }

    pub fn databases(&self) -> impl Iterator<Item = (&Database, &OpenDisk)> {
        self.databases.all()
    }

    pub fn postgres_addresses(&self) -> impl Iterator<Item = &Address> {
        self.sockets.of(Terminals::NAME).map(ListeningSocket::address)
    }

    pub fn nbd_addresses(&self) -> impl Iterator<Item = &Address> {
        self.sockets.of(Nbd::NAME).map(ListeningSocket::address)
    }

    pub fn nfs_addresses(&self) -> impl Iterator<Item = &Address> {
        self.sockets.of(Nfs::NAME).map(ListeningSocket::address)
    }

    /// Clients that are one job by a name, from now on.
    pub fn name_clients(&self, clients: &[Group]) {
        self.processors.kernel().jobs().set_groups(clients);
    }

    /// Through which it is watched.
    pub fn view(&self) -> View {
        let protocol = self.cluster.as_ref().map(|cluster| Arc::clone(cluster.protocol()));
        View::new(self.processors.kernel(), &self.acceptor, protocol, &self.terminals)
    }

    pub fn kernel(&self) -> &Arc<Kernel> {
        self.processors.kernel()
    }

    /// How many processors on which engine.
    pub fn description(&self) -> String {
        self.processors.description()
    }

    /// Does it do its input and output with io_uring?
    pub fn uses_io_uring(&self) -> bool {
        self.processors.uses_io_uring()
    }

    /// Are there exports that new clients do not get, but old ones still have, or that are being closed?
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty() || !self.closing.is_empty() || self.directories.has_retired()
    }

    /// Closes exports that nobody has any more.
    pub fn close_retired(&mut self) {
        let is_unused = |retired: &mut Retired| retired.clients.iter().all(|clients| clients.strong_count() == 0);
        for retired in self.retired.extract_if(.., is_unused) {
            let OpenDisk { export, volume, identity, .. } = retired.served;
            let close = move |cpu| async move { volume.close(&cpu).await };
            let closing = Closing::start(&self.processors, &export.name, close);
            self.closing.push((Held::new(&export, identity, Holder::Closing), closing));
        }
        self.closing.retain(|(_, closing)| !closing.tell_end());
        self.directories.close_retired(&self.processors);
    }

    /// Stops accepting, lets requests under way end for at most `bound`, then writes everything to the disks. `on_end` is
    /// then told what could not be written, by a processor.
    pub fn drain(&mut self, bound: Duration, on_end: impl FnOnce(Failures) + Send + 'static) {
        self.note_replaced();
        drop(self.registration.take());
        drop(self.programs.take());
        self.acceptor.stop();
        self.sockets.iter().for_each(ListeningSocket::stop);
        let acceptor = Arc::clone(&self.acceptor);
        let closing: Vec<_> = self.closing.iter().map(|(_, closing)| Arc::clone(closing)).collect();
        let directories = self.directories.to_close();
        let databases = self.databases.to_close();
        let protocol = self.cluster.as_ref().map(|cluster| Arc::clone(cluster.protocol()));
        let retired = self.retired.iter().map(|retired| &retired.served);
        let has_nothing = self.cluster.as_ref().is_some_and(Cluster::has_nothing);
        let is_gone = move |export: &Export| has_nothing && export.kind == Disk::Shared;
        let volumes: Vec<(String, Arc<Volume>)> = self
            .disks()
            .chain(retired)
            .filter(|served| !is_gone(&served.export))
            .map(|served| (closing::export(&served.export.name), Arc::clone(&served.volume)))
            .collect();
        let drain = move |cpu| async move {
            protocol.iter().for_each(|protocol| protocol.begin_to_leave());
            if !acceptor.drain(&cpu, bound).await {
                tell(format_args!("some requests did not end within {bound:?}; their clients were not answered"));
            }
            let mut failures = Vec::new();
            for shared in protocol.iter().flat_map(|protocol| protocol.volumes()) {
                shared.end_mappings(&cpu).await;
            }
            for (name, volume) in volumes {
                if let Err(error) = volume.close(&cpu).await {
                    failures.push((name, error));
                }
            }
            for closing in closing {
                failures.extend(closing.until_ended().await);
            }
            for open in databases {
                match open.close(&cpu).await {
                    Err(error) if !is_gone(&open.database.volume) => {
                        failures.push((format!("database {:?}", open.database.name), error));
                    }
                    _ => {}
                }
            }
            failures.extend(directories.close(&cpu).await);
            if let Some(protocol) = protocol {
                let failed = protocol.leave(&cpu).await;
                failures.extend(failed.into_iter().map(|(name, error)| (closing::export(&name), error)));
            }
            on_end(failures);
        };
        drop(self.processors.start_task(ProcessorId(0), drain));
    }

    /// Ends everything, after it was drained. Returns whether it has to be started anew.
    pub fn stop(self) -> bool {
        let is_over = self.cluster.as_ref().is_some_and(Cluster::stop);
        self.processors.stop();
        is_over
    }

    /// Leaves nothing in the way of the next server, and nothing else in order.
    pub fn abandon(self) {
        drop(self.sockets);
    }
}
