//! A server that runs: processors, exports, sockets, and the NBD service that joins them.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel::Volume;
use machine::Errno;
use machine::linux::net::{Address, ListeningSocket};
use nbd::Export as Shared;
use policy::unit::ProcessorId;

use crate::config::{Config, Export, Problems};
use crate::exports::{self, Served};
use crate::processors::Processors;
use crate::service::Service;
use crate::stable_writes::Measured;

/// A server.
pub struct Server {
    processors: Processors,
    sockets: Vec<ListeningSocket>,
    service: Arc<Service>,
    served: Vec<Current>,
    retired: Vec<Retired>,
    /// What was found out of disks.
    measured: Measured,
}

/// An export that new clients get.
struct Current {
    served: Served,
    /// What clients hold while they use it.
    shared: Arc<Shared>,
    /// What clients hold who came when it was described otherwise.
    earlier: Vec<Weak<Shared>>,
}

/// An export that only old clients have.
struct Retired {
    served: Served,
    /// What they hold.
    clients: Vec<Weak<Shared>>,
}

impl Current {
    /// What all its clients hold.
    fn clients(&self) -> Vec<Weak<Shared>> {
        let earlier = self.earlier.iter().filter(|clients| clients.strong_count() > 0).cloned();
        earlier.chain([Arc::downgrade(&self.shared)]).collect()
    }
}

/// The export as clients hold it while they use it.
fn share(served: &Served) -> Shared {
    Shared {
        name: served.export.name.clone(),
        description: served.export.description.clone(),
        block_size: served.export.block_size,
        volume: Arc::clone(&served.volume),
    }
}

/// Exports that could not be written to their disks.
pub type Failures = Vec<(String, Errno)>;

impl Server {
    /// Starts to serve what is configured on `sockets`.
    ///
    /// # Errors
    /// When something stands in the way.
    pub fn start(config: &Config, sockets: Vec<ListeningSocket>) -> anyhow::Result<Server> {
        let processors = Processors::start(config)?;
        let service = Service::new(&processors, &config.settings.limits);
        let (served, retired, measured) = (Vec::new(), Vec::new(), Measured::default());
        let mut server = Server { processors, sockets, service, served, retired, measured };
        server.change(&config.exports)?;
        server.service.accept(&server.processors, &server.sockets);
        Ok(server)
    }

    /// Goes over to other exports. Clients keep what they have. Returns what happened.
    ///
    /// # Errors
    /// Everything that stands in the way; then nothing has changed.
    pub fn change(&mut self, wanted: &[Export]) -> Result<Vec<String>, Problems> {
        let served: Vec<Served> = self.served().cloned().collect();
        let change = exports::change(self.processors.kernel(), &mut self.measured, &served, wanted)?;
        let mut now: Vec<Current> = Vec::new();
        for served in change.served {
            let old = self.served.iter().find(|old| Arc::ptr_eq(&old.served.volume, &served.volume));
            let shared = Arc::new(share(&served));
            now.push(Current { served, shared, earlier: old.map_or_else(Vec::new, Current::clients) });
        }
        self.service.set_exports(now.iter().map(|current| Arc::clone(&current.shared)).collect());
        for old in std::mem::replace(&mut self.served, now) {
            if change.retired.iter().any(|retired| Arc::ptr_eq(&retired.volume, &old.served.volume)) {
                self.retired.push(Retired { clients: old.clients(), served: old.served });
            }
        }
        self.close_retired();
        Ok(change.report)
    }

    /// What new clients get.
    pub fn served(&self) -> impl Iterator<Item = &Served> {
        self.served.iter().map(|current| &current.served)
    }

    /// Where clients find it.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.sockets.iter().map(ListeningSocket::address)
    }

    /// How many processors on which engine.
    pub fn description(&self) -> String {
        self.processors.description()
    }

    /// Do old clients still have exports that new ones do not get?
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Closes exports that nobody has any more.
    pub fn close_retired(&mut self) {
        let is_unused = |retired: &mut Retired| retired.clients.iter().all(|clients| clients.strong_count() == 0);
        for retired in self.retired.extract_if(.., is_unused) {
            let name = retired.served.export.name.clone();
            let volume = retired.served.volume;
            // The result is not waited for here; a failure is told when it is known.
            drop(self.processors.start_task(ProcessorId(0), move |cpu| async move {
                if let Err(error) = volume.close(&cpu).await {
                    eprintln!("awase: export {name:?} could not be written to its disk: {error}");
                }
            }));
        }
    }

    /// Stops accepting, lets requests under way end for at most `bound`, then writes everything to the disks. What
    /// could not be written arrives at what is returned.
    pub fn drain(&self, bound: Duration) -> Receiver<Failures> {
        self.service.stop();
        self.sockets.iter().for_each(ListeningSocket::stop);
        let service = Arc::clone(&self.service);
        let retired = self.retired.iter().map(|retired| &retired.served);
        let volumes: Vec<(String, Arc<Volume>)> = self
            .served()
            .chain(retired)
            .map(|served| (served.export.name.clone(), Arc::clone(&served.volume)))
            .collect();
        self.processors.start_task(ProcessorId(0), move |cpu| async move {
            if !service.drain(&cpu, bound).await {
                eprintln!("awase: some requests did not end within {bound:?}; their clients were not answered");
            }
            let mut failures = Vec::new();
            for (name, volume) in volumes {
                if let Err(error) = volume.close(&cpu).await {
                    failures.push((name, error));
                }
            }
            failures
        })
    }

    /// Ends everything, after it was drained.
    pub fn stop(self) {
        self.processors.stop();
    }

    /// Leaves nothing in the way of the next server, and nothing else in order.
    pub fn abandon(self) {
        drop(self.sockets);
    }
}
