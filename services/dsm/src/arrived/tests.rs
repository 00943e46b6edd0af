use std::sync::Arc;
use std::time::Duration;

use kernel::device::{DeviceRef, RamDisk};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Switches, Volume};
use policy::coherence::{Home, Mode, NodeId, PageNo, Request, Serial, ShardNo, Version};
use policy::unit::{DiskNo, ProcessorId};
use testkit::scene::{boot, small_kernel};

use super::*;
use crate::member::{Joined, Lease};
use crate::shared::Report;
use crate::wire::Header;
use crate::{SHARD_PAGES, SharedConfig};

struct ForEver;

impl Lease for ForEver {
    fn lasts(&self) -> bool {
        true
    }
}

/// Of two shards.
pub(crate) const SIZE: u64 = 2 << 20;

pub(crate) const fn address(node: u16, incarnation: u32) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

pub(crate) const ME: Address = address(0, 2);
pub(crate) const PEER: Address = address(1, 3);

/// Node 0, with the peer as a member.
fn join(homes: Vec<(ShardNo, Home)>) -> Arc<Shared> {
    join_reporting(homes, Box::new(|_| ()))
}

pub(crate) fn join_reporting(homes: Vec<(ShardNo, Home)>, report: Report) -> Arc<Shared> {
    join_storing(homes, Arc::new(RamDisk::new(SIZE, DiskNo(0))), report)
}

/// `storage`: of the pages whose home this node is.
pub(crate) fn join_storing(homes: Vec<(ShardNo, Home)>, storage: DeviceRef, report: Report) -> Arc<Shared> {
    let config = SharedConfig {
        name: "shared".into(),
        size: SIZE,
        nodes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        terms: None,
        homes: 0,
        shards: Some(2),
        process: 0,
        is_volatile: false,
        timeout: Duration::from_secs(1),
    };
    let joined = Joined { lease: Box::new(ForEver), members: vec![(PEER, "b".to_owned())], homes, before: None };
    Shared::join(config, ME, storage, report, joined)
}

/// The volume of this node.
pub(crate) fn open_volume(kernel: &Arc<Kernel>, shared: &Arc<Shared>) -> Arc<Volume> {
    let config = VolumeConfig {
        name: "shared".into(),
        read_only: false,
        forced_unit_access: ForcedUnitAccess::Never,
        grows: false,
    };
    let volume = Volume::open_shared(kernel, shared.clone(), shared.clone(), config, ProcessorId(0));
    let volume = volume.expect("a number");
    shared.set_volume(&volume);
    volume
}

#[test]
fn a_failure_that_is_said_to_be_the_receiver_s_own_or_of_a_node_that_does_not_exist_is_ignored() {
    let (_world, host) = boot(1, small_kernel(1, SIZE, Switches::default()));
    let cpu = &host.processors[0];
    let shared = join(Vec::new());
    let heard = || shared.core.lock().flushes.failures.count;
    let told = |home| shared.on_word(cpu, (PEER, ME.incarnation), Word::Failed { home, failures: 1 });
    [ME, address(0, 1), address(3, 1), address(u16::MAX, 1)].into_iter().for_each(told);
    assert_eq!(heard(), 0);
    [PEER, address(2, 1)].into_iter().for_each(told);
    assert_eq!(heard(), 2, "of the peer itself, and of another node");
}

#[test]
fn a_survey_is_answered_once_when_the_steps_of_the_home_s_own_pages_are_done() {
    let (_world, host) = boot(1, small_kernel(1, SIZE, Switches::default()));
    let cpu = &host.processors[0];
    let since = Incarnation(5);
    let shared = join(vec![(ShardNo(0), Home { at: PEER, since }), (ShardNo(1), Home { at: ME, since })]);
    let [its, own] = [PageNo(0), PageNo(SHARD_PAGES)];
    [its, own].into_iter().for_each(|page| shared.core.lock().page(page).is_running = true);
    for _ in 0..3 {
        let word = Word::page(Message::Survey { since }, false);
        let run = Run::of(Header { from: PEER.incarnation, to: ME.incarnation, word });
        shared.on_messages(cpu, std::iter::once(Arrived { from: PEER, to: ME, run, pages: Payload::None }));
    }
    let mut core = shared.core.lock();
    let after: Vec<Vec<PageNo>> = core.answers.iter().map(|answer| answer.after.iter().copied().collect()).collect();
    assert_eq!(after, [[its]]);
    let sent = shared.counters.messages.get();
    shared.send_answers(&mut core);
    assert_eq!(shared.counters.messages.get(), sent, "a step is under way");
    core.page(its).is_running = false;
    shared.send_answers(&mut core);
    assert_eq!((core.answers.len(), shared.counters.messages.get()), (0, sent + 1));
}

#[test]
fn runs_that_lie_change_nothing_and_get_only_what_this_home_has() {
    let (_world, host) = boot(1, small_kernel(1, SIZE, Switches { look_ahead: true, ..Switches::default() }));
    let cpu = &host.processors[0];
    let since = Incarnation(5);
    let shared = join(vec![(ShardNo(0), Home { at: PEER, since }), (ShardNo(1), Home { at: ME, since })]);
    let _volume = open_volume(&host.kernel, &shared);
    let header = |from: Address, message| Header {
        from: from.incarnation,
        to: ME.incarnation,
        word: Word::page(message, false),
    };
    let surveyed = Run::of(header(PEER, Message::Surveyed { since, seen: since }));
    shared.on_messages(cpu, std::iter::once(Arrived { from: PEER, to: ME, run: surveyed, pages: Payload::None }));
    assert!(!shared.core.lock().node.is_surveying());
    let grant = |page: u64| {
        let serial = Serial { incarnation: since, count: page };
        let data = Some(Version { serial, writes: 1 });
        Message::Grant { page: PageNo(page), mode: Mode::Read, request: Request(page), serial, data }
    };
    let ask = |page: u64| {
        let request = Request(1 + page);
        Message::Ask { page: PageNo(page), mode: Mode::Read, request, have: None, blank: false }
    };
    let arrived = |from: Address, first: u64, of: &dyn Fn(u64) -> Message| {
        let mut run = Run::of(header(from, of(first)));
        assert!((1..16).all(|more| run.extend(&header(from, of(first + more)))));
        let mut frames = Frames::new();
        cpu.kernel().try_allocate(run.page_bytes() / PAGE_BYTES, &mut frames);
        Arrived { from, to: ME, run, pages: Payload::Frames(frames) }
    };
    let pages = SIZE / PAGE_BYTES as u64;
    for first in [0, SHARD_PAGES - 8, pages - 8, pages, u64::MAX - 20] {
        for from in [PEER, Address { incarnation: Incarnation(9), ..PEER }, address(2, 1)] {
            shared.on_messages(cpu, [arrived(from, first, &grant), arrived(from, first, &ask)].into_iter());
        }
    }
    let core = shared.core.lock();
    assert_eq!(core.node.held(), [0, 0], "nobody has asked");
    assert_eq!(core.pages.iter().count(), 0);
    assert_eq!(shared.counters.grants.get(), 16, "of two runs, in part pages of this home, to a member");
}
