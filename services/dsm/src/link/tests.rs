use std::sync::{OnceLock, Weak};

use futures_util::FutureExt;
use kernel::Switches;
use testkit::scene::{boot, small_kernel};

use super::*;
use crate::arrived::tests::{ME, PEER, SIZE, address, join_reporting};
use crate::hello::Process;

impl Link {
    /// As if a peer were connected. What is sent from now on is queued.
    pub(crate) fn connect(&self) {
        self.queue.lock().is_up = true;
    }

    /// Takes what is queued.
    pub(crate) fn take_words(&self) -> Vec<Word> {
        let words = std::mem::take(&mut self.queue.lock().words);
        words.iter().flat_map(|(run, _)| run.headers()).map(|header| header.word).collect()
    }
}

#[test]
fn the_same_line_is_reported_once_until_there_is_another() {
    let link = Link::default();
    let news: Vec<bool> = ["away", "away", "here", "here", "away"].map(|line| link.is_news(line)).to_vec();
    assert_eq!(news, [true, false, true, false, true]);
}

#[test]
fn without_a_connection_nothing_is_queued() {
    let (link, now) = (Link::default(), Instant::from_ns(1));
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(!link.is_behind(now));
    link.queue.lock().is_up = true;
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(link.is_behind(now));
    link.end_any();
    assert!(!link.is_behind(now));
}

#[test]
fn a_link_is_behind_while_words_have_been_leaving_for_so_long_that_they_would_be_repeated() {
    let (link, begin) = (Link::default(), Instant::from_ns(1));
    let later = begin + RETRANSMIT_AFTER;
    link.queue.lock().is_up = true;
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    let words = link.next(|| begin, 0).now_or_never();
    assert!(words.is_some_and(|words| words.is_some_and(|words| words.len() == 1)));
    assert!(!link.is_behind(begin) && link.is_behind(later));
    link.have_left(0);
    assert!(!link.is_behind(later));
}

#[test]
fn a_peer_hears_what_was_lost_before_anything_else() {
    const LOST: Address = address(2, 1);
    let (_world, host) = boot(1, small_kernel(1, SIZE, Switches::default()));
    let cpu = &host.processors[0];
    let own: Arc<OnceLock<Weak<Shared>>> = Arc::default();
    // As another processor does as soon as the link is up.
    let sends = Arc::clone(&own);
    let shared = join_reporting(
        Vec::new(),
        Box::new(move |_| {
            if let Some(own) = sends.get().and_then(Weak::upgrade) {
                own.send_word(PEER, Word::Beat, None);
            }
        }),
    );
    own.set(Arc::downgrade(&shared)).expect("once");
    shared.tell_loss(&mut shared.core.lock(), LOST);
    let process = Process { incarnation: PEER.incarnation, id: 1 };
    let hello = Hello {
        from: PEER.node,
        to: ME.node,
        process,
        first: process.incarnation,
        met: None,
        terms: shared.config.terms(),
    };
    let generation = shared.on_connected(cpu, PEER, &hello);
    let link = &shared.links[usize::from(PEER.node.0)];
    let words = link.next(|| cpu.now(), generation).now_or_never().flatten().expect("words");
    let words: Vec<Word> = words.iter().flat_map(|(run, _)| run.headers()).map(|header| header.word).collect();
    let is_loss = |word: &Word| matches!(word, Word::Died(_) | Word::Failed { .. });
    let losses = words.iter().take_while(|word| is_loss(word)).count();
    assert_eq!(words.first(), Some(&Word::Died(LOST)));
    assert!(words.contains(&Word::Beat) && !words[losses..].iter().any(is_loss), "{words:?}");
}
