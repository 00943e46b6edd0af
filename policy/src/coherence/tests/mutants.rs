//! The exploration detects broken protocols: each flaw is shown by a history of a few steps.

use super::super::Local;
use super::explore::{SPACE, Space, explore};
use super::world::Flaw;

const ACCESSES: &[Local] = &[Local::Read, Local::Write];
const WRITES: &[Local] = &[Local::Write];

/// Long histories, of writes only.
const FORWARDING: Space = Space { in_flight: 2, states_max: 3_000_000, ..SPACE };

fn finds(flaw: Flaw, nodes: usize, in_flight: usize, mortal: &'static [usize], what: &str) {
    let states_max = 400_000;
    finds_by(flaw, ACCESSES, Space { nodes, in_flight, mortal, states_max, ..SPACE }, what);
}

fn finds_by(flaw: Flaw, wants: &'static [Local], space: Space, what: &str) {
    let flaw = Some(flaw);
    let flushes = matches!(flaw, Some(Flaw::NothingStored | Flaw::PromisesNotFlushed));
    let forwards = matches!(
        flaw,
        Some(
            Flaw::ForwardedNotRetained
                | Flaw::OrphansIgnored
                | Flaw::TermsIgnored
                | Flaw::ForwardedToSuccessor
                | Flaw::PromisesNotFlushed
        )
    );
    let space = Space { wants: [wants; 2], flaw, flushes, forwards, ..space };
    let found = explore(space).verdict.expect_err("the protocol is broken");
    println!("{flaw:?}: {found}");
    assert!(!found.starts_with("the limit of states"), "{flaw:?}: {found}");
    assert!(found.starts_with(what), "{flaw:?}: {found}");
}

#[test]
fn a_writer_that_does_not_wait_for_readers_is_found() {
    finds(Flaw::InvalidationNotAwaited, 2, 2, &[], "a copy of");
}

#[test]
fn a_reader_that_keeps_what_it_gave_up_is_found() {
    finds(Flaw::CopyRetained, 2, 2, &[], "a copy of");
}

#[test]
fn data_dropped_before_the_home_has_them_is_found() {
    finds(Flaw::DataNotRetained, 2, 1, &[], "stale read");
}

#[test]
fn a_protocol_without_retransmission_is_found_stuck() {
    finds(Flaw::NeverRetransmitted, 2, 1, &[], "a request is never answered");
}

#[test]
fn accepting_an_answer_with_a_stale_serial_is_found() {
    finds(Flaw::SerialsIgnored, 2, 2, &[], "PageNo(0) is lost");
}

#[test]
fn accepting_messages_of_dead_incarnations_is_found() {
    finds(Flaw::IncarnationsIgnored, 2, 2, &[0, 1], "");
}

#[test]
fn a_home_that_returns_and_grants_at_once_is_found() {
    finds(Flaw::NoSurvey, 2, 1, &[0, 1], "");
}

#[test]
fn a_flush_that_does_not_wait_for_others_is_found() {
    finds(Flaw::NothingStored, 2, 1, &[], "Version");
}

#[test]
fn a_recall_that_is_answered_before_its_grant_has_come_is_found() {
    finds(Flaw::RecallAnsweredEarly, 2, 2, &[], "stale read");
}

#[test]
fn what_was_forwarded_and_is_dropped_before_the_home_has_it_is_found() {
    finds(Flaw::ForwardedNotRetained, 3, 2, &[1], "");
}

#[test]
fn a_home_that_forgets_whom_a_dead_node_may_have_sent_a_page_is_found() {
    finds(Flaw::OrphansIgnored, 3, 2, &[1], "");
}

#[test]
fn a_page_that_was_forwarded_for_an_earlier_incarnation_of_its_home_is_found() {
    finds_by(Flaw::TermsIgnored, WRITES, Space { mortal: &[0], ..FORWARDING }, "");
}

#[test]
fn a_page_forwarded_to_a_node_that_has_returned_is_found() {
    finds_by(Flaw::ForwardedToSuccessor, WRITES, Space { mortal: &[2], ..FORWARDING }, "");
}

#[test]
fn a_flush_that_does_not_wait_for_whom_a_page_was_promised_is_found() {
    finds(Flaw::PromisesNotFlushed, 3, 2, &[], "Version");
}
