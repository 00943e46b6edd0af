//! The exploration detects broken protocols: each flaw is shown by a history of a few steps.

use super::super::{Local, Storage};
use super::explore::{Space, explore};
use super::world::Flaw;

const ACCESSES: &[Local] = &[Local::Read, Local::Write];

fn finds(flaw: Flaw, nodes: usize, in_flight: usize, mortal: &'static [usize], what: &str) {
    let flaw = Some(flaw);
    let (wants, storage) = ([ACCESSES; 2], Storage::Versioned);
    let flushes = flaw == Some(Flaw::NothingStored);
    let states_max = 400_000;
    let space = Space { nodes, pages: 1, in_flight, mortal, wants, waiting: 2, flaw, flushes, storage, states_max };
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
    finds(Flaw::RecallAnsweredEarly, 2, 2, &[], "a copy of");
}
