//! Guarantees of early writes.

use policy::early::EarlyWrite;
use policy::unit::Class;
use proptest::prelude::*;

proptest! {
    #[test]
    fn writers_that_flush_after_few_writes_write_early_after_the_first_flush(
        writes in 1usize..=32,
        flushes in 1usize..20,
        rounds in 2usize..10,
    ) {
        let mut early = EarlyWrite::new();
        for round in 0..rounds {
            let at_once = (0..writes).filter(|_| early.on_write(1, false) == Some(Class::Synchronous)).count();
            prop_assert_eq!(at_once, if round == 0 { 0 } else { writes });
            early.on_flushes(flushes as u32);
        }
    }

    #[test]
    fn clients_that_write_and_flush_at_the_same_time_write_early_from_their_second_flush_on(
        clients in 1usize..200,
        writes in 1usize..=32,
        rounds in 2usize..6,
    ) {
        let mut early = EarlyWrite::new();
        for round in 0..rounds {
            let at_once =
                (0..clients * writes).filter(|_| early.on_write(1, false) == Some(Class::Synchronous)).count();
            prop_assert_eq!(at_once, if round == 0 { 0 } else { clients * writes });
            early.on_flushes(clients as u32);
        }
    }

    #[test]
    fn of_a_long_run_of_writes_only_the_beginning_is_written_early(
        before in prop::collection::vec(any::<bool>(), 0..100),
        longer in 1usize..1000,
    ) {
        let mut early = EarlyWrite::new();
        // As many as both wrote and flushed, at most.
        let (mut clients, mut writes, mut flushes) = (1, 0, 0);
        for flush in before {
            if flush {
                early.on_flushes(1);
                flushes += 1;
                clients = clients.max(writes.min(flushes));
            } else {
                early.on_write(1, false);
                writes = if flushes > 0 { 1 } else { writes + 1 };
                flushes = 0;
            }
        }
        let run = 32 * clients + longer;
        prop_assert!((0..run).filter(|_| early.on_write(1, false).is_some()).count() <= 32 * clients);
        early.on_flushes(1);
        prop_assert_eq!(early.on_write(1, false), None, "nor does the next run");
    }

    #[test]
    fn flushes_without_writes_are_no_further_clients(writes in 1usize..8, flushes in 8usize..10_000) {
        let mut early = EarlyWrite::new();
        for _ in 0..2 {
            for _ in 0..writes {
                early.on_write(1, false);
            }
            early.on_flushes(flushes as u32);
        }
        prop_assert_eq!((0..100_000).filter(|_| early.on_write(1, false).is_some()).count(), 32 * writes);
    }

    #[test]
    fn large_writes_to_uncached_blocks_are_written_early_and_asynchronously(blocks in 16u64..1024, writes in 33usize..100) {
        let mut early = EarlyWrite::new();
        for _ in 0..writes {
            prop_assert_eq!(early.on_write(blocks, false), Some(Class::Asynchronous));
            prop_assert_eq!(early.on_write(blocks, true), None);
            prop_assert_eq!(early.on_write(15, false), None);
        }
    }

    #[test]
    fn the_first_small_writes_of_a_file_are_written_early(writes in 33usize..100, blocks in 16u64..1024) {
        let mut early = EarlyWrite::of_file();
        let at_once = (0..writes).take_while(|_| early.on_write(1, false) == Some(Class::Synchronous)).count();
        prop_assert_eq!(at_once, 32);
        let mut early = EarlyWrite::of_file();
        prop_assert_eq!(early.on_write(blocks, false), Some(Class::Asynchronous), "a stream as ever");
        prop_assert_eq!(early.on_write(blocks, true), None);
    }
}
