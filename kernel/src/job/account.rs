//! One processor's accounts of the jobs' usage. Charging takes no lock; the processors exchange their sums once per
//! [`MERGE`], so that a job on several processors is charged for all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policy::unit::Instant;
use policy::usage::{Decay, Usage};

use super::{JobId, Jobs, NOBODY, place};

/// Decay period of usage. 4.3BSD decays once a second, against processes that live for days. A request takes micro- to
/// milliseconds; with a second, a client that copied a file would come last for many thousands of requests. With two
/// jobs, 90 % decay in ten periods: 0.1 s, which users perceive as immediate.
const PERIOD: Duration = Duration::from_millis(10);

/// Usage is capped at this: what a job reaches that has several processors to itself.
const MOST: Duration = Duration::from_millis(400);

/// Interval of exchanges between processors: a fraction of the period.
const MERGE: Duration = Duration::from_millis(1);

/// The dispatcher's time per task, added to the task's own.
const DISPATCH_NS: u64 = 200;

/// Less than this is treated as zero, and the account becomes inactive.
const FORGOTTEN_NS: u64 = 1_000;

/// Weight of a new sample in the average number of busy jobs.
const LOAD_PART: f64 = 1.0 / 16.0;

const DECAY: Decay = Decay { period: PERIOD, most: MOST };

pub(crate) struct Accounts {
    jobs: Arc<Jobs>,
    accounts: Vec<Account>,
    /// Indexes of the accounts with recent use.
    active: Vec<usize>,
    load: f64,
    merged_at: Instant,
    clock: Clock,
}

#[derive(Clone, Copy, Default)]
struct Account {
    job: JobId,
    usage: Usage,
    /// The usage at the last merge.
    decayed_ns: u64,
    /// Charged locally since the last merge.
    unreported_ns: u64,
    unreported_requests: u64,
    /// How much of the sum of all processors is in `usage`.
    seen_ns: u64,
    is_active: bool,
}

/// Converts ticks to time.
struct Clock {
    began: Option<(u64, Instant)>,
    ns_a_tick: f64,
}

impl Accounts {
    pub(crate) fn new(jobs: &Arc<Jobs>) -> Self {
        Accounts {
            jobs: Arc::clone(jobs),
            accounts: Vec::new(),
            active: Vec::new(),
            load: 1.0,
            merged_at: Instant::ZERO,
            clock: Clock { began: None, ns_a_tick: 1.0 },
        }
    }

    /// Recent use of the job, in nanoseconds.
    pub(crate) fn used(&self, job: JobId) -> u64 {
        match self.accounts.get(place(job)) {
            Some(account) if account.job == job && account.is_active => account.used(),
            // No recent local use: the sum of the other processors.
            _ if job == NOBODY => 0,
            _ => self.jobs.merged[place(job)].recent_ns.load(Ordering::Relaxed),
        }
    }

    /// Charges a task's run. Returns the job's recent use and the time charged, in nanoseconds.
    pub(crate) fn charge(&mut self, job: JobId, ticks: u64) -> (u64, u64) {
        let ns = (ticks as f64 * self.clock.ns_a_tick) as u64 + DISPATCH_NS;
        if job == NOBODY {
            return (0, ns);
        }
        let account = self.open(job);
        account.unreported_ns += ns;
        (account.used(), ns)
    }

    pub(crate) fn count_requests(&mut self, job: JobId, count: u64) {
        if job != NOBODY {
            self.open(job).unreported_requests += count;
        }
    }

    fn open(&mut self, job: JobId) -> &mut Account {
        let now = self.merged_at;
        let at = place(job);
        if self.accounts.len() <= at {
            self.accounts.resize(at + 1, Account::default());
        }
        let account = &mut self.accounts[at];
        if account.job != job || !account.is_active {
            // Starts with the job's use on other processors.
            let merged = &self.jobs.merged[at];
            let mut usage = Usage::new(DECAY, now);
            let inherited = Duration::from_nanos(merged.recent_ns.load(Ordering::Relaxed));
            usage.charge(DECAY, now, self.load, inherited);
            let (seen_ns, is_active) = (merged.used_ns.load(Ordering::Relaxed), account.is_active);
            let decayed_ns = nanoseconds(&usage);
            let (unreported_ns, unreported_requests) = (0, 0);
            *account = Account { job, usage, decayed_ns, unreported_ns, unreported_requests, seen_ns, is_active };
        }
        if !std::mem::replace(&mut account.is_active, true) {
            self.active.push(at);
        }
        account
    }

    /// Have several jobs used this processor recently?
    pub(crate) fn is_shared(&self) -> bool {
        self.active.len() > 1
    }

    pub(crate) fn is_merge_due(&self, ticks: u64) -> bool {
        !self.active.is_empty() && self.clock.since_merge(ticks, self.merged_at) >= MERGE.as_nanos() as f64
    }

    /// Exchanges usage with the other processors, and decays it.
    pub(crate) fn merge(&mut self, now: Instant, ticks: u64) {
        self.merged_at = now;
        self.clock.note(ticks, now);
        self.load += (self.active.len() as f64 - self.load) * LOAD_PART;
        let (accounts, load, jobs) = (&mut self.accounts, self.load, &self.jobs);
        self.active.retain(|&at| {
            let (account, merged) = (&mut accounts[at], &jobs.merged[at]);
            let own = std::mem::take(&mut account.unreported_ns);
            let requests = std::mem::take(&mut account.unreported_requests);
            if requests > 0 {
                merged.requests.fetch_add(requests, Ordering::Relaxed);
            }
            let all = merged.used_ns.fetch_add(own, Ordering::Relaxed).wrapping_add(own);
            let fresh = all.wrapping_sub(account.seen_ns);
            account.seen_ns = all;
            account.usage.charge(DECAY, now, load, Duration::from_nanos(fresh));
            account.is_active = fresh > 0 || nanoseconds(&account.usage) >= FORGOTTEN_NS;
            let recent = if account.is_active { nanoseconds(&account.usage) } else { 0 };
            account.decayed_ns = recent;
            merged.recent_ns.store(recent, Ordering::Relaxed);
            account.is_active
        });
    }

    /// Recent use of the jobs that are active on this processor.
    pub(crate) fn active(&self) -> impl Iterator<Item = (JobId, u64)> {
        self.active.iter().map(|&at| (self.accounts[at].job, self.accounts[at].used()))
    }
}

impl Account {
    fn used(&self) -> u64 {
        self.decayed_ns + self.unreported_ns
    }
}

fn nanoseconds(usage: &Usage) -> u64 {
    // At most a few hundred milliseconds.
    usage.last_estimate().as_nanos() as u64
}

impl Clock {
    fn note(&mut self, ticks: u64, now: Instant) {
        let &mut (first_ticks, first) = self.began.get_or_insert((ticks, now));
        let (ticks, ns) = (ticks.saturating_sub(first_ticks), now.since(first).as_nanos());
        if ticks > 0 && ns > 0 {
            self.ns_a_tick = ns as f64 / ticks as f64;
        }
    }

    /// Nanoseconds since the last merge, by the tick counter.
    fn since_merge(&self, ticks: u64, merged_at: Instant) -> f64 {
        let Some((first_ticks, first)) = self.began else { return f64::INFINITY };
        let merged = merged_at.since(first).as_nanos() as f64;
        ticks.saturating_sub(first_ticks) as f64 * self.ns_a_tick - merged
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::{Client, JOBS_MAX, OTHERS, USERS_AT_MAX};
    use super::*;

    fn client(number: u32) -> Client {
        Client::Address(Ipv4Addr::from_bits(number).into())
    }

    fn at(ms: u64) -> (Instant, u64) {
        (Instant::from_ns(ms * 1_000_000), ms * 1_000_000)
    }

    #[test]
    fn what_several_processors_do_for_a_job_counts_once_and_on_each() {
        let jobs = Arc::new(Jobs::default());
        let member = jobs.connect(client(1));
        let mut processors = [Accounts::new(&jobs), Accounts::new(&jobs)];
        for accounts in &mut processors {
            accounts.merge(Instant::ZERO, 0);
            accounts.charge(member.job(), 1_000_000 - DISPATCH_NS);
        }
        let (now, ticks) = at(2);
        processors[0].merge(now, ticks);
        processors[1].merge(now, ticks);
        processors[0].merge(now, ticks);
        for accounts in &processors {
            assert_eq!(accounts.used(member.job()), 2_000_000);
        }
        let facts = jobs.list();
        assert_eq!((facts[0].used, facts[0].connections), (Duration::from_millis(2), 1));
        // A third processor that serves it later sees the usage.
        let mut third = Accounts::new(&jobs);
        assert_eq!(third.used(member.job()), 2_000_000);
        third.merge(now, ticks);
        third.charge(member.job(), 0);
        assert_eq!(third.used(member.job()), 2_000_000 + DISPATCH_NS);
    }

    #[test]
    fn what_was_used_is_forgotten_after_a_while_and_the_account_rests() {
        let jobs = Arc::new(Jobs::default());
        let member = jobs.connect(client(1));
        let mut accounts = Accounts::new(&jobs);
        accounts.merge(Instant::ZERO, 0);
        accounts.charge(member.job(), 50_000_000);
        let mut before = u64::MAX;
        for ms in 1..3000 {
            let (now, ticks) = at(ms);
            if accounts.is_merge_due(ticks) {
                accounts.merge(now, ticks);
            }
            let used = accounts.used(member.job());
            assert!(used <= before);
            before = used;
        }
        assert_eq!(before, 0);
        assert!(accounts.active.is_empty() && jobs.list()[0].recent.is_zero());
    }

    #[test]
    fn the_table_has_a_bound_and_who_left_longest_ago_goes_first() {
        let jobs = Arc::new(Jobs::default());
        let mut members: Vec<_> = (0..JOBS_MAX as u32).map(|number| Some(jobs.connect(client(number)))).collect();
        let late = jobs.connect(client(1 << 20));
        assert_eq!(late.job(), OTHERS, "all are connected");
        let (first, second) = (members[7].take(), members[3].take());
        let [first, second] = [first, second].map(|member| member.map(|member| member.job()));
        let again = jobs.connect(client(3));
        assert_eq!(Some(again.job()), second, "it is remembered");
        let new = jobs.connect(client(1 << 21));
        assert_eq!(place(new.job()), first.map_or(0, place));
        assert_ne!(Some(new.job()), first);
        assert_eq!(jobs.list().len(), JOBS_MAX);
        assert!(jobs.list().iter().all(|facts| facts.client != client(7)));
    }

    #[test]
    fn a_client_that_comes_again_is_the_job_that_it_was() {
        let jobs = Arc::new(Jobs::default());
        let mut accounts = Accounts::new(&jobs);
        accounts.merge(Instant::ZERO, 0);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let member = jobs.connect(client(9));
            accounts.charge(member.job(), 1_000_000);
            seen.push(member.job());
        }
        assert!(seen.iter().all(|job| *job == seen[0]));
        assert_eq!(accounts.used(seen[0]), 5 * (1_000_000 + DISPATCH_NS));
    }

    #[test]
    fn requests_are_counted_for_the_job_of_now_and_not_for_those_before_it() {
        let jobs = Arc::new(Jobs::default());
        let mut accounts = Accounts::new(&jobs);
        let members: Vec<_> = (0..JOBS_MAX as u32).map(|number| jobs.connect(client(number))).collect();
        accounts.count_requests(members[5].job(), 1);
        accounts.merge(at(1).0, at(1).1);
        drop(members);
        let late = jobs.connect(client(1 << 20));
        let requests = || jobs.list().iter().find(|facts| facts.id == late.job()).map(|facts| facts.requests);
        assert_eq!(requests(), Some(0));
        accounts.count_requests(late.job(), 3);
        accounts.merge(at(2).0, at(2).1);
        assert_eq!(requests(), Some(3));
    }

    #[test]
    fn a_host_that_names_many_users_has_no_more_than_a_few_jobs() {
        let jobs = Arc::new(Jobs::default());
        let host = std::net::IpAddr::from(Ipv4Addr::LOCALHOST);
        let user = |number| jobs.connect(Client::UserAt(host, number));
        let mut members: Vec<_> = (0..USERS_AT_MAX as u32).map(user).collect();
        let others: Vec<_> = (1000..1100).map(user).collect();
        let shared = jobs.connect(Client::Address(host));
        assert!(others.iter().all(|other| other.job() == shared.job()), "the host's own");
        let gone = members.remove(3).job();
        let new = user(2000);
        assert_eq!(place(new.job()), place(gone), "instead of the one who left");
        assert_ne!(new.job(), gone);
        assert_eq!(jobs.list().len(), USERS_AT_MAX + 1);
        assert_eq!(user(0).job(), members[0].job());
    }
}
