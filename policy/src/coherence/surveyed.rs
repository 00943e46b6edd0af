//! Which homes have asked a node for what was granted before their terms.

use super::{Address, Home, Incarnation, PageNo, Places, Serial};

/// Homes with their terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Surveyed(Vec<(Address, Incarnation)>);

impl Surveyed {
    /// A home has asked. False: it has before.
    pub(super) fn add(&mut self, home: Address, since: Incarnation) -> bool {
        let is_first = !self.0.contains(&(home, since));
        if is_first {
            self.0.push((home, since));
        }
        is_first
    }

    /// Forgets those that are homes no more.
    pub(super) fn forget(&mut self, places: &Places) {
        self.0.retain(|(home, since)| places.seen(*home) < *since || places.is_home_since(*home, *since));
    }

    /// Will the home of a page ask for what was given up under this grant? Where homes move, it ignores that until it has
    /// seen its term, and then asks until it has all. What is sent before that would be sent twice.
    pub(super) fn will_ask(&self, places: &Places, page: PageNo, serial: Serial) -> bool {
        let asks = |home: &Home| home.at != places.me && serial.incarnation < home.since;
        let home = places.named(page).filter(|home| places.is_mapped() && asks(home));
        home.is_some_and(|home| !self.0.contains(&(home.at, home.since)))
    }
}
