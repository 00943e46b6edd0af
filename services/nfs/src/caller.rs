//! Whose calls come over one connection: each user that a client's host names is a job of its own (WS-7).

use kernel::Processor;
use kernel::connection::Outbound;
use kernel::job::{JobId, Member, NOBODY, Origin};

use crate::call::{ClientAddress, Credentials};

/// Users of one connection that are remembered. A host that serves many people makes one connection for all of them.
const USERS_MAX: usize = 8;

/// The users of one connection.
pub(crate) struct Callers {
    client: ClientAddress,
    /// Of the connection, for calls that name nobody.
    job: JobId,
    /// Those that called last, the last one at the end.
    users: Vec<(u32, Member)>,
}

impl Callers {
    /// Of the connection that the running task serves.
    pub(crate) fn new(cpu: &Processor, client: ClientAddress) -> Callers {
        Callers { client, job: cpu.job(), users: Vec::new() }
    }

    /// Has the running task, and the sender of replies, work for who makes a call.
    pub(crate) fn work_for(&mut self, cpu: &Processor, credentials: &Credentials, outbound: &Outbound) {
        let job = self.job_of(cpu, credentials);
        cpu.work_for(job);
        outbound.set_job(job);
    }

    fn job_of(&mut self, cpu: &Processor, credentials: &Credentials) -> JobId {
        // Who speaks through a socket of this host is known without being told. And where nobody is charged for the
        // connection, nobody is for its calls.
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
