//! The types of requests that are counted: the spans of services.
//!
//! Reads answered from the cache in a batch are timed together: they leave in one send, so they have one latency.
//! Reading the clock twice for each took more than a hundredth of the fastest ones' time.

use crate::trace::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Nbd,
    Nfs,
    Postgres,
}

impl Service {
    pub const ALL: [Service; 3] = [Service::Nbd, Service::Nfs, Service::Postgres];

    pub const fn name(self) -> &'static str {
        match self {
            Service::Nbd => "nbd",
            Service::Nfs => "nfs",
            Service::Postgres => "postgres",
        }
    }
}

/// Requests whose latencies are reported together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Read,
    Write,
    /// They make content durable.
    Sync,
    /// They execute functions of databases.
    Call,
    Other,
}

impl Group {
    pub const ALL: [Group; 5] = [Group::Read, Group::Write, Group::Sync, Group::Call, Group::Other];

    pub const fn name(self) -> &'static str {
        match self {
            Group::Read => "read",
            Group::Write => "write",
            Group::Sync => "sync",
            Group::Call => "call",
            Group::Other => "other",
        }
    }
}

const TYPES: &[(Event, Service, Group)] = &[
    (Event::NbdRead, Service::Nbd, Group::Read),
    (Event::NbdWrite, Service::Nbd, Group::Write),
    (Event::NbdFlush, Service::Nbd, Group::Sync),
    (Event::NbdTrim, Service::Nbd, Group::Other),
    (Event::NbdWriteZeroes, Service::Nbd, Group::Other),
    (Event::NbdCache, Service::Nbd, Group::Other),
    (Event::NbdBlockStatus, Service::Nbd, Group::Other),
    (Event::NfsNull, Service::Nfs, Group::Other),
    (Event::NfsGetattr, Service::Nfs, Group::Other),
    (Event::NfsSetattr, Service::Nfs, Group::Other),
    (Event::NfsLookup, Service::Nfs, Group::Other),
    (Event::NfsAccess, Service::Nfs, Group::Other),
    (Event::NfsReadlink, Service::Nfs, Group::Other),
    (Event::NfsRead, Service::Nfs, Group::Read),
    (Event::NfsWrite, Service::Nfs, Group::Write),
    (Event::NfsCreate, Service::Nfs, Group::Other),
    (Event::NfsMkdir, Service::Nfs, Group::Other),
    (Event::NfsSymlink, Service::Nfs, Group::Other),
    (Event::NfsMknod, Service::Nfs, Group::Other),
    (Event::NfsRemove, Service::Nfs, Group::Other),
    (Event::NfsRmdir, Service::Nfs, Group::Other),
    (Event::NfsRename, Service::Nfs, Group::Other),
    (Event::NfsLink, Service::Nfs, Group::Other),
    (Event::NfsReaddir, Service::Nfs, Group::Other),
    (Event::NfsReaddirplus, Service::Nfs, Group::Other),
    (Event::NfsFsstat, Service::Nfs, Group::Other),
    (Event::NfsFsinfo, Service::Nfs, Group::Other),
    (Event::NfsPathconf, Service::Nfs, Group::Other),
    (Event::NfsCommit, Service::Nfs, Group::Sync),
    (Event::Mount, Service::Nfs, Group::Other),
    (Event::PostgresCall, Service::Postgres, Group::Call),
    (Event::PostgresOther, Service::Postgres, Group::Other),
];

const NONE: u8 = u8::MAX;

/// The index of each event in `TYPES`.
const PLACES: [u8; Event::COUNT] = {
    let mut places = [NONE; Event::COUNT];
    let mut place = 0;
    while place < TYPES.len() {
        places[TYPES[place].0 as usize] = place as u8;
        place += 1;
    }
    places
};

/// The group of each type.
const GROUP_INDICES: [u8; TYPES.len()] = {
    let mut indices = [0; TYPES.len()];
    let mut place = 0;
    while place < TYPES.len() {
        indices[place] = group_index(TYPES[place].1, TYPES[place].2) as u8;
        place += 1;
    }
    indices
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestType(u8);

impl RequestType {
    pub(super) const NUMBER: usize = TYPES.len();
    pub(super) const GROUPS: usize = Service::ALL.len() * Group::ALL.len();

    pub fn all() -> impl Iterator<Item = RequestType> {
        (0..TYPES.len() as u8).map(RequestType)
    }

    /// The type of a span, if it is a request.
    #[inline]
    pub fn of(event: Event) -> Option<RequestType> {
        let place = PLACES[event as usize];
        (place != NONE).then_some(RequestType(place))
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    pub(super) fn group_index(self) -> usize {
        usize::from(GROUP_INDICES[self.index()])
    }

    #[inline]
    pub fn service(self) -> Service {
        TYPES[self.index()].1
    }

    #[inline]
    pub fn group(self) -> Group {
        TYPES[self.index()].2
    }

    /// Its name within its service; `mount` for MOUNT.
    pub fn name(self) -> &'static str {
        let event = TYPES[self.index()].0;
        match event.facts().name.split_once('.') {
            Some((service, name)) if service == self.service().name() => name,
            Some((protocol, _)) => protocol,
            None => "",
        }
    }
}

#[inline]
pub(super) const fn group_index(service: Service, group: Group) -> usize {
    service as usize * Group::ALL.len() + group as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_event_and_has_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for request in RequestType::all() {
            assert_eq!(RequestType::of(TYPES[request.index()].0), Some(request));
            assert!(names.insert((request.service().name(), request.name())), "{}", request.name());
        }
        assert!(names.contains(&("nbd", "write_zeroes")) && names.contains(&("nfs", "mount")));
        assert_eq!(RequestType::of(Event::TaskRan), None);
    }

    #[test]
    fn every_span_of_a_service_is_a_type_of_request() {
        for event in Event::all().filter(|event| event.facts().shape == crate::trace::Shape::Span) {
            let name = event.facts().name;
            let is_request = Service::ALL.iter().any(|service| name.split('.').next() == Some(service.name()));
            assert!(!is_request || RequestType::of(event).is_some(), "{name}");
        }
    }
}
