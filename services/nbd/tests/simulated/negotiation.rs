//! The handshake, byte by byte, with clients that keep to the protocol and with others.

use crate::scene::{Ended, Setup, go, request, serve};
use kernel::connection::Limits;
use nbd::proto::{BASE_ALLOCATION, NBD_OPTS_MAGIC, Reader, cmd, flag, info, option, rep};
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn setup() -> Setup {
    Setup::new(1, SIZE)
}

fn contexts(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

#[test]
fn all_exports_are_listed_with_their_descriptions() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        let replies = peer.ask(option::LIST, &[]).await.expect("answers");
        let names: Vec<_> = replies
            .iter()
            .filter(|reply| reply.kind == rep::SERVER)
            .map(|reply| {
                let mut at = Reader::new(&reply.payload);
                let name = at.string().expect("a name").to_owned();
                (name.clone(), String::from_utf8_lossy(&reply.payload[4 + name.len()..]).into_owned())
            })
            .collect();
        let expected = [("disk", "the disk"), ("frozen", "the frozen")].map(|(n, d)| (n.to_owned(), d.to_owned()));
        assert_eq!(names, expected);
        assert_eq!(replies.last().map(|reply| reply.kind), Some(rep::ACK));
    });
}

#[test]
fn a_client_may_ask_about_each_export_on_one_connection_but_not_for_ever() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        for _ in 0..256 + 2 * 2 {
            assert_eq!(peer.ask_last(option::INFO, &go("frozen")).await, Ok(rep::ACK));
        }
        for _ in 0..2 * 2 {
            assert_eq!(peer.ask_last(option::LIST, &[]).await, Ok(rep::ACK));
        }
        assert!(peer.ask_last(option::LIST, &[]).await.is_err());
    });
}

#[test]
fn the_empty_name_is_the_first_export() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        let wanted = [&0_u32.to_be_bytes()[..], &1_u16.to_be_bytes(), &info::NAME.to_be_bytes()].concat();
        let replies = peer.ask(option::INFO, &wanted).await.expect("answers");
        let name = [&info::NAME.to_be_bytes()[..], b"disk"].concat();
        assert!(replies.iter().any(|reply| reply.kind == rep::INFO && reply.payload == name), "{replies:?}");
    });
}

#[test]
fn information_tells_size_flags_and_block_sizes_without_beginning_transmission() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        for (name, read_only) in [("disk", false), ("frozen", true)] {
            let replies = peer.ask(option::INFO, &go(name)).await.expect("answers");
            let find = |kind: u16| {
                let found = replies.iter().find(|r| r.kind == rep::INFO && r.payload[..2] == kind.to_be_bytes());
                found.expect("this information").payload[2..].to_vec()
            };
            let export = find(info::EXPORT);
            let mut at = Reader::new(&export);
            assert_eq!(at.u64(), Some(SIZE));
            let flags = at.u16().expect("flags");
            assert_eq!(flags & flag::READ_ONLY != 0, read_only);
            assert_eq!(flags & flag::SEND_TRIM == 0, read_only);
            assert_eq!(flags & flag::SEND_DF, 0, "structured replies were not agreed on");
            assert_ne!(flags & flag::CAN_MULTI_CONN, 0);
            let sizes = find(info::BLOCK_SIZE);
            let mut at = Reader::new(&sizes);
            assert_eq!((at.u32(), at.u32(), at.u32()), (Some(1), Some(4096), Some(32 << 20)));
        }
        assert_eq!(peer.ask_last(option::GO, &go("disk")).await, Ok(rep::ACK));
        assert_eq!(peer.error_of(request(cmd::FLUSH, 0, 0), &[]).await, Ok(0));
    });
}

#[test]
fn the_old_way_to_choose_an_export_ends_with_zeroes_unless_they_are_not_wanted() {
    serve(setup(), async |cpu, route| {
        for (flags, len) in [(1, 134), (3, 10)] {
            let mut peer = route.peer(&cpu);
            peer.greet(flags).await.expect("a greeting");
            peer.option(option::EXPORT_NAME, b"disk").await.expect("sent");
            let answer = peer.receive(len).await.expect("size, flags, zeroes");
            assert_eq!(answer[..8], SIZE.to_be_bytes());
            assert!(answer[10..].iter().all(|byte| *byte == 0));
            assert_eq!(peer.error_of(request(cmd::FLUSH, 0, 0), &[]).await, Ok(0));
        }
        let mut peer = route.greeted(&cpu).await;
        peer.option(option::EXPORT_NAME, b"none such").await.expect("sent");
        assert_eq!(peer.receive(1).await, Err(Ended), "there is no other way to refuse");
    });
}

#[test]
fn what_is_not_offered_is_refused_and_negotiation_goes_on() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        let long = vec![0; 70_000];
        let many_kinds = [&0_u32.to_be_bytes()[..], &u16::MAX.to_be_bytes()].concat();
        let long_name = go(&"x".repeat(4097));
        let not_text = [&2_u32.to_be_bytes()[..], &[0xff, 0xfe, 0, 0]].concat();
        let cut_name = 100_u32.to_be_bytes();
        let rest_after = [go("disk"), vec![0]].concat();
        for (option, data, error) in [
            (option::STARTTLS, &[][..], rep::ERR_POLICY),
            (option::EXTENDED_HEADERS, &[], rep::ERR_UNSUP),
            (0xdead_beef, b"some data", rep::ERR_UNSUP),
            (4, &[], rep::ERR_UNSUP),
            (option::LIST, b"x", rep::ERR_INVALID),
            (option::STRUCTURED_REPLY, b"x", rep::ERR_INVALID),
            (option::GO, &[], rep::ERR_INVALID),
            (option::GO, &cut_name, rep::ERR_INVALID),
            (option::GO, &many_kinds, rep::ERR_INVALID),
            (option::GO, &long_name, rep::ERR_INVALID),
            (option::GO, &not_text, rep::ERR_INVALID),
            (option::GO, &rest_after, rep::ERR_INVALID),
            (option::GO, &go("none such"), rep::ERR_UNKNOWN),
            (option::INFO, &go("none such"), rep::ERR_UNKNOWN),
            (option::GO, &long, rep::ERR_TOO_BIG),
            (option::SET_META_CONTEXT, &contexts("disk", &[BASE_ALLOCATION]), rep::ERR_INVALID),
        ] {
            assert_eq!(peer.ask_last(option, data).await, Ok(error), "option {option} with {} bytes", data.len());
        }
        assert_eq!(peer.ask_last(option::GO, &go("disk")).await, Ok(rep::ACK));
        assert_eq!(peer.error_of(request(cmd::FLUSH, 0, 0), &[]).await, Ok(0));
    });
}

#[test]
fn contexts_are_listed_by_wildcard_and_set_by_name() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        assert_eq!(peer.ask_last(option::STRUCTURED_REPLY, &[]).await, Ok(rep::ACK));
        for (option, queries, found) in [
            (option::LIST_META_CONTEXT, &[][..], true),
            (option::LIST_META_CONTEXT, &["base:"], true),
            (option::LIST_META_CONTEXT, &["qemu:"], false),
            (option::SET_META_CONTEXT, &["base:"], false),
            (option::SET_META_CONTEXT, &[], false),
            (option::SET_META_CONTEXT, &["qemu:dirty", BASE_ALLOCATION], true),
        ] {
            let replies = peer.ask(option, &contexts("disk", queries)).await.expect("answers");
            let named = replies
                .iter()
                .filter(|reply| reply.kind == rep::META_CONTEXT && reply.payload[4..] == *BASE_ALLOCATION.as_bytes());
            assert_eq!(named.count(), usize::from(found), "option {option} with {queries:?}");
            assert_eq!(replies.last().map(|reply| reply.kind), Some(rep::ACK));
        }
        let too_many = [contexts("disk", &[])[..8].to_vec(), u32::MAX.to_be_bytes().to_vec()].concat();
        assert_eq!(peer.ask_last(option::SET_META_CONTEXT, &too_many).await, Ok(rep::ERR_INVALID));
    });
}

#[test]
fn abort_is_acknowledged_and_ends_the_connection() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        assert_eq!(peer.ask_last(option::ABORT, &[]).await, Ok(rep::ACK));
        assert_eq!(peer.receive(1).await, Err(Ended));
    });
}

#[test]
fn who_does_not_speak_the_protocol_is_disconnected() {
    serve(setup(), async |cpu, route| {
        for flags in [0x8000_0003, 4, u32::MAX] {
            let mut peer = route.peer(&cpu);
            peer.greet(flags).await.expect("a greeting");
            assert_eq!(peer.receive(1).await, Err(Ended), "client flags {flags:#x}");
        }
        for (magic, len) in [(NBD_OPTS_MAGIC + 1, 0), (NBD_OPTS_MAGIC, u32::MAX), (0x4745_5420_2f20_4854, 12)] {
            let mut peer = route.greeted(&cpu).await;
            peer.option_header(magic, option::GO, len).await.expect("sent");
            assert_eq!(peer.receive(1).await, Err(Ended), "magic {magic:#x}, {len} bytes");
        }
    });
}

#[test]
fn negotiation_may_not_go_on_for_ever() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.greeted(&cpu).await;
        let mut asked = 0;
        while peer.ask(option::LIST, &[]).await.is_ok() {
            asked += 1;
            assert!(asked < 10_000, "still negotiating");
        }
    });
}

#[test]
fn who_does_not_choose_an_export_in_time_is_disconnected() {
    let limits = Limits { handshake_timeout: Duration::from_secs(30), ..Limits::default() };
    serve(Setup { limits, ..setup() }, async |cpu, route| {
        // Some send nothing at all, some stop within an option, some continue too slowly.
        let mut silent = route.peer(&cpu);
        silent.receive(18).await.expect("a greeting");
        let mut halting = route.greeted(&cpu).await;
        halting.option_header(NBD_OPTS_MAGIC, option::GO, 1000).await.expect("sent");
        let mut slow = route.greeted(&cpu).await;
        let start = cpu.now();
        while slow.ask(option::LIST, &[]).await.is_ok() {
            slow.pause(Duration::from_secs(1)).await;
        }
        for end in [silent.until_end().await, halting.until_end().await, cpu.now()] {
            assert!(end.since(start) < Duration::from_secs(40), "disconnected after {:?}", end.since(start));
        }
        assert!(cpu.now().since(start) > Duration::from_secs(25), "had its time");
    });
}

#[test]
fn a_client_that_has_chosen_in_time_may_then_be_idle_for_ever() {
    serve(setup(), async |cpu, route| {
        let mut peer = route.peer_of(&cpu, "disk").await;
        peer.pause(Duration::from_secs(24 * 3600)).await;
        assert_eq!(peer.error_of(request(cmd::FLUSH, 0, 0), &[]).await, Ok(0));
    });
}
