//! What the host is told: by threads, since while it takes that, it may wait for a call that the mount's processor is about to
//! answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{INodeNo, Notifier, Session};
use mount::{Host, NodeId, Notice, Time};
use parking_lot::Mutex;

use super::fuse::Adapter;
use super::messages::Messages;
use super::mounts::{Device, names_mounted_on};

type Name = (NodeId, Arc<[u8]>);

pub struct ToHost {
    /// From the begin of the session on.
    notifier: OnceLock<Notifier>,
    changed: Mutex<Sender<(NodeId, Notice)>>,
    forgotten: Mutex<Sender<Vec<Name>>>,
    pub messages: Arc<Messages>,
}

/// What threads tell the host.
pub struct Notices {
    changed: Receiver<(NodeId, Notice)>,
    forgotten: Receiver<Vec<Name>>,
}

impl ToHost {
    pub fn new(messages: &Arc<Messages>) -> (Arc<ToHost>, Notices) {
        let (to_changed, changed) = channel();
        let (to_forgotten, forgotten) = channel();
        let host = ToHost {
            notifier: OnceLock::new(),
            changed: Mutex::new(to_changed),
            forgotten: Mutex::new(to_forgotten),
            messages: Arc::clone(messages),
        };
        (Arc::new(host), Notices { changed, forgotten })
    }

    /// The host mounts: from now on it is told.
    ///
    /// # Errors
    /// When there are no threads.
    pub fn start(&self, session: &Session<Adapter>, device: Device, notices: Notices) -> std::io::Result<()> {
        let _ = self.notifier.set(session.notifier());
        let Notices { changed, forgotten } = notices;
        let notifier = session.notifier();
        let tell = move || {
            for (NodeId(id), notice) in changed {
                // The host may have forgotten it meanwhile.
                let _ = notifier.inval_inode(INodeNo(id), 0, 0);
                drop(notice);
            }
        };
        thread::Builder::new().name("mount-notify".into()).spawn(tell)?;
        let notifier = session.notifier();
        // By a thread of its own: it waits for who changes the directory.
        let forget = move || {
            while let Ok(mut names) = forgotten.recv() {
                names.extend(forgotten.try_iter().flatten());
                // What is mounted on a name would go with it.
                let kept = names_mounted_on(device).unwrap_or_default();
                for (NodeId(directory), name) in names {
                    if !kept.contains(&name[..]) {
                        let _ = notifier.inval_entry(INodeNo(directory), OsStr::from_bytes(&name));
                    }
                }
            }
        };
        thread::Builder::new().name("mount-forget".into()).spawn(forget).map(drop)
    }
}

impl Host for ToHost {
    fn attributes_changed(&self, NodeId(id): NodeId) {
        // For attributes the host waits for nothing. It may have forgotten the file meanwhile.
        let _ = self.notifier.get().map(|notifier| notifier.inval_inode(INodeNo(id), -1, 0));
    }

    fn content_changed(&self, id: NodeId, notice: Notice) {
        // It is heard until the mount ends.
        let _ = self.changed.lock().send((id, notice));
    }

    fn forget_names(&self, names: Vec<Name>) {
        let _ = self.forgotten.lock().send(names);
    }

    fn time(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time { seconds: since.as_secs() as u32, nanoseconds: since.subsec_nanos() }
    }

    fn report(&self, line: &str) {
        self.messages.line(line);
    }
}
