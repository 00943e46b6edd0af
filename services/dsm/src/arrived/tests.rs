use std::sync::Arc;
use std::time::Duration;

use kernel::Switches;
use kernel::device::RamDisk;
use policy::coherence::NodeId;
use policy::unit::DiskNo;
use testkit::scene::{boot, small_kernel};

use super::*;
use crate::SharedConfig;
use crate::member::{Joined, Lease};

struct ForEver;

impl Lease for ForEver {
    fn lasts(&self) -> bool {
        true
    }
}

const SIZE: u64 = 1 << 20;

fn address(node: u16, incarnation: u32) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

#[test]
fn a_failure_that_is_said_to_be_the_receiver_s_own_or_of_a_node_that_does_not_exist_is_ignored() {
    let (_world, host) = boot(1, small_kernel(1, SIZE, Switches::default()));
    let cpu = &host.processors[0];
    let config = SharedConfig {
        name: "shared".into(),
        size: SIZE,
        nodes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        terms: None,
        homes: 0,
        shards: Some(1),
        process: 0,
        is_volatile: false,
        timeout: Duration::from_secs(1),
    };
    let (me, peer) = (address(0, 2), address(1, 3));
    let members = vec![(peer, "b".to_owned())];
    let joined = Joined { lease: Box::new(ForEver), members, homes: Vec::new(), before: None };
    let storage = Arc::new(RamDisk::new(SIZE, DiskNo(0)));
    let shared = Shared::join(config, me, storage, Box::new(|_| ()), joined);
    let heard = || shared.core.lock().flushes.failures.count;
    let told = |home| shared.on_word(cpu, (peer, me.incarnation), Word::Failed { home, failures: 1 });
    [me, address(0, 1), address(3, 1), address(u16::MAX, 1)].into_iter().for_each(told);
    assert_eq!(heard(), 0);
    [peer, address(2, 1)].into_iter().for_each(told);
    assert_eq!(heard(), 2, "of the peer itself, and of another node");
}
