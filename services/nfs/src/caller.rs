//! The callers on one connection: each user that a client's host states is a job of its own (WS-7).

use kernel::Processor;
use kernel::connection::Outbound;
use kernel::job::{JobId, Member, NOBODY, Origin};

use crate::client::{ClientAddress, Credentials};

/// Users of one connection remembered. A host makes one connection for all of its users.
const USERS_MAX: usize = 8;

pub(crate) struct Callers {
    client: ClientAddress,
    /// The connection's, for calls without a user.
    job: JobId,
    /// The most recent last.
    users: Vec<(u32, Member)>,
}

impl Callers {
    /// For the connection that the running task serves.
    pub(crate) fn new(cpu: &Processor, client: ClientAddress) -> Callers {
        Callers { client, job: cpu.job(), users: Vec::new() }
    }

    /// Charges the running task, and the sender of replies, to the caller's job.
    pub(crate) fn work_for(&mut self, cpu: &Processor, credentials: &Credentials, outbound: &Outbound) {
        let job = self.job_of(cpu, credentials);
        cpu.work_for(job);
        outbound.set_job(job);
    }

    fn job_of(&mut self, cpu: &Processor, credentials: &Credentials) -> JobId {
        // Users of a Unix socket are identified by the host. And if the connection is not charged to a job, its calls
        // are not either.
        let (Some(address), &Credentials::Unix { uid, .. }) = (self.client.ip(), credentials) else { return self.job };
        if self.job == NOBODY {
            return NOBODY;
        }
        if let Some((_, member)) = self.users.last().filter(|(user, _)| *user == uid) {
            return member.job();
        }
        let known = self.users.iter().position(|(user, _)| *user == uid);
        let entry = match known {
            Some(at) => self.users.remove(at),
            None => {
                if self.users.len() == USERS_MAX {
                    self.users.remove(0);
                }
                let jobs = cpu.kernel().jobs();
                let client = jobs.client_of(Origin { address: Some(address), user: Some(uid) });
                (uid, jobs.connect(client))
            }
        };
        let job = entry.1.job();
        self.users.push(entry);
        job
    }
}
